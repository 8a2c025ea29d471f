"""Writers with small segments, entries, and readers for the tests of the record log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import Entry, LogReader
from streamgauge.ingest.records import AnyRecord, Frames, pack, unpack

MIB = 2**20


def writer_of(log_dir: Path, partition: str = "w0", **options: Any) -> EmbeddedWriter:
    return EmbeddedWriter(log_dir, partition, **{"cap_bytes": 64 * MIB, "wait": False, **options})


def read_all(reader: LogReader, max_bytes: int = 8 * MIB) -> list[Entry]:
    """All entries available now."""
    entries: list[Entry] = []
    while got := reader.poll(0.0, max_bytes):
        entries += got
    return entries


def payloads(entries: list[Entry]) -> list[bytes]:
    return [entry.payload for entry in entries]


def segments_of(log_dir: Path, partition: str = "w0") -> list[str]:
    return sorted(path.name for path in (log_dir / partition).glob("*.sqlite"))


def frames(stream: str, seq: int, size: int = 10) -> Frames:
    return Frames(stream, seq, [(seq, bytes([seq % 256]) * size)])


def entry_of(*records: AnyRecord) -> bytes:
    return pack(list(records), compress=False)


def records_of(entries: list[Entry]) -> list[AnyRecord]:
    return records_of_payloads(payloads(entries))


def records_of_payloads(packed: list[bytes]) -> list[AnyRecord]:
    found: list[AnyRecord] = []
    for payload in packed:
        records, poison = unpack(payload)
        assert not poison
        found += records
    return found


def roll(writer: EmbeddedWriter) -> None:
    """End the segment, as its size or age would."""
    writer._roll()


def abandon(writer: EmbeddedWriter) -> None:
    """End the writer like kill -9: nothing is sealed, the lock is released."""
    import os

    writer._close_segment()
    os.close(writer._lock)
    writer._lock = -1


def drain(log_dir: Path, name: str = "test") -> list[Entry]:
    """All entries, read by a new reader."""
    with EmbeddedReader(log_dir, name) as reader:
        return read_all(reader)

"""Appending to the embedded log: durability, offsets, and what is deleted when the log is full."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import stat
import time
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from streamgauge.ingest.record_log import embedded_writer, segments
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogBroken, LogFull, LogInUse
from streamgauge.ingest.record_log.segments import SEGMENT_OFFSETS, log_bytes
from streamgauge.ingest.records import Alive, AnyRecord, Lost, pack
from tests.ingest.record_log.entries import (
    MIB,
    abandon,
    drain,
    entry_of,
    frames,
    payloads,
    read_all,
    records_of,
    roll,
    segments_of,
    writer_of,
)
from tests.small_disk import small_disk


def test_entries_of_several_segments_are_read_in_order(tmp_path: Path) -> None:
    sent = [os.urandom(40_000) for _ in range(60)]
    with writer_of(tmp_path, segment_bytes=400_000) as writer:
        for at in range(0, 60, 3):
            writer.append(sent[at : at + 3])
    got = drain(tmp_path)
    assert payloads(got) == sent
    assert [entry.offset for entry in got] == list(range(60))
    assert len(segments_of(tmp_path)) > 3


def test_a_segment_ends_by_age(tmp_path: Path) -> None:
    with writer_of(tmp_path, segment_age_s=0.0) as writer:
        for payload in (b"a", b"b", b"c"):
            writer.append([payload])
    assert len(segments_of(tmp_path)) == 3


def test_an_empty_append_creates_no_segment(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append([])
    assert segments_of(tmp_path) == []


def test_a_second_writer_of_a_partition_is_refused(tmp_path: Path) -> None:
    with writer_of(tmp_path):
        with pytest.raises(LogInUse, match=r"another process already writes .*w0$"):
            writer_of(tmp_path)
        writer_of(tmp_path, "w1").close()
    writer_of(tmp_path).close()


@pytest.mark.parametrize("name", ["", "0", "w", "w-1", "../w0", "readers"])
def test_an_invalid_partition_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="invalid partition"):
        writer_of(tmp_path, name)


def test_files_are_private(tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    with writer_of(log_dir) as writer, EmbeddedReader(log_dir, "one") as reader:
        writer.append([b"x"])
        read_all(reader)
        for path in [log_dir, *log_dir.rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_offsets_continue_after_a_clean_stop(tmp_path: Path) -> None:
    for first in (0, 2, 4):
        with writer_of(tmp_path) as writer:
            assert writer.next_offset == first
            writer.append([b"a", b"b"])
    assert [entry.offset for entry in drain(tmp_path)] == list(range(6))


def test_offsets_that_may_have_been_read_before_a_kill_are_not_reused(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append([b"a", b"b"])
    abandon(writer)
    with writer_of(tmp_path) as writer:
        assert writer.next_offset == SEGMENT_OFFSETS
        writer.append([b"c"])
    assert payloads(drain(tmp_path)) == [b"a", b"b", b"c"]


def test_a_power_cut_leaves_a_prefix_and_lost_offsets_are_not_reused(
    tmp_path: Path,
) -> None:
    # Only half of the -wal reached the disk.
    writer = writer_of(tmp_path)
    sent = [os.urandom(5000) for _ in range(40)]
    for payload in sent:
        writer.append([payload])
    with EmbeddedReader(tmp_path, "one") as reader:
        seen = read_all(reader)
        reader.release("w0", 40)
    segment = tmp_path / "w0" / segments_of(tmp_path)[0]
    wal = segment.with_name(segment.name + "-wal").read_bytes()
    main = segment.read_bytes()
    abandon(writer)
    segment.write_bytes(main)
    segment.with_name(segment.name + "-shm").unlink(missing_ok=True)
    segment.with_name(segment.name + "-wal").write_bytes(wal[: len(wal) // 2])

    with writer_of(tmp_path) as writer:
        assert writer.next_offset > max(entry.offset for entry in seen)
        writer.append([b"new"])
    remaining = payloads(drain(tmp_path))
    assert remaining[-1] == b"new"
    assert 0 < len(remaining) - 1 < 40
    assert remaining[:-1] == sent[: len(remaining) - 1]


def test_offsets_before_a_cursor_are_not_reused(tmp_path: Path) -> None:
    with EmbeddedReader(tmp_path, "one") as reader:
        reader.release("w0", 5000)
    with writer_of(tmp_path) as writer:
        assert writer.next_offset == 5000


def test_a_damaged_newest_segment_is_quarantined_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with writer_of(tmp_path) as writer:
        writer.append([b"a"])
    segment = tmp_path / "w0" / segments_of(tmp_path)[0]
    segment.write_bytes(b"this is no database, and long enough to be sure of it" * 100)
    for _ in range(2):  # no crash loop
        with caplog.at_level(logging.ERROR), writer_of(tmp_path) as writer:
            writer.append([b"b"])
            first = writer.next_offset - 1
        assert first >= SEGMENT_OFFSETS
    assert [record.message for record in caplog.records if "damaged" in record.message] == [
        f"segment {segment} is damaged (file is not a database): renamed to {segment.name}.corrupt"
    ]
    assert payloads(drain(tmp_path)) == [b"b", b"b"]


def test_an_incomplete_segment_is_deleted(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    (tmp_path / "w0" / ".new-00000000000000000000").write_bytes(b"")
    (tmp_path / "w0" / "00000000000000000007.sqlite-wal").write_bytes(b"")
    with writer_of(tmp_path) as writer:
        writer.append([b"a"])
    assert payloads(drain(tmp_path)) == [b"a"]
    assert not list((tmp_path / "w0").glob(".new*"))
    assert not list((tmp_path / "w0").glob("*0007*"))


def test_the_writer_continues_when_its_segment_is_deleted(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append([b"a"])
        for path in (tmp_path / "w0").glob("*.sqlite*"):
            path.unlink()
        writer.append([b"b"])
    assert payloads(drain(tmp_path)) == [b"b"]


# A full log


def fill(writer: EmbeddedWriter, count: int, size: int = 30_000, first: int = 0) -> None:
    """One stream, one record per entry."""
    for seq in range(first, first + count):
        writer.append([entry_of(frames("s", seq, size))])


def test_over_the_cap_the_oldest_segment_is_dropped_and_its_ranges_are_reported(tmp_path: Path) -> None:
    with writer_of(tmp_path, cap_bytes=2 * MIB) as writer:
        fill(writer, 200)
        stats = writer.stats()
        assert log_bytes(tmp_path) <= 2 * MIB + 300_000
    assert stats["dropped_segments"] > 5
    records = records_of(drain(tmp_path))
    lost = [record for record in records if isinstance(record, Lost)]
    kept = [record.seq for record in records if not isinstance(record, Lost)]
    reported = sorted(seq for one in lost for seq in range(one.seq, one.last_seq + 1))
    assert sorted({*reported, *kept}) == list(range(200))  # every record is kept or reported
    assert {one.cause for one in lost} == {"log_full"}
    assert sum(one.bytes for one in lost) == 30_000 * len(set(reported))
    assert stats["dropped_records"] >= len(lost)
    assert stats["refused_entries"] == 0


def test_released_segments_are_deleted_before_unread_ones(tmp_path: Path) -> None:
    with (
        EmbeddedReader(tmp_path, "one") as reader,
        writer_of(tmp_path, cap_bytes=2 * MIB) as writer,
    ):
        for at in range(0, 400, 10):
            fill(writer, 10, first=at)
            last = read_all(reader)[-1].offset
            reader.release("w0", last + 1)
        assert writer.stats()["dropped_segments"] == 0
        assert log_bytes(tmp_path) < 2 * MIB


def test_read_entries_of_a_dropped_segment_are_not_reported_as_lost(tmp_path: Path) -> None:
    with (
        EmbeddedReader(tmp_path, "one") as reader,
        writer_of(tmp_path, cap_bytes=2 * MIB) as writer,
    ):
        fill(writer, 5)
        reader.release("w0", 3)
        fill(writer, 100, first=5)
        lost = [record for record in records_of(read_all(reader)) if isinstance(record, Lost)]
        assert min(one.seq for one in lost) == 3


def test_the_cap_covers_all_partitions_and_drops_from_those_without_a_writer_first(tmp_path: Path) -> None:
    with writer_of(tmp_path, "w1", cap_bytes=2 * MIB) as stopped_writer:
        fill(stopped_writer, 40)
    with writer_of(tmp_path, "w0", cap_bytes=2 * MIB) as writer:
        for seq in range(20):
            writer.append([entry_of(frames("mine", seq, 30_000))])
        assert writer.stats()["dropped_segments"] > 0
        assert log_bytes(tmp_path) <= 2 * MIB + 300_000
    records = records_of(drain(tmp_path))
    assert [r.seq for r in records if not isinstance(r, Lost) and r.stream == "mine"] == list(range(20))
    stopped_records = [record for record in records if record.stream == "s"]
    reported = {seq for r in stopped_records if isinstance(r, Lost) for seq in range(r.seq, r.last_seq + 1)}
    assert reported | {r.seq for r in stopped_records if not isinstance(r, Lost)} == set(range(40))


def test_a_log_full_of_losses_refuses_appends_and_has_reported_every_record(tmp_path: Path) -> None:
    # Reporting the loss of these small streams takes as much space as they do. There is no reader.
    with writer_of(tmp_path, cap_bytes=MIB, segment_age_s=3600) as writer:
        kept: set[str] = set()
        refused = 0
        while refused < 20:
            streams = [os.urandom(18).hex() for _ in range(40)]
            try:
                writer.append([entry_of(frames(stream, 0, 1)) for stream in streams])
            except LogFull:
                refused += 1
            else:
                kept.update(streams)
                assert len(kept) < 100_000
        assert writer.stats()["refused_entries"] == 20 * 40
        assert log_bytes(tmp_path) < 1.3 * MIB
    reported = {record.stream for record in records_of(drain(tmp_path)) if not isinstance(record, Alive)}
    assert reported == kept


def test_losses_of_a_partition_without_a_writer_are_not_rewritten_without_end(tmp_path: Path) -> None:
    with writer_of(tmp_path, "w1", segment_age_s=0.0) as stopped_writer:
        for seq in range(5):
            stopped_writer.append([entry_of(Lost("s", seq, seq, "log_full", 1, 0))])
    with writer_of(tmp_path, "w0", cap_bytes=log_bytes(tmp_path) + MIB) as writer:
        for seq in range(60):
            writer.append([entry_of(frames("mine", seq, 30_000))])
    assert len(segments_of(tmp_path, "w1")) < 5
    found = [r for r in records_of(drain(tmp_path)) if isinstance(r, Lost) and r.stream == "s"]
    assert {seq for r in found for seq in range(r.seq, r.last_seq + 1)} == set(range(5))


def test_quarantined_segments_are_deleted_first(tmp_path: Path) -> None:
    with writer_of(tmp_path, cap_bytes=2 * MIB) as writer:
        quarantined = tmp_path / "w0" / "00000000000000000000.sqlite.corrupt"
        quarantined.write_bytes(bytes(MIB))
        fill(writer, 30)
        assert not quarantined.exists()
        assert writer.stats()["dropped_segments"] == 0


# An old log


def aged(tmp_path: Path, by_s: float, *paths: Path) -> None:
    """Make the segments of an earlier run older."""
    for path in paths or (tmp_path / "w0").glob("*.sqlite"):
        os.utime(path, (path.stat().st_atime - by_s, path.stat().st_mtime - by_s))


def two_segments(tmp_path: Path, partition: str = "w0") -> None:
    with writer_of(tmp_path, partition) as writer:
        fill(writer, 5)
        roll(writer)
        fill(writer, 5, first=5)


def test_a_segment_unread_for_too_long_is_dropped_and_reported(tmp_path: Path) -> None:
    two_segments(tmp_path)
    aged(tmp_path, 3600)
    with writer_of(tmp_path, max_age_s=1800) as writer:
        fill(writer, 1, first=10)
        stats = writer.stats()
    assert (stats["dropped_segments"], stats["dropped_records"], stats["refused_entries"]) == (1, 5, 0)
    records = records_of(drain(tmp_path))
    assert [(r.seq, r.last_seq, r.cause, r.bytes) for r in records if isinstance(r, Lost)] == [
        (0, 4, "log_aged", 5 * 30_000)
    ]
    assert [r.seq for r in records if not isinstance(r, Lost)] == [5, 6, 7, 8, 9, 10]


def test_segments_of_a_partition_without_a_writer_age_too(tmp_path: Path) -> None:
    two_segments(tmp_path, "w1")
    aged(tmp_path, 3600, *(tmp_path / "w1").glob("*.sqlite"))
    with writer_of(tmp_path, "w0", max_age_s=1800) as writer:
        writer.append([entry_of(frames("mine", 0))])
    assert [r.cause for r in records_of(drain(tmp_path)) if isinstance(r, Lost)] == ["log_aged"]


def test_a_released_segment_is_not_reported_as_aged(tmp_path: Path) -> None:
    two_segments(tmp_path)
    aged(tmp_path, 3600)
    with EmbeddedReader(tmp_path, "one") as reader, writer_of(tmp_path, max_age_s=1800) as writer:
        reader.release("w0", 10)
        fill(writer, 1, first=10)
        assert writer.stats()["dropped_segments"] == 0
        assert [r.seq for r in records_of(read_all(reader))] == [10]


def test_a_clock_step_does_not_age_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgauge.ingest.record_log.embedded_writer._SCAN_S", 0.0)
    clock_ns = time.time_ns
    with writer_of(tmp_path, max_age_s=1800) as writer:
        fill(writer, 3)
        roll(writer)
        fill(writer, 3, first=3)
        fill(writer, 1, first=6)
        for step_s in (86_400, -86_400):
            monkeypatch.setattr("time.time", lambda step_s=step_s: clock_ns() / 1e9 + step_s)
            fill(writer, 1)
        assert writer.stats()["dropped_segments"] == 0


def test_a_segment_with_only_losses_is_not_rewritten_every_second(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        reported: list[AnyRecord] = [Lost(os.urandom(18).hex(), 0, 0, "log_full", 0) for _ in range(900)]
        for _ in range(2):
            writer.append([pack(reported, compress=True)])
            roll(writer)
    aged(tmp_path, 3600)
    with writer_of(tmp_path, max_age_s=1800) as writer:
        fill(writer, 3)
        assert writer.stats()["dropped_segments"] == 0
    assert len([r for r in records_of(drain(tmp_path)) if isinstance(r, Lost)]) == 1800


# A failing disk


def test_a_full_file_raises_os_error_and_the_writer_stays_usable(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append([b"a"])
        assert writer._connection is not None
        pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._connection.execute(f"PRAGMA max_page_count={pages + 2}")
        with pytest.raises(OSError, match="no space left") as caught:
            writer.append([bytes(100_000)])
        assert caught.value.errno == errno.ENOSPC
        writer._connection.execute("PRAGMA max_page_count=100000")
        writer.append([b"b"])
        assert writer.stats()["failed_entries"] == 1
    got = drain(tmp_path)
    assert payloads(got) == [b"a", b"b"]
    assert got[1].offset == 2  # the offset of the failed append is used up


def test_a_full_disk_raises_os_error_until_there_is_space(tmp_path: Path) -> None:
    log_dir = tmp_path / "disk" / "log"
    with (
        small_disk(tmp_path / "disk", "3m"),
        writer_of(log_dir, segment_bytes=MIB // 2) as writer,
        EmbeddedReader(log_dir, "one") as reader,
    ):
        acknowledged = []
        failures, reasons = 0, set()
        for number in range(200):
            payload = number.to_bytes(4, "big") * 10_000
            try:
                writer.append([payload])
            except OSError as error:
                reasons.add(error.errno)
                failures += 1
            else:
                acknowledged.append(payload)
        assert failures > 50
        assert reasons <= {errno.ENOSPC, errno.EIO}
        got = read_all(reader)
        assert payloads(got) == acknowledged
        reader.release("w0", got[-1].offset + 1)
        writer.append([b"again"])
        assert payloads(read_all(reader)) == [b"again"]


@pytest.mark.parametrize(("module", "name", "calls"), [
    (segments, "_create_tables", 0), (segments, "sync_folder", 0), (segments, "_connect", 1), (embedded_writer, "trim", 0),
])  # fmt: skip
def test_a_segment_that_could_not_be_created_is_created_at_the_next_append(
    module: ModuleType, name: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the system: tests/chaos/test_failing_calls.py."""
    real = getattr(module, name)
    with writer_of(tmp_path, segment_age_s=0.0) as writer:
        writer.append([b"before"])
        with monkeypatch.context() as patched:
            results = [real] * calls + [Mock(side_effect=MemoryError("planted"))] * 100
            patched.setattr(module, name, lambda *given: results.pop(0)(*given))
            for _ in range(3):
                with pytest.raises((LogBroken, MemoryError)):
                    writer.append([b"failed"])
        writer.append([b"after"])
    assert payloads(drain(tmp_path)) == [b"before", b"after"]
    assert len(segments_of(tmp_path)) == 2


def test_a_database_error_names_the_folder_and_the_remedy(tmp_path: Path) -> None:
    from streamgauge.ingest.record_log.embedded_writer import _translated

    error = sqlite3.OperationalError("locked")
    assert "check the disk, or move the folder away" in str(_translated(error, tmp_path))


def test_a_new_segment_trims_released_ones(tmp_path: Path) -> None:
    with EmbeddedReader(tmp_path, "one") as reader, writer_of(tmp_path, segment_age_s=0.0) as writer:
        writer.append([b"a"])
        reader.release("w0", 1)
        writer.append([b"b"])
        roll(writer)
        writer.append([b"c"])
        assert segments_of(tmp_path)[0] != "00000000000000000000.sqlite"

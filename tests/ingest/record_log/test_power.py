"""After a power cut: a -wal that is truncated or damaged at any point can be opened and has a prefix of the entries."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from tests.ingest.record_log.entries import MIB, abandon, payloads, read_all, segments_of, writer_of

FRAME_BYTES = 8192 + 24
"""One page in the -wal, with its header."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], bytes, bytes]:
    """Entries, and the content of the main file and the -wal while the writer runs."""
    folder = tmp_path_factory.mktemp("live")
    writer = writer_of(folder)
    sent = [os.urandom(3000) for _ in range(60)]
    for payload in sent:
        writer.append([payload])
    segment = folder / "w0" / segments_of(folder)[0]
    main, wal = segment.read_bytes(), segment.with_name(f"{segment.name}-wal").read_bytes()
    abandon(writer)
    assert len(wal) > 40 * FRAME_BYTES
    return sent, main, wal


def entries_after(folder: Path, main: bytes, wal: bytes) -> list[bytes]:
    """The entries read from these files after the power cut. Nothing may be reported as damaged."""
    (folder / "w0").mkdir(parents=True)
    segment = folder / "w0" / f"{0:020d}.sqlite"
    segment.write_bytes(main)
    segment.with_name(f"{segment.name}-wal").write_bytes(wal)
    with EmbeddedReader(folder, "one") as reader:
        found = payloads(read_all(reader))
        assert reader.take_unreadable() == []
    with writer_of(folder) as writer:  # no crash loop: the next run continues after it
        writer.append([b"new"])
    return found


def test_a_wal_truncated_anywhere_leaves_a_prefix(
    tmp_path: Path, live: tuple[list[bytes], bytes, bytes]
) -> None:
    sent, main, wal = live
    rng = random.Random(3)
    cuts = sorted({0, 10, 32, 33, FRAME_BYTES, len(wal) - 1, len(wal), *rng.sample(range(len(wal)), 12)})
    counts = []
    for number, cut in enumerate(cuts):
        found = entries_after(tmp_path / str(number), main, wal[:cut])
        assert found == sent[: len(found)]
        counts.append(len(found))
    assert counts == sorted(counts)  # more bytes on the disk never mean fewer entries
    assert (counts[0], counts[-1]) == (0, 60)


def test_garbage_in_the_wal_ends_the_prefix(tmp_path: Path, live: tuple[list[bytes], bytes, bytes]) -> None:
    sent, main, wal = live
    rng = random.Random(4)
    for number in range(5):
        at = rng.randrange(32, len(wal) - 200)
        torn = wal[:at] + rng.randbytes(100) + wal[at + 100 :]
        found = entries_after(tmp_path / f"torn-{number}", main, torn)
        assert found == sent[: len(found)]
        assert len(found) < 60
        cut = entries_after(
            tmp_path / f"cut-{number}", main, wal[: 32 + (at - 32) // FRAME_BYTES * FRAME_BYTES]
        )
        assert len(found) >= len(cut)


def test_the_wal_repairs_a_main_file_partly_written_by_a_checkpoint(
    tmp_path: Path, live: tuple[list[bytes], bytes, bytes]
) -> None:
    # SQLite flushes the -wal before it copies pages to the main file, so the -wal has all pages.
    sent, main, wal = live
    for number, size in enumerate((0, 8192, 8192 * 7 + 100, MIB)):
        found = entries_after(tmp_path / str(number), main[: 2 * 8192] + os.urandom(size), wal)
        assert found == sent

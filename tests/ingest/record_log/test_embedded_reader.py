"""Reading the embedded log while it is written: cursors, trimming, damaged segments."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.interface import LogInUse, UnreadableRange
from streamgauge.ingest.record_log.reader_cursors import read_cursors, remove_reader
from tests.deadline import DEADLINE_S
from tests.ingest.record_log.entries import abandon, drain, payloads, read_all, roll, segments_of, writer_of


def fill(log_dir: Path, segments: int, entries: int = 3) -> list[bytes]:
    """Sealed segments with some entries each."""
    sent = []
    with writer_of(log_dir) as writer:
        for segment in range(segments):
            payloads = [f"{segment}.{entry}".encode() * 300 for entry in range(entries)]
            writer.append(payloads)
            sent += payloads
            roll(writer)
    return sent


def test_another_process_is_read_while_it_writes(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
        with EmbeddedWriter(Path(sys.argv[1]), "w3", cap_bytes=2**26, segment_bytes=50_000) as writer:
            for number in range(500):
                writer.append([b"%d" % number * 100])
        """
    )
    with EmbeddedReader(tmp_path, "one") as reader:
        process = subprocess.Popen([sys.executable, "-c", script, tmp_path])
        try:
            got = []
            while len(got) < 500:
                entries = reader.poll(10)
                assert entries, "no entry arrived for 10 s"
                got += entries
                reader.release("w3", got[-1].offset + 1)
        finally:
            assert process.wait(DEADLINE_S) == 0
        assert payloads(got) == [b"%d" % number * 100 for number in range(500)]
        assert {entry.partition for entry in got} == {"w3"}
        assert len(segments_of(tmp_path, "w3")) < 5


def test_the_log_has_one_identity(tmp_path: Path) -> None:
    with EmbeddedReader(tmp_path / "a", "one") as one, EmbeddedReader(tmp_path / "a", "two") as two:
        assert one.log_id == two.log_id == writer_of(tmp_path / "a").log_id
    with EmbeddedReader(tmp_path / "b", "one") as other:
        assert other.log_id != one.log_id


def test_poll_takes_about_max_bytes_and_at_least_one_entry(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer, EmbeddedReader(tmp_path, "one") as reader:
        writer.append([bytes(1000)] * 10)
        assert len(reader.poll(0, 2500)) == 3
        assert len(reader.poll(0, 1)) == 1
        assert len(reader.poll(0)) == 6
        assert reader.poll(0) == []


def test_a_busy_partition_does_not_starve_the_others(tmp_path: Path) -> None:
    with (
        writer_of(tmp_path, "w0") as busy,
        writer_of(tmp_path, "w1") as quiet,
        EmbeddedReader(tmp_path, "one") as reader,
    ):
        busy.append([bytes(1000)] * 50)
        quiet.append([b"here"])
        first = [reader.poll(0, 1000)[0].partition for _ in range(4)]
        assert "w1" in first


def test_a_partition_that_appears_later_is_read(tmp_path: Path) -> None:
    with EmbeddedReader(tmp_path, "one") as reader, writer_of(tmp_path, "w0") as writer:
        writer.append([b"a"])
        read_all(reader)
        with writer_of(tmp_path, "w12") as later:
            later.append([b"b"])
            assert payloads(reader.poll(10)) == [b"b"]
        assert reader.partitions() == ["w0", "w12"]


def test_seek_range_and_end(tmp_path: Path) -> None:
    sent = fill(tmp_path, 3)
    with EmbeddedReader(tmp_path, "one") as reader:
        assert reader.end("w0") == 9
        reader.seek("w0", 4)
        assert payloads(reader.range("w0", 1, 8)) == sent[1:8]  # over three segments
        assert payloads(read_all(reader)) == sent[4:]
        reader.seek("w0", 0)
        assert payloads(read_all(reader)) == sent
        assert reader.range("w0", 9, 100) == []


def test_a_segment_is_deleted_when_all_readers_released_it_and_a_newer_one_exists(tmp_path: Path) -> None:
    with EmbeddedReader(tmp_path, "one") as one, EmbeddedReader(tmp_path, "two") as two:
        fill(tmp_path, 3)
        one.release("w0", 9)
        assert len(segments_of(tmp_path)) == 3
        two.release("w0", 5)
        assert len(segments_of(tmp_path)) == 2  # 3 and 4 are released, 5 is not
        assert not list((tmp_path / "w0").glob("00000000000000000000*"))
        two.release("w0", 9)
        assert segments_of(tmp_path) == ["00000000000000000006.sqlite"]  # the newest stays


def test_nothing_is_deleted_without_a_known_reader(tmp_path: Path) -> None:
    with writer_of(tmp_path, segment_age_s=0) as writer:
        for _ in range(5):
            writer.append([b"a"])
    assert len(segments_of(tmp_path)) == 5


def test_a_second_reader_with_the_same_name_is_refused(tmp_path: Path) -> None:
    with (
        EmbeddedReader(tmp_path, "ship"),
        pytest.raises(LogInUse, match=r"already reads the log .* as 'ship'$"),
    ):
        EmbeddedReader(tmp_path, "ship")
    EmbeddedReader(tmp_path, "ship").close()


def test_a_cursor_survives_its_process_and_never_moves_back(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with EmbeddedReader(tmp_path, "one") as reader:
        reader.release("w0", 2)
        reader.release("w0", 1)
    with EmbeddedReader(tmp_path, "one") as reader:
        assert reader.released("w0") == 2
        assert len(read_all(reader)) == 3  # without a seek, reading starts at the oldest entry


def test_a_reader_with_a_damaged_cursor_file_starts_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    EmbeddedReader(tmp_path, "one").close()
    for content in ("", "[1]", '{"w0": "x"}', "{"):
        (tmp_path / "readers" / "one.json").write_text(content)
        with EmbeddedReader(tmp_path, "one") as reader:
            assert reader.released("w0") == 0
    assert sum("starts again" in record.message for record in caplog.records) == 4


def test_a_reader_that_will_not_return_can_be_removed(tmp_path: Path) -> None:
    EmbeddedReader(tmp_path, "old").close()
    with EmbeddedReader(tmp_path, "one") as reader:
        fill(tmp_path, 3)
        reader.release("w0", 9)
        assert len(segments_of(tmp_path)) == 3
        remove_reader(tmp_path, "old")
        assert list(read_cursors(tmp_path)) == ["one"]
        with writer_of(tmp_path) as writer:
            writer.append([b"a"])
            reader.release("w0", 10)
        assert len(segments_of(tmp_path)) == 1


def test_a_sole_reader_takes_over_the_position_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedReader(tmp_path, "analyze") as former:
        former.release("w0", 7)
        with EmbeddedReader(tmp_path, "ship", sole=True) as reader:
            assert reader.released("w0") == 0  # the other still runs: the log keeps entries for both
    assert "also keeps entries for the reader 'analyze'" in caplog.text
    with EmbeddedReader(tmp_path, "ship", sole=True) as reader:
        assert reader.released("w0") == 7
        assert json.loads((tmp_path / "readers" / "ship.json").read_text()) == {"w0": 7}
    assert list(read_cursors(tmp_path)) == ["ship"]


# Unreadable ranges


def damage_bytes(segment: Path, at: int, size: int = 3000) -> None:
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * size)


def test_a_damaged_segment_is_quarantined_and_the_rest_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = fill(tmp_path, 3)
    (tmp_path / "w0" / "00000000000000000003.sqlite").write_bytes(b"no database at all" * 1000)
    with EmbeddedReader(tmp_path, "one") as reader, caplog.at_level(logging.ERROR):
        assert payloads(read_all(reader)) == sent[:3] + sent[6:]
        assert reader.take_unreadable() == [UnreadableRange("w0", 3, 6, "file is not a database")]
        assert reader.take_unreadable() == []
    assert len(caplog.records) == 1
    assert (
        "renamed to 00000000000000000003.sqlite.corrupt, entries 3 to 5 of w0 cannot be read" in caplog.text
    )
    assert payloads(drain(tmp_path, "two")) == sent[:3] + sent[6:]  # a quarantined segment is not read again


def test_the_readable_part_of_a_damaged_segment_is_read(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        sent = [bytes([number]) * 6000 for number in range(60)]
        writer.append(sent)
        roll(writer)
        writer.append([b"after"])
    segment = tmp_path / "w0" / segments_of(tmp_path)[0]
    size = segment.stat().st_size
    damage_bytes(segment, size - size // 4, size // 4)
    with EmbeddedReader(tmp_path, "one") as reader:
        got = payloads(read_all(reader))
        damage = reader.take_unreadable()
    assert got[-1] == b"after"
    assert 10 < len(got) - 1 < 60
    missing = {offset for one in damage for offset in range(one.first, one.end)}
    assert missing
    assert got[:-1] == [payload for offset, payload in enumerate(sent) if offset not in missing]


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + bytes(5000)])
def test_an_empty_or_truncated_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    sent = fill(tmp_path, 3)
    (tmp_path / "w0" / "00000000000000000003.sqlite").write_bytes(content)
    with EmbeddedReader(tmp_path, "one") as reader:
        assert payloads(read_all(reader)) == sent[:3] + sent[6:]
        assert [(one.first, one.end) for one in reader.take_unreadable()] == [(3, 6)]


def test_the_newest_segment_of_a_dead_writer_is_quarantined(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "w0" / "00000000000000000000.sqlite").write_bytes(b"no database at all" * 1000)
    with EmbeddedReader(tmp_path, "one") as reader:
        assert read_all(reader) == []
        assert len(reader.take_unreadable()) == 1
        with writer_of(tmp_path) as writer:
            writer.append([b"new"])
            assert payloads(reader.poll(10)) == [b"new"]


def test_the_newest_segment_of_a_running_writer_stays_until_it_has_a_newer_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with writer_of(tmp_path) as writer, EmbeddedReader(tmp_path, "one") as reader:
        writer.append([bytes(6000)] * 20)
        assert writer._connection is not None
        writer._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        segment = tmp_path / "w0" / segments_of(tmp_path)[0]
        damage_bytes(segment, 8192, 8192)  # the first page of the entries
        reader.poll(0)
        assert segment.exists()
        assert "waiting for its writer to start a new one" in caplog.text
        writer._close_segment()
        writer.append([b"next"])
        assert payloads(reader.poll(10)) == [b"next"]
        assert not segment.exists()


def test_an_entry_with_a_wrong_checksum_is_skipped_and_reported(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append([b"a", b"b", b"c"])
    assert writer._connection is not None
    writer._connection.execute("UPDATE entry SET payload = x'00' WHERE offset = 1")
    abandon(writer)
    with EmbeddedReader(tmp_path, "one") as reader:
        assert payloads(read_all(reader)) == [b"a", b"c"]
        assert reader.take_unreadable() == [UnreadableRange("w0", 1, 2, "checksum")]


def test_a_segment_dropped_at_the_cap_is_skipped_at_once(tmp_path: Path) -> None:
    sent = fill(tmp_path, 3)
    with EmbeddedReader(tmp_path, "one") as reader:
        assert payloads(reader.poll(0, 1)) == sent[:1]
        for path in (tmp_path / "w0").glob("00000000000000000000.sqlite*"):
            path.unlink()
        assert payloads(read_all(reader)) == sent[3:]
        assert reader.take_unreadable() == []  # the writer that dropped it reports it

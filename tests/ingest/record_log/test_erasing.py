"""Records of some streams are erased from the embedded log, and everything else stays as it was."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamgauge.ingest.record_log import erasing
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.erasing import erase, find_streams, hold_readers
from streamgauge.ingest.record_log.interface import LogBroken, LogInUse
from streamgauge.ingest.record_log.run_totals import (
    RunTotals,
    RunTotalsFile,
    RunTotalsWriter,
    read_run_totals,
)
from streamgauge.ingest.record_log.segments import last_offset, list_segments, open_segment, quarantine
from streamgauge.ingest.records import pack_damage, unpack
from tests.analytics.log_entries import alive, opened, stream_id
from tests.ingest.record_log.entries import entry_of, frames, read_all, records_of, roll, writer_of

A, B = stream_id(1), stream_id(2)
READ = {"w0": 100}


def test_records_are_erased_and_offsets_stay(tmp_path: Path) -> None:
    beat = replace(alive(1), waiting_for_client=[A, B])
    damage = pack_damage("w0", 5, 6, "x")
    with writer_of(tmp_path) as writer:
        writer.append([entry_of(frames(A, 1), frames(B, 1)), entry_of(frames(A, 2)), entry_of(beat), damage])
        roll(writer)
        writer.append([entry_of(frames(B, 2))])
    untouched = list_segments(tmp_path / "w0")[1].path.read_bytes()
    assert erase(tmp_path, {A}, READ, dry_run=True) == 2
    assert erase(tmp_path, {A}, READ) == 2
    assert erase(tmp_path, {A}, READ) == 0
    assert list_segments(tmp_path / "w0")[1].path.read_bytes() == untouched
    assert not any(A.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with EmbeddedReader(tmp_path, "analyze") as reader:
        entries = read_all(reader)
    assert [entry.offset for entry in entries] == [0, 1, 2, 3, 4]
    kept = [frames(B, 1), replace(beat, waiting_for_client=[B]), frames(B, 2)]
    assert records_of([*entries[:3], entries[4]]) == kept
    assert entries[3].payload == damage
    assert erase(tmp_path, {B}, READ) == 2
    with writer_of(tmp_path) as writer:
        assert writer.next_offset == 5


def test_segment_of_a_killed_writer_is_read_with_its_wal_and_stays_unsealed(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "killed")
    writer.append([entry_of(frames(A, 1), frames(B, 1))])
    shutil.copytree(tmp_path / "killed", tmp_path / "log")
    writer.close()
    [segment] = list_segments(tmp_path / "log" / "w0")
    assert segment.path.with_name(f"{segment.path.name}-wal").stat().st_size
    age = segment.path.stat().st_mtime_ns
    with closing(open_segment(segment.path)) as open_elsewhere:
        assert last_offset(open_elsewhere) == 0
        assert erase(tmp_path / "log", {A}, READ) == 1
    assert segment.path.stat().st_mtime_ns == age
    with EmbeddedReader(tmp_path / "log", "analyze") as reader:
        assert records_of(read_all(reader)) == [frames(B, 1)]
    with writer_of(tmp_path / "log") as writer:
        assert writer.next_offset == 2**20


def test_data_that_is_no_record_is_erased_once_it_was_read(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append([b"?" + A.encode(), b"?" + A.encode()])
    erase(tmp_path, {A}, {"w0": 1})
    with EmbeddedReader(tmp_path, "analyze") as reader:
        first, second = read_all(reader)
    assert unpack(first.payload) == ([], [])
    assert second.payload == b"?" + A.encode()


def test_damaged_segment_is_emptied_and_its_offsets_are_not_used_again(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append([entry_of(frames(A, 1))])
    path = quarantine(list_segments(tmp_path / "w0")[0])
    erase(tmp_path, {A}, READ)
    assert path.read_bytes() == b""
    with writer_of(tmp_path) as writer:
        assert writer.next_offset == 2**20


def test_erasing_waits_until_a_running_writer_ends_its_segment(tmp_path: Path) -> None:
    waits, ends = threading.Event(), threading.Event()

    def write() -> None:
        with writer_of(tmp_path) as writer:
            writer.append([entry_of(frames(A, 1), frames(B, 1))])
            ends.set()
            waits.wait()
            roll(writer)
            writer.append([entry_of(alive(1))])
            done.wait()

    done = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        ends.wait()
        assert erase(tmp_path, {B.upper()}, READ, on_wait=lambda path: pytest.fail("waited")) == 0
        assert erase(tmp_path, {A}, READ, on_wait=lambda path: waits.set()) == 1
    finally:
        done.set()
        waits.set()
        thread.join()
    with EmbeddedReader(tmp_path, "analyze") as reader:
        assert records_of(read_all(reader)) == [frames(B, 1), alive(1)]


def test_a_writer_that_does_not_end_its_segment_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "MAX_WAIT_S", 0)
    with writer_of(tmp_path) as writer:
        writer.append([entry_of(frames(A, 1))])
        with pytest.raises(LogBroken, match=r"its tap does not end it\. Stop the tap"):
            erase(tmp_path, {A}, READ)


def test_readers_and_erasing_exclude_each_other(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    with (
        EmbeddedReader(tmp_path, "ship"),
        pytest.raises(LogInUse, match=r"'ship' reads it\. Stop it first"),
        hold_readers(tmp_path),
    ):
        pass
    with hold_readers(tmp_path), pytest.raises(LogInUse):
        EmbeddedReader(tmp_path, "ship")
    EmbeddedReader(tmp_path, "ship").close()


def test_streams_of_clients_and_unread_streams_are_found(tmp_path: Path) -> None:
    first, second, third = (replace(opened(n), client_id=id) for n, id in ((1, "x"), (2, "y"), (3, None)))
    with writer_of(tmp_path) as writer:
        writer.append([entry_of(first, second), entry_of(third, alive(1))])
    of_clients, unread = find_streams(tmp_path, {"x", None}, {"w0": 1})
    assert of_clients == {first.stream, third.stream}
    assert unread == {third.stream}


def test_totals_of_a_killed_run_stay_right_when_its_last_append_changes(tmp_path: Path) -> None:
    folder, incarnation = tmp_path / "w0", "0198b2d0-0000-7000-8000-000000000001"
    writer = writer_of(tmp_path)
    file = RunTotalsFile(folder, incarnation)
    totals = RunTotals(streams_opened=1, streams_in_log=1)
    RunTotalsWriter(writer, file, lambda: totals, folder).append([entry_of(frames(A, 0))])
    file.write(
        file.run.totals._replace(streams_in_log=0)
    )  # killed before it stored the totals after the append
    file.close()
    writer.close()
    erase(tmp_path, {A}, READ)
    assert read_run_totals(tmp_path)[incarnation].missing == 0

"""Totals of runs after kill -9, in a torn file, and with more runs than are kept; reports of what ended runs lost."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.ingest.record_log import run_totals
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogFull
from streamgauge.ingest.record_log.run_totals import (
    CAUSES,
    MAX_RUNS,
    REPORTED,
    RUNNING,
    RunTotals,
    RunTotalsFile,
    RunTotalsWriter,
    read_run_totals,
    unreported_streams,
)
from streamgauge.ingest.records import Alive, AnyRecord, Lost, pack, unpack
from tests.analytics.log_entries import stream


def new_run(log_dir: Path, totals: RunTotals, partition: str = "w0") -> str:
    incarnation = str(uuid.uuid4())
    (log_dir / partition).mkdir(parents=True, exist_ok=True)
    file = RunTotalsFile(log_dir / partition, incarnation)
    file.write(totals)
    file.close()
    return incarnation


def test_each_run_of_each_partition_keeps_its_last_totals(tmp_path: Path) -> None:
    a, b = new_run(tmp_path, RunTotals(5, 4, 3, 2, 1, 0)), new_run(tmp_path, RunTotals(7, 7))
    c = new_run(tmp_path, RunTotals(1), "w1")
    assert read_run_totals(tmp_path) == {a: RunTotals(5, 4, 3, 2, 1, 0), b: RunTotals(7, 7), c: RunTotals(1)}


def test_the_oldest_runs_are_removed(tmp_path: Path) -> None:
    made = [new_run(tmp_path, RunTotals(n)) for n in range(MAX_RUNS + 3)]
    assert list(read_run_totals(tmp_path)) == made[3:]


def test_a_torn_entry_is_skipped(tmp_path: Path) -> None:
    a, b = new_run(tmp_path, RunTotals(5)), new_run(tmp_path, RunTotals(7))
    path = tmp_path / "w0" / "runs"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert read_run_totals(tmp_path) == {b: RunTotals(7)}
    assert a not in read_run_totals(tmp_path)
    path.unlink()
    assert read_run_totals(tmp_path) == {}


def test_a_run_takes_no_further_space_and_a_reported_one_makes_room(tmp_path: Path) -> None:
    made = [
        new_run(tmp_path, RunTotals(n, n, state=REPORTED if n == 3 else RUNNING)) for n in range(MAX_RUNS)
    ]
    path = tmp_path / "w0" / "runs"
    size, inode = path.stat().st_size, path.stat().st_ino
    made.append(new_run(tmp_path, RunTotals()))
    assert (path.stat().st_size, path.stat().st_ino) == (size, inode)
    assert list(read_run_totals(tmp_path)) == made[:3] + made[4:]


class Killed(BaseException):
    """The process ends here."""


class Log:
    """A tap's run: appends streams to a log of its own, with a fault at one of its steps."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.opened = self.packed = 0
        self.state = RUNNING
        self.cause = 0
        self.steps = 0
        self.fail_at: tuple[int, Callable[[], BaseException]] | None = None
        self.log = EmbeddedWriter(log_dir, "w0", cap_bytes=2**30)
        self.file = RunTotalsFile(log_dir / "w0", str(uuid.uuid4()), tap="t", started_wall_ns=1)
        write, append = self.file.write, self.log.append
        self.file.write = lambda *given: self.step(write, *given)  # type: ignore[method-assign]
        self.log.append = lambda payloads: self.step(append, payloads)  # type: ignore[method-assign]
        self.writer = RunTotalsWriter(self.log, self.file, self.totals, log_dir / "w0")

    def totals(self) -> RunTotals:
        now = 1_700_000_000_000_000_000
        return RunTotals(self.opened, self.packed, wall_ns=now, mono_ns=5, cause=self.cause, state=self.state)

    def step(self, action: Callable[..., None], *given: object) -> None:
        self.steps += 1
        if self.fail_at is not None and self.steps == self.fail_at[0]:
            raise self.fail_at[1]()
        action(*given)

    def append(self, numbers: Sequence[int]) -> None:
        self.opened += len(numbers)
        self.packed += len(numbers)
        records = [record for number in numbers for record in stream(number)]
        alive = Alive("t", 0, self.file.run.incarnation, 1, 1, 1)
        self.writer.append([pack([alive, *records], compress=True)])

    def kill(self) -> None:
        """The kernel closes the files."""
        os.close(self.file._descriptor)
        os.close(self.log._lock)
        self.log._close_segment()


def test_totals_are_stored_before_an_append_and_streams_in_log_after_it(tmp_path: Path) -> None:
    run = Log(tmp_path)
    run.append([1, 2])
    assert [(t.streams_opened, t.streams_in_log) for t in read_run_totals(tmp_path).values()] == [(2, 2)]
    run.opened = 5
    run.fail_at = run.steps + 2, lambda: LogFull("full")
    with pytest.raises(LogFull):
        run.append([3])
    assert [(t.streams_opened, t.streams_in_log) for t in read_run_totals(tmp_path).values()] == [(6, 2)]
    run.kill()


def records_in(log_dir: Path) -> Iterator[list[AnyRecord]]:
    """The records of each entry."""
    with closing(EmbeddedReader(log_dir, "test")) as reader:
        while entries := reader.poll(0):
            yield from (unpack(entry.payload)[0] for entry in entries)


def counted(log_dir: Path) -> tuple[int, int]:
    """(streams stored, streams lost) when analytics reads the log, each once."""
    assembler = Assembler()
    for offset, records in enumerate(records_in(log_dir)):
        assembler.feed("w0", offset, records)
    finished = assembler.take_finished()
    assert len({one.stream_id for one in finished}) == len(finished)
    assert assembler.counters["late_records"] == 0
    lost = assembler.take_losses()
    assert assembler.open_count == 0
    return len(finished) - lost["stream_id"].n_unique(), lost["stream_id"].n_unique()


def test_a_clean_run_reports_nothing(tmp_path: Path) -> None:
    run = Log(tmp_path)
    run.append([1])
    run.state = REPORTED
    run.writer.close()
    again = Log(tmp_path)
    steps = again.steps
    again.append([2])
    assert again.steps == steps + 3
    again.kill()
    assert counted(tmp_path) == (2, 0)


@pytest.mark.parametrize("step", range(1, 4))
def test_a_run_killed_at_each_step_of_an_append_loses_what_is_not_in_the_log(
    tmp_path: Path, step: int
) -> None:
    run = Log(tmp_path)
    run.append([1, 2])
    run.fail_at = run.steps + step, Killed
    with pytest.raises(Killed):
        run.append([3, 4, 5])
    run.kill()
    again = Log(tmp_path)
    again.append([6])
    again.kill()
    # Before the totals of the append are stored, nothing shows that its streams were opened.
    assert counted(tmp_path) == {1: (3, 0), 2: (3, 3), 3: (6, 0)}[step]


def test_streams_opened_after_the_last_append_are_counted_when_the_run_is_killed(tmp_path: Path) -> None:
    run = Log(tmp_path)
    run.append([1, 2])
    assert run.file.opened is not None
    run.file.opened.count[0] = 7
    run.kill()
    assert [(t.streams_opened, t.missing) for t in read_run_totals(tmp_path).values()] == [(7, 5)]
    again = Log(tmp_path)
    again.kill()  # before its first append: the memory has the count of this run now
    third = Log(tmp_path)
    third.append([3])
    third.kill()
    assert counted(tmp_path) == (3, 5)
    assert unreported_streams(tmp_path) == 0


def test_memory_of_another_folder_or_user_and_torn_memory_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Log(tmp_path)
    run.append([1])
    assert run.file.opened is not None
    run.file.opened.count[0] = 9
    run.kill()
    path = run_totals._memory_path(tmp_path / "w0")
    content = path.read_bytes()
    for damaged in (content[:8] + bytes(16) + content[24:], content[:10], b""):
        path.write_bytes(damaged)
        assert [t.streams_opened for t in read_run_totals(tmp_path).values()] == [1]
    path.write_bytes(content)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert [t.streams_opened for t in read_run_totals(tmp_path).values()] == [1]
    monkeypatch.setattr(run_totals, "MEMORY", tmp_path)
    with pytest.raises(OSError, match="not mounted"):
        run_totals.OpenedInMemory(tmp_path / "w0", str(uuid.uuid4()))


def test_a_closed_run_leaves_no_memory(tmp_path: Path) -> None:
    run = Log(tmp_path)
    path = run_totals._memory_path(tmp_path / "w0")
    assert path.exists()
    run.writer.close()
    assert not path.exists()


def test_streams_of_a_run_whose_last_totals_cannot_be_written_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Log(tmp_path)
    run.append([1, 2])
    assert run.file.opened is not None
    run.opened = run.file.opened.count[0] = 7
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", Mock(side_effect=OSError(5, "Input/output error")))
        run.writer.close()
    again = Log(tmp_path)
    again.append([3])
    again.kill()
    assert counted(tmp_path) == (3, 5)
    assert unreported_streams(tmp_path) == 0


def test_what_a_full_disk_lost_is_reported_once_whatever_step_of_the_report_is_killed(tmp_path: Path) -> None:
    """With more streams than one append reports."""
    for step in range(1, 20):
        log_dir = tmp_path / str(step)
        run = Log(log_dir)
        run.append([1])
        run.cause, run.opened = CAUSES.index("log_error"), 1501
        run.writer.close()
        assert unreported_streams(log_dir) == 1500
        killed = Log(log_dir)
        killed.fail_at = killed.steps + 3 + step, Killed  # its own append takes three
        with suppress(Killed):
            killed.append([2])
        ended = killed.fail_at[0] > killed.steps
        killed.kill()
        for number in (3, 4):
            again = Log(log_dir)
            again.append([number])
            again.kill()
        assert counted(log_dir) == (4, 1500)
        assert unreported_streams(log_dir) == 0
        if ended:
            break
    else:
        pytest.fail("the report has more steps")
    assert step > 9


def test_a_report_that_fails_is_repeated_and_the_last_alive_of_the_run_follows_it(tmp_path: Path) -> None:
    run = Log(tmp_path)
    run.append([1])
    run.opened = 3
    run.writer.close()
    again = Log(tmp_path)
    again.fail_at = again.steps + 5, lambda: OSError(28, "No space left on device")
    again.append([2])
    assert unreported_streams(tmp_path) == 2
    again.append([3])
    again.kill()
    assert unreported_streams(tmp_path) == 0
    assert counted(tmp_path) == (3, 2)
    records = [record for entry in records_in(tmp_path) for record in entry]
    (last,) = [r for r in records if isinstance(r, Alive) and r.stopping]
    assert (last.incarnation, last.tap, last.counters["streams_opened"]) == (run.file.run.incarnation, "t", 3)
    assert {r.cause for r in records if isinstance(r, Lost)} == {"missing"}

"""Totals of runs after kill -9, in a torn file, and with more runs than are kept."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from ingest.record_log.interface import LogFull
from ingest.record_log.run_totals import MAX_RUNS, RunTotals, RunTotalsFile, RunTotalsWriter, read_run_totals


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
    path.write_bytes(data + b"half of one")
    assert read_run_totals(tmp_path) == {b: RunTotals(7)}
    assert a not in read_run_totals(tmp_path)
    path.unlink()
    assert read_run_totals(tmp_path) == {}


class Log:
    """A writer that reads the stored totals during an append."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.seen: list[RunTotals] = []
        self.full = False

    def append(self, payloads: Sequence[bytes]) -> None:
        self.seen += read_run_totals(self.log_dir).values()
        if self.full:
            raise LogFull("full")

    def close(self) -> None: ...


def test_totals_are_stored_before_an_append_and_streams_in_log_after_it(tmp_path: Path) -> None:
    (tmp_path / "w0").mkdir()
    log = Log(tmp_path)
    now = RunTotals()
    writer = RunTotalsWriter(log, RunTotalsFile(tmp_path / "w0", str(uuid.uuid4())), lambda: now)
    now = RunTotals(streams_opened=3, streams_in_log=2)
    writer.append([b"x"])
    assert list(read_run_totals(tmp_path).values()) == [now]
    now = RunTotals(streams_opened=6, streams_in_log=5)
    log.full = True
    with pytest.raises(LogFull):
        writer.append([b"y"])
    writer.close()
    assert log.seen == [RunTotals(3, 0), RunTotals(6, 2)]
    assert list(read_run_totals(tmp_path).values()) == [RunTotals(6, 2)]

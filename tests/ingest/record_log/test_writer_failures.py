"""An exception in any method or function of the log's writers loses at most the entries of its own append.

The places are taken from the code, so a new one is covered, and fails here if the appends of this file do not reach it.
"""

from __future__ import annotations

import inspect
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from streamgauge.ingest.record_log import embedded_writer, run_totals
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter, SegmentAges
from streamgauge.ingest.record_log.interface import LogBroken
from streamgauge.ingest.record_log.run_totals import RunTotals, RunTotalsFile, RunTotalsWriter
from streamgauge.ingest.records import Frames, Lost, pack
from tests.guard_injection import Fault, derived, methods
from tests.ingest.record_log.entries import drain, frames, records_of, writer_of

APPENDS = 40
ENTRY_BYTES = 10_000
SEGMENT_BYTES = 40_000
FULL: dict[str, Any] = {"cap_bytes": 500_000}
AGED: dict[str, Any] = {"cap_bytes": 2**26, "max_age_s": 0.0}
BEFORE_OR_AFTER_APPENDS = {
    "EmbeddedWriter.__init__", "EmbeddedWriter.__exit__", "EmbeddedWriter.close", "EmbeddedWriter._continue_at",
    "EmbeddedWriter.stats", "RunTotalsFile.__init__", "RunTotalsFile.close", "RunTotalsWriter.__init__", "RunTotalsWriter.close",
    "SegmentAges.__init__", "embedded_writer.check_partition", "embedded_writer.log_identity", "embedded_writer.open_segment",
    "embedded_writer.last_offset", "embedded_writer.sealed_at", "embedded_writer.highest_cursor", "embedded_writer.lock_file",
    "embedded_writer.remove_partial_files",
    # Of the next start.
    "run_totals._resolved", "run_totals.list_segments", "run_totals.open_segment", "run_totals._slots", "run_totals._unpacked",
    "run_totals._in_order", "run_totals.write_private", "run_totals._has_memory", "run_totals._memory_path", "run_totals._opened_in_memory",
    "run_totals.has_unreported_run",
    # Of `forget`.
    "run_totals.resolve_ended_runs",
    # Of `status`.
    "run_totals._runs", "run_totals.read_run_totals", "run_totals.unreported_streams", "run_totals.incarnations_of",
    "run_totals.list_partitions",
    # After an error of the disk: tests of `embedded_writer`.
    "EmbeddedWriter._quarantine", "embedded_writer.quarantine", "embedded_writer._translated", "embedded_writer.is_damage",
}  # fmt: skip


def functions(module: ModuleType) -> list[tuple[Any, str]]:
    """The functions of this package that a module uses."""
    found = inspect.getmembers(module, inspect.isfunction)
    return [(module, name) for name, made in found if ".record_log." in made.__module__]


PLACES = [
    (owner, name)
    for owner, name in (
        *(
            (kind, name)
            for kind in (EmbeddedWriter, SegmentAges, RunTotalsWriter, RunTotalsFile)
            for name in methods(kind)
        ),
        *functions(embedded_writer),
        *functions(run_totals),
    )
    if f"{owner.__name__.rpartition('.')[2]}.{name}" not in BEFORE_OR_AFTER_APPENDS
]


def append_under(fault: Fault, owner: Any, name: str, log_dir: Path, options: dict[str, Any]) -> set[int]:
    """Append to a log with a killed run and two other partitions. Returns the numbers of the entries whose append succeeded."""
    with writer_of(log_dir, "w1", segment_bytes=SEGMENT_BYTES) as other:
        for number in range(10):
            other.append([pack([frames("other", number, ENTRY_BYTES)], compress=False)])
    # Reporting the loss of these small streams would take as much space as they do.
    with writer_of(log_dir, "w2", segment_age_s=0.0) as other:
        for segment in range(2):
            small = [frames(f"{segment}-{stream}-{uuid.uuid4()}", 0, 1) for stream in range(200)]
            other.append([pack(small, compress=True)])
    folder = log_dir / "w0"
    folder.mkdir()
    ended = RunTotalsFile(folder, str(uuid.uuid4()))
    ended.write(RunTotals(streams_opened=3, wall_ns=1))
    ended.close()
    writer = writer_of(log_dir, segment_bytes=SEGMENT_BYTES, sync_s=0.0, **options)
    file = RunTotalsFile(folder, str(uuid.uuid4()))
    totals = RunTotalsWriter(writer, file, RunTotals, folder)
    kept = set()
    with pytest.MonkeyPatch.context() as patch:
        made = (
            fault.instead_of(getattr(owner, name)) if inspect.ismodule(owner) else derived(owner, name, fault)
        )
        patch.setattr(owner, name, made)
        for number in range(APPENDS):
            try:
                totals.append([pack([frames("ours", number, ENTRY_BYTES)], compress=False)])
            except (RuntimeError, OSError, LogBroken):
                continue
            kept.add(number)
    totals.close()
    return kept


@pytest.mark.parametrize(
    ("owner", "name"), [pytest.param(*p, id=f"{p[0].__name__.rpartition('.')[2]}.{p[1]}") for p in PLACES]
)
def test_exception_at_any_place_loses_at_most_its_append(owner: Any, name: str, tmp_path: Path) -> None:
    raised = 0
    for case, options in (("full", FULL), ("aged", AGED)):
        log_dir = tmp_path / case
        fault = Fault(always=False)
        kept = append_under(fault, owner, name, log_dir, options)
        raised += fault.raised
        assert len(kept) >= APPENDS - fault.raised
        found = drain(log_dir)
        records = records_of(found)
        stored = [record.seq for record in records if isinstance(record, Frames) and record.stream == "ours"]
        assert stored == sorted(set(stored))
        lost = {
            seq
            for record in records
            if isinstance(record, Lost) and record.stream == "ours"
            for seq in range(record.seq, record.last_seq + 1)
        }
        assert kept <= {*stored, *lost}
        # The partition is released, and the offsets go on.
        with writer_of(log_dir) as writer:
            writer.append([b"next"])
            assert writer.next_offset > max(entry.offset for entry in found if entry.partition == "w0")
    assert raised

"""Reconciliation: separate sources of the terms, and reports of unknown terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.analytics.storage.reconciliation import (
    Captured,
    Reconciliation,
    TapRun,
    captured,
    unread_in_folder,
)
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.run_totals import RunTotals
from tests.analytics.log_entries import entries, stream_id


def run(number: int, opened: int, *, stopped: bool) -> TapRun:
    return TapRun(
        "tap-1",
        0,
        f"incarnation-{number}",
        number * 1000,
        number * 1000 + 500,
        stopped,
        {"streams_opened": opened},
    )


def test_last_report_of_a_cleanly_ended_remote_run_is_exact() -> None:
    assert captured([run(1, 5, stopped=True), run(2, 7, stopped=True)], {}, {}, now_ms=10_000) == Captured(
        12, 12
    )


def test_run_totals_before_and_after_are_the_bounds_of_captured() -> None:
    before = {"incarnation-2": RunTotals(streams_opened=9, streams_in_log=8)}
    after = {"incarnation-2": RunTotals(streams_opened=11, streams_in_log=10)}
    found = captured([run(1, 5, stopped=True), run(2, 7, stopped=False)], before, after, now_ms=10_000)
    assert found == Captured(5 + 8, 5 + 11)


def test_killed_run_has_exact_totals() -> None:
    totals = {"incarnation-1": RunTotals(streams_opened=7, streams_in_log=6)}
    assert captured([run(1, 5, stopped=False)], totals, totals, now_ms=61_500) == Captured(6, 7)


def test_run_that_began_between_the_reads_has_lower_bound_zero() -> None:
    after = {"incarnation-1": RunTotals(streams_opened=3, streams_in_log=3)}
    assert captured([], {}, after, now_ms=0) == Captured(0, 3)


def test_unfinished_remote_run_adds_to_the_lower_bound_and_is_reported_as_unknown() -> None:
    found = captured([run(1, 5, stopped=False)], {}, {}, now_ms=61_500)
    assert (found.at_least, found.at_most) == (5, None)
    note = "streams of tap tap-1 worker 0 since its last report, 60 s ago"
    assert found.unknown == (note + ": it did not end cleanly, or does not reach the log",)


def test_running_remote_tap_is_no_fault() -> None:
    found = captured([run(1, 5, stopped=False)], {}, {}, now_ms=6_500)
    assert found.unknown == ("streams of tap tap-1 worker 0 since its last report, 5 s ago",)


@pytest.mark.parametrize(
    ("at_least", "at_most", "stored", "reconciles"),
    [(10, 10, 10, True), (10, 10, 9, False), (10, 10, 11, False), (10, 12, 11, True), (10, None, 99, True)],
)
def test_reconciles_if_the_sum_lies_between_the_bounds_of_captured(
    at_least: int, at_most: int | None, stored: int, reconciles: bool
) -> None:
    reconciliation = Reconciliation(
        Captured(at_least, at_most), stored=stored - 4, expired=1, lost=1, open=1, in_log=1
    )
    assert reconciliation.accounted == stored
    assert reconciliation.reconciles is reconciles


def test_streams_after_the_position_are_found_in_the_log(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        writer.append(list(entries(range(4), width=4)))
        at = writer.next_offset
        writer.append(list(entries(range(10, 13), width=4)))
        writer.append([b"garbage"])
        unread = unread_in_folder(tmp_path / "log", {"w0": at})
        assert unread.stream_ids == {stream_id(n) for n in (10, 11, 12)}
        assert unread.complete
        assert len(unread_in_folder(tmp_path / "log", {}).stream_ids) == 7

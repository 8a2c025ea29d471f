"""The ledger is a bounded ring, counts evicted rows, and round-trips as JSON lines."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.ledger import Ledger, LedgerRow, RemoteLedger, RowBuilder, decode_lines
from streamgauge.simulator.server import Simulator


def row(seq: int, **more: Any) -> LedgerRow:
    return LedgerRow(
        seq=seq, request_id=f"r{seq}", client_request_id=True, wall_ns=0, received_ns=1, complete_ns=2, **more
    )


def test_ring_keeps_the_newest_rows_and_counts_evicted_ones() -> None:
    ledger = Ledger(limit=3)
    for _ in range(5):
        ledger.add(row(ledger.next_seq()))
    assert [r.seq for r in ledger.rows()] == [2, 3, 4]
    assert (ledger.dropped, ledger.total) == (2, 5)


def test_rows_are_selected_by_number_and_request_id() -> None:
    ledger = Ledger()
    for _ in range(4):
        ledger.add(row(ledger.next_seq()))
    assert [r.seq for r in ledger.rows(after=1)] == [2, 3]
    assert [r.seq for r in ledger.rows(request_id="r2")] == [2]


def test_lines_decode_to_the_same_rows() -> None:
    ledger = Ledger()
    ledger.add(row(0, outputs_ns=[3, 4], finish_reason="stop"))
    ledger.add(row(1))
    assert decode_lines(ledger.lines()) == list(ledger.rows())


def test_copy_keeps_the_newest_rows_and_counts_the_others_apart(simulator: Simulator) -> None:
    for _ in range(5):
        simulator.ledger.add(row(simulator.ledger.next_seq(), end_ns=3))
    copy = RemoteLedger(simulator.url, most_rows=3)
    for _ in range(2):
        copy.refresh()
        assert [r.seq for r in copy.rows()] == [2, 3, 4]
        assert (copy.forgotten, copy.dropped) == (2, 0)


def outcome(**more: Any) -> tuple[str | None, str | None, str | None]:
    row_builder = RowBuilder(row(0, **more), keep_text=False)
    row_builder.ended(10)
    return row_builder.row.expected_outcome, row_builder.row.error_type, row_builder.row.error_phase


def test_first_event_decides_the_outcome() -> None:
    streamed: dict[str, Any] = {"streamed": True, "status": 200}
    truncated = {"fault": "truncate", "fault_ns": 5}
    assert outcome(**streamed, terminal_ns=5) == ("ok", None, None)
    assert outcome(**streamed, terminal_ns=5, client_left_ns=6) == ("ok", None, None)
    assert outcome(**streamed, client_left_ns=6) == ("client_abort", "client_abort", "pre_first_output")
    assert outcome(**streamed, **truncated) == ("truncated", "stream_truncated", "pre_first_output")
    assert outcome(**streamed, **truncated, first_output_ns=4) == (
        "truncated",
        "stream_truncated",
        "mid_stream",
    )
    assert outcome(status=503, error_type="overloaded") == ("http_error", "overloaded", "pre_headers")
    assert outcome(fault="reset_before_head", fault_ns=3) == (
        "upstream_reset",
        "upstream_reset",
        "pre_headers",
    )

"""The ledger is a bounded ring that says what it dropped, and travels as JSON lines without a loss."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.ledger import Account, Ledger, LedgerRow, read_lines


def row(seq: int, **more: Any) -> LedgerRow:
    return LedgerRow(
        seq=seq, request_id=f"r{seq}", client_request_id=True, wall_ns=0, received_ns=1, complete_ns=2, **more
    )


def test_ring_keeps_the_newest_and_counts_what_fell_out() -> None:
    ledger = Ledger(limit=3)
    for _ in range(5):
        ledger.add(row(ledger.next_seq()))
    assert [r.seq for r in ledger.rows()] == [2, 3, 4]
    assert (ledger.dropped, ledger.total) == (2, 5)


def test_rows_after_a_number_and_of_one_request() -> None:
    ledger = Ledger()
    for _ in range(4):
        ledger.add(row(ledger.next_seq()))
    assert [r.seq for r in ledger.rows(after=1)] == [2, 3]
    assert [r.seq for r in ledger.rows(request_id="r2")] == [2]


def test_lines_read_back_as_the_same_rows() -> None:
    ledger = Ledger()
    ledger.add(row(0, outputs_ns=[3, 4], finish_reason="stop"))
    ledger.add(row(1))
    assert read_lines(ledger.lines()) == list(ledger.rows())


def ended(**more: Any) -> tuple[str | None, str | None, str | None]:
    account = Account(row(0, **more), keep_text=False)
    account.ended(10)
    return account.row.expected_outcome, account.row.error_type, account.row.error_phase


def test_what_comes_first_decides_the_outcome() -> None:
    streamed: dict[str, Any] = {"streamed": True, "status": 200}
    truncated = {"fault": "truncate", "fault_ns": 5}
    assert ended(**streamed, terminal_ns=5) == ("ok", None, None)
    assert ended(**streamed, terminal_ns=5, client_left_ns=6) == ("ok", None, None)
    assert ended(**streamed, client_left_ns=6) == ("client_abort", "client_abort", "pre_first_output")
    assert ended(**streamed, **truncated) == ("truncated", "stream_truncated", "pre_first_output")
    assert ended(**streamed, **truncated, first_output_ns=4) == (
        "truncated",
        "stream_truncated",
        "mid_stream",
    )
    assert ended(status=503, error_type="overloaded") == ("http_error", "overloaded", "pre_headers")
    assert ended(fault="reset_before_head", fault_ns=3) == ("upstream_reset", "upstream_reset", "pre_headers")

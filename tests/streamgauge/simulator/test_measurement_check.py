"""Correct measurements pass; each single wrong value is reported by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamgauge.simulator.ledger import LedgerRow, RowBuilder
from streamgauge.simulator.measurement_check import (
    STREAM_COLUMNS,
    Bounds,
    TtftOverhead,
    check_measurements,
    comparison_table,
    pairs,
    report_discrepancies,
    ttft_overhead,
)
from streamgauge.simulator.response_writer import Usage
from streamgauge.simulator.traffic import ClientRow

START = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_000_000


def simulated(number: int = 0, **more: Any) -> LedgerRow:
    """A complete stream of ten output events, 10 ms apart, the first after 100 ms."""
    at = 1_000 * MS
    row: dict[str, Any] = {
        "seq": number, "request_id": f"r{number}", "client_request_id": True, "method": "POST",
        "path": "/v1/chat/completions", "model": "m", "speaker": "openai", "streamed": True, "status": 200,
        "trace_id": "a" * 32, "span_id": "b" * 16, "wall_ns": 0, "received_ns": at - MS, "complete_ns": at,
        "head_ns": at + 80 * MS, "first_byte_ns": at + 90 * MS, "first_event_ns": at + 90 * MS,
        "first_output_ns": at + 100 * MS, "first_answer_ns": at + 100 * MS, "last_output_ns": at + 190 * MS,
        "terminal_ns": at + 191 * MS, "outputs_ns": [at + (100 + 10 * i) * MS for i in range(10)],
        "events": 14, "output_events": 10, "comments": 1, "writes": 12, "body_bytes": 2000, "text_chars": 55,
        "input_tokens": 40, "cached_input_tokens": 8, "output_tokens": 10, "reasoning_tokens": 0, "visible_tokens": 10,
        "usage": Usage(40, 10, 0, 8), "usage_final": True, "finish_reason": "stop", "response_id": "chatcmpl-1",
        "first_output_end_byte": 300,
    }  # fmt: skip
    row_builder = RowBuilder(LedgerRow(**(row | more)), keep_text=False)
    row_builder.ended(at + 192 * MS)
    return row_builder.row


def measured(row: LedgerRow, late_ns: int = MS, **more: Any) -> dict[str, Any]:
    """A correct measurement of the row, with all times `late_ns` later."""

    def since(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - row.complete_ns + late_ns

    span = (row.last_output_ns or 0) - (row.first_output_ns or 0)
    usage = row.usage if row.usage_final else None
    stream: dict[str, Any] = {
        "stream_id": f"s{row.seq}", "request_id": row.request_id, "method": "POST", "dialect": "openai_chat",
        "started_at": START + timedelta(seconds=row.seq), "http_status": row.status, "streamed": row.streamed,
        "outcome": row.expected_outcome, "error_type": row.error_type, "error_phase": row.error_phase,
        "finish_reason": row.finish_reason, "response_id": row.response_id, "trace_id": row.trace_id,
        "span_id": row.span_id, "ttfb_ns": since(row.first_byte_ns), "ttfc_ns": since(row.first_event_ns),
        "ttft_ns": since(row.first_output_ns), "ttfo_ns": since(row.first_answer_ns),
        "last_output_ns": since(row.last_output_ns), "waited_client_ns": 0, "tap_delay_ns": 0,
        "itl_ns": span / ((row.visible_tokens or 0) - 1) if usage and (row.visible_tokens or 0) > 1 else None,
        "input_tokens": usage and usage.input_tokens, "output_tokens": usage and usage.output_tokens,
        "reasoning_tokens": usage and usage.reasoning_tokens, "token_source": usage and "usage",
        "cached_input_tokens": usage and usage.cached_input_tokens, "event_count": row.events,
        "output_event_count": row.output_events, "text_chars": row.text_chars, "reasoning_chars": row.reasoning_chars,
        "tool_call_count": row.tool_calls, "comment_count": row.comments, "response_bytes": row.body_bytes,
        "malformed_events": row.malformed_events, "response_index": row.response_index,
    }  # fmt: skip
    return stream | more


def client_row(row: LedgerRow, **more: Any) -> ClientRow:
    """The client's measurement, 2 ms later."""
    client: dict[str, Any] = {
        "request_id": row.request_id, "model": "m", "path": row.path, "streamed": True,
        "started_ns": row.complete_ns - MS, "body_bytes": row.body_bytes, "body_sha256": row.body_sha256,
        "reads": [((row.first_output_ns or 0) + 2 * MS, 300)],
    }  # fmt: skip
    return ClientRow(**(client | more))


def kinds(*args: Any, **more: Any) -> list[str]:
    return [discrepancy.kind for discrepancy in check_measurements(*args, **more)]


def test_correct_measurements_pass() -> None:
    rows = [simulated(i) for i in range(8)]
    assert (
        check_measurements(rows, [measured(row) for row in rows], clients=[client_row(row) for row in rows])
        == []
    )


def test_stream_columns_lists_the_columns_that_are_read() -> None:
    assert set(measured(simulated())) == set(STREAM_COLUMNS)


@pytest.mark.parametrize(
    ("column", "wrong_value", "kind"),
    [
        ("outcome", "truncated", "outcome"),
        ("outcome", "tap_lost", "outcome"),
        ("outcome", "client_abort", "outcome"),
        ("http_status", 500, "http_status"),
        ("streamed", False, "streamed"),
        ("error_type", "x", "error_type"),
        ("error_phase", "mid_stream", "error_phase"),
        ("trace_id", "c" * 32, "trace_id"),
        ("span_id", "c" * 16, "span_id"),
        ("dialect", "unknown", "dialect"),
        ("event_count", 13, "event_count"),
        ("event_count", 15, "event_count"),
        ("output_event_count", 9, "output_event_count"),
        ("comment_count", 0, "comment_count"),
        ("malformed_events", 1, "malformed_events"),
        ("text_chars", 54, "text_chars"),
        ("reasoning_chars", 1, "reasoning_chars"),
        ("tool_call_count", 1, "tool_call_count"),
        ("response_bytes", 1999, "response_bytes"),
        ("finish_reason", "length", "finish_reason"),
        ("response_id", "", "response_id"),
        ("input_tokens", 32, "input_tokens"),
        ("output_tokens", 11, "output_tokens"),
        ("output_tokens", None, "output_tokens"),
        ("reasoning_tokens", None, "reasoning_tokens"),
        ("cached_input_tokens", 0, "cached_input_tokens"),
        ("token_source", "chunks", "token_source"),
        ("ttfb_ns", 89 * MS, "ttfb_ns"),
        ("ttfc_ns", 89 * MS, "ttfc_ns"),
        ("ttfo_ns", 99 * MS, "ttfo_ns"),
        ("itl_ns", 9.0 * MS, "itl_ns"),
        ("itl_ns", None, "itl_ns"),
    ],
)
def test_one_wrong_column_is_one_discrepancy(column: str, wrong_value: object, kind: str) -> None:
    row = simulated()
    assert kinds([row], [measured(row) | {column: wrong_value}]) == [kind]


@pytest.mark.parametrize(("waited", "kind"), [(9, []), (8, ["itl_ns"])])
def test_itl_is_shorter_by_at_most_the_waits(waited: int, kind: list[str]) -> None:
    row = simulated()
    stream = measured(row)
    itl_ns = stream["itl_ns"] - MS  # 9 gaps
    waits = {"waited_client_ns": waited * MS - MS, "tap_delay_ns": MS}
    assert kinds([row], [stream | waits | {"itl_ns": itl_ns}]) == kind
    assert kinds([row], [stream | waits | {"itl_ns": stream["itl_ns"] + MS}]) == ["itl_ns"]


def test_ttft_earlier_than_the_write_is_impossible() -> None:
    row = simulated()
    found = check_measurements([row], [measured(row, ttft_ns=100 * MS - 2_000)])
    assert "impossible" in str(next(d for d in found if d.kind == "ttft_ns"))


def test_ttft_longer_than_the_clients_is_impossible() -> None:
    row = simulated()
    assert kinds([row], [measured(row, late_ns=4 * MS)], clients=[client_row(row)]) == ["client ttft"]


def test_late_ttft_states_its_bound() -> None:
    row = simulated()
    found = check_measurements([row], [measured(row, late_ns=50 * MS)], bounds=Bounds(ttft_each_ns=40 * MS))
    assert any(d.kind == "ttft_ns" and "40000000 ns late" in d.note for d in found)


def test_systematic_delay_exceeds_the_median_bound() -> None:
    rows = [simulated(i) for i in range(9)]
    streams = [measured(row, late_ns=60 * MS) for row in rows]
    assert kinds(rows, streams, bounds=Bounds(ttft_median_ns=59 * MS)) == ["median ttft"]
    assert kinds(rows, streams, bounds=Bounds(ttft_median_ns=61 * MS)) == []


def test_ttft_overhead_covers_only_exact_streams() -> None:
    rows = [simulated(i) for i in range(3)]
    rows[2].exact = False
    streams = [
        measured(rows[0], late_ns=2 * MS),
        measured(rows[1], late_ns=6 * MS),
        measured(rows[2], late_ns=90 * MS),
    ]
    overhead = ttft_overhead(pairs(rows, streams))
    assert overhead == TtftOverhead(streams=2, median_ns=4 * MS, largest_ns=6 * MS)
    assert ttft_overhead(pairs([], streams)) is None


def test_table_compares_each_answer_of_a_socket_with_its_own_stream() -> None:
    def answer(index: int, ttft_ms: int) -> LedgerRow:
        at = 1_000 * MS + ttft_ms * MS
        return simulated(
            index, request_id="socket", response_index=index, response_id=f"resp_{index}", status=101,
            first_output_ns=at, first_answer_ns=at, last_output_ns=at + 90 * MS,
        )  # fmt: skip

    rows = [answer(0, 100), answer(1, 400), answer(2, 700)]
    streams = [measured(row, late_ns=MS, response_index=row.response_index) for row in reversed(rows)]
    found = pairs(rows, streams)
    assert [(row.response_id, stream["response_id"]) for row, stream in found] == [
        (f"resp_{i}", f"resp_{i}") for i in range(3)
    ]
    ttft = comparison_table(found)[2].split()
    assert ttft[:6] == ["m", "openai_chat", "3", "0", "401", "400"]


def test_request_that_was_not_measured_is_on_neither_side_of_the_table() -> None:
    rows = [simulated(i) for i in range(3)]
    found = pairs(rows, [measured(rows[0]), measured(rows[2]), measured(rows[2])])
    assert [row.request_id for row, _ in found] == ["r0"]


def test_stretched_span_is_a_discrepancy() -> None:
    row = simulated()
    stream = measured(row, last_output_ns=400 * MS, itl_ns=(400 - 101) * MS / 9)
    assert kinds([row], [stream], bounds=Bounds(span_each_ns=100 * MS)) == ["span"]


def test_missing_doubled_and_unknown_streams() -> None:
    rows = [simulated(0), simulated(1)]
    streams = [measured(row) for row in rows]
    assert kinds(rows, streams[:1]) == ["missing"]
    assert kinds(rows, [*streams, streams[0]]) == ["doubled"]
    assert kinds(rows[:1], streams) == ["unknown"]


def test_requests_with_the_same_id_are_paired_in_order() -> None:
    first, second = simulated(0), simulated(1, request_id="r0", received_ns=2_000 * MS, text_chars=7)
    streams = [measured(second), measured(first)]
    assert check_measurements([first, second], streams) == []


def test_open_stream_is_a_discrepancy() -> None:
    row = simulated()
    row.end_ns = None
    assert kinds([row], [measured(row)]) == ["open"]


def test_get_request_is_not_an_unknown_stream() -> None:
    row = simulated()
    assert check_measurements([row], [measured(row), measured(row, request_id=None, method="GET")]) == []


def test_counts_after_a_reset_are_upper_bounds() -> None:
    row = simulated(fault="reset", fault_ns=1, terminal_ns=None, usage=None, usage_final=False)
    fewer = {
        "event_count": 12,
        "output_event_count": 9,
        "response_bytes": 1500,
        "text_chars": 50,
        "last_output_ns": 1,
    }
    assert check_measurements([row], [measured(row, **fewer)]) == []
    assert kinds([row], [measured(row, event_count=15)]) == ["event_count"]


def test_client_abort_is_accepted_after_the_whole_response_was_sent() -> None:
    row = simulated()
    stream = measured(
        row, outcome="client_abort", error_type="client_abort", error_phase="mid_stream", event_count=9
    )
    assert check_measurements([row], [stream], clients=[client_row(row, aborted=True)]) == []
    assert kinds([row], [stream], clients=[client_row(row)]) == ["outcome"]


def test_client_abort_before_the_response_headers_has_no_status() -> None:
    row = simulated(client_left_ns=1 * MS)
    stream = measured(
        row, outcome="client_abort", error_type="client_abort", error_phase="pre_headers",
        http_status=None, streamed=None, ttft_ns=None, event_count=0,
    )  # fmt: skip
    assert not {"streamed", "http_status"} & set(
        kinds([row], [stream], clients=[client_row(row, aborted=True)])
    )


def test_client_abort_after_the_terminal_is_ok_in_phase_post_finish() -> None:
    row = simulated(client_left_ns=1_200 * MS)
    stream = measured(row, error_phase="post_finish")
    assert row.expected_outcome == "ok"
    assert check_measurements([row], [stream]) == []
    assert kinds([simulated()], [stream]) == ["error_phase"]


def test_abort_before_the_upstream_request_is_not_an_unknown_stream() -> None:
    row = simulated()
    stream = measured(row, outcome="client_abort")
    assert check_measurements([], [stream], clients=[client_row(row, aborted=True)]) == []


def test_changed_bytes_are_discrepancies() -> None:
    row = simulated()
    assert kinds([row], [measured(row)], clients=[client_row(row, body_sha256="0")]) == ["client body"]
    assert kinds([row], [measured(row)], clients=[client_row(row, body_bytes=1)]) == ["client bytes"]


def test_tap_may_lose_accepts_losses_but_no_duplicates() -> None:
    rows = [simulated(0), simulated(1)]
    lost = measured(rows[0], outcome="tap_lost")
    assert check_measurements(rows, [lost], tap_may_lose=True) == []
    assert kinds(rows, [lost]) == ["outcome", "missing"]
    assert kinds(rows[:1], [lost, lost], tap_may_lose=True) == ["doubled"]


def test_error_type_and_phase_are_compared() -> None:
    row = simulated(
        status=429, fault="http_429", error_type="requests", terminal_ns=None, usage=None, usage_final=False
    )
    assert check_measurements([row], [measured(row)]) == []
    assert kinds([row], [measured(row, error_type="rate_limit_exceeded")]) == ["error_type"]


def test_discrepancy_prints_as_one_line() -> None:
    row = simulated()
    (found,) = check_measurements([row], [measured(row, output_tokens=11)])
    assert str(found) == "r0: output_tokens: simulated 10, measured 11 (openai m, fault none)"


def test_report_prints_the_first_discrepancies_and_counts_all() -> None:
    rows = [simulated(i) for i in range(5)]
    said: list[str] = []
    assert report_discrepancies(check_measurements(rows, []), limit=2, write=said.append) == 5
    assert len(said) == 3
    assert said[-1] == "… 5 in total: 5 missing"

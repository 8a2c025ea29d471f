"""Generated inner streams of a gateway: what a second tap between the gateway and the model server observes.

The gateway adds time before it forwards, delays each event, and pauses once in some streams. Some first attempts fail. All
values are consistent: the parts of a hop add up to the outer stream.
"""

from __future__ import annotations

import random
import statistics
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

OUTER_GATEWAY = "litellm"
INNER_GATEWAYS = ("vllm-direct", "vllm-spare")
MATCHED_BY = ("span", "trace", "response_id", "fingerprint")
MS = 1_000_000
SHARE_OF_UNMATCHED = 0.05
CHANGES = (
    ("model", "gpt-4o-mini", "gpt-4o-mini-2024-07-18", 0.5),
    ("heartbeats", "3", "0", 0.15),
    ("output_tokens", "118", "121", 0.05),
    ("finish_reason", "stop", "length", 0.02),
)
"""(what, outer value, inner value, share of the hops)."""

Row = dict[str, Any]


@dataclass
class Inner:
    """The inner streams of one outer stream, and the rows of `hops`, `hop_changes` and `gateway_stalls`."""

    rows: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    hops: list[Row] = field(default_factory=list)
    changes: list[Row] = field(default_factory=list)
    stalls: list[Row] = field(default_factory=list)


def inner_streams(rng: random.Random, outer: Row, events: list[Row]) -> Inner:
    """The streams that the gateway opened for an outer stream. Empty if they are not matched."""
    found = Inner()
    if rng.random() < SHARE_OF_UNMATCHED or outer["end_ns"] < 30 * MS:
        return found
    clock_error_ns = rng.choice((0, 0, 0, 400_000))
    before_ns = int(rng.uniform(3, 14) * MS)
    if events and rng.random() < 0.1:
        lost_ns = outer["ttft_ns"] // 4
        _add_failed_attempt(rng, found, outer, before_ns, lost_ns, clock_error_ns)
        before_ns += lost_ns
    _add_last_attempt(rng, found, outer, events, before_ns, clock_error_ns)
    return found


def _add_failed_attempt(
    rng: random.Random, found: Inner, outer: Row, before_ns: int, lost_ns: int, clock_error_ns: int
) -> None:
    failed = _inner_row(rng, outer, before_ns, INNER_GATEWAYS[0]) | {
        "outcome": "http_error", "http_status": 503, "error_type": "overloaded_error", "error_phase": "pre_headers",
        "end_ns": lost_ns - 2 * MS, "streamed": False, "input_tokens": None, "event_count": 0, "output_event_count": 0,
        "waited_upstream_ns": lost_ns - 2 * MS, "waited_client_ns": 0, "tap_delay_ns": 0,
    }  # fmt: skip
    found.rows.append(failed)
    found.hops.append(_hop(outer, failed, 1, "span", before_ns, clock_error_ns) | {"lost_ns": lost_ns})


def _add_last_attempt(
    rng: random.Random, found: Inner, outer: Row, events: list[Row], before_ns: int, clock_error_ns: int
) -> None:
    attempt = len(found.hops) + 1
    inner = _inner_row(rng, outer, before_ns, INNER_GATEWAYS[attempt - 1])
    how = "span" if attempt > 1 else rng.choice(MATCHED_BY)
    if not events:
        inner |= {name: outer.get(name) for name in ("outcome", "http_status", "error_type", "error_phase")}
        inner |= {"end_ns": max(1, outer["end_ns"] - before_ns - MS), "streamed": False}
        found.rows.append(inner)
        found.hops.append(_hop(outer, inner, attempt, how, before_ns, clock_error_ns))
        return
    at, delays, paused_ns = _event_times(rng, found, outer, events, before_ns)
    inner_id = inner["stream_id"]
    found.events += [
        {**event, "stream_id": inner_id, "at_ns": when} for event, when in zip(events, at, strict=True)
    ]
    outputs = [when for event, when in zip(events, at, strict=True) if event["kind"] in ("text", "reasoning")]
    copied = (
        "outcome", "http_status", "error_type", "error_phase", "finish_reason", "output_tokens", "reasoning_tokens",
        "cached_input_tokens", "token_source", "event_count", "output_event_count", "text_chars", "reasoning_chars",
        "response_bytes", "delivered_bytes", "burstiness", "icl_p50_ns", "icl_p95_ns", "icl_p99_ns", "icl_max_ns",
        "stall_count", "stalled_ns",
    )  # fmt: skip
    tail_ns = int(rng.uniform(0.5, 4) * MS) + paused_ns
    end_ns = max(outputs[-1] + 1, outer["end_ns"] - before_ns - tail_ns)
    ttft_ns, last_ns, tokens = outputs[0], outputs[-1], outer["output_tokens"]
    inner |= {name: outer.get(name) for name in copied} | {
        "headers_ns": at[0], "ttfb_ns": at[0], "ttfc_ns": at[0], "ttft_ns": ttft_ns, "ttfo_ns": ttft_ns,
        "last_output_ns": last_ns, "terminator_ns": outer["terminator_ns"] and end_ns, "end_ns": end_ns,
        "itl_ns": (last_ns - ttft_ns) / (tokens - 1),
        "tps_user": (tokens - 1) * 1e9 / max(1, last_ns - ttft_ns), "tps_e2e": tokens * 1e9 / last_ns,
        "waited_upstream_ns": end_ns - 150_000, "waited_client_ns": 50_000, "tap_delay_ns": 100_000,
    }  # fmt: skip
    found.rows.append(inner)
    ranked = sorted(delays)
    found.hops.append(_hop(outer, inner, attempt, how, before_ns, clock_error_ns) | {
        "added_ttft_ns": outer["ttft_ns"] - ttft_ns, "added_tail_ns": outer["end_ns"] - before_ns - end_ns,
        "added_event_p50_ns": int(statistics.median(ranked)), "added_event_p95_ns": ranked[int(len(ranked) * 0.95)],
        "added_event_max_ns": ranked[-1], "aligned_event_count": len(ranked), "merged_event_count": len(ranked) // 50,
        "split_event_count": 0, "buffered_share": rng.uniform(0, 0.1), "gateway_stall_count": len(found.stalls),
    })  # fmt: skip
    found.changes += [
        {"outer_stream_id": outer["stream_id"], "inner_stream_id": inner_id, "outer_started_at": outer["started_at"],
         "what": what, "outer_value": outer_value, "inner_value": inner_value}
        for what, outer_value, inner_value, share in CHANGES if rng.random() < share
    ]  # fmt: skip


def _event_times(
    rng: random.Random, found: Inner, outer: Row, events: list[Row], before_ns: int
) -> tuple[list[int], list[int], int]:
    """(times of the inner events, delays of the output events, total pause of the gateway), in ns."""
    at: list[int] = []
    delays: list[int] = []
    first_delay_ns = int(rng.lognormvariate(3.3, 0.4) * MS)
    paused_ns = 0
    previous: Row | None = None
    for event in events:
        is_output = event["kind"] in ("text", "reasoning")
        gap_ns = event["at_ns"] - previous["at_ns"] if previous and is_output else 0
        if previous and previous["kind"] == event["kind"] and gap_ns > 550 * MS and rng.random() < 0.4:
            paused_ns += gap_ns - 20 * MS
            found.stalls.append({"stream_id": outer["stream_id"], "seq": event["seq"]})
        delay_ns = (int(rng.lognormvariate(0.3, 0.6) * MS) if delays else first_delay_ns) + paused_ns
        earliest_ns = at[-1] if at else 100_000
        at.append(max(earliest_ns, event["at_ns"] - before_ns - delay_ns))
        if is_output:
            delays.append(event["at_ns"] - before_ns - at[-1])
            previous = event
    return at, delays, paused_ns


def _inner_row(rng: random.Random, outer: Row, before_ns: int, gateway: str) -> Row:
    copied = (
        "provider", "dialect", "operation", "method", "path", "request_model", "response_model", "trace_id", "trace_flags",
        "response_id", "streamed", "input_tokens", "comment_count", "malformed_events", "lost_bytes", "choice_count",
        "tool_failure_count", "tool_call_count", "aborted_after_terminal", "unterminated_tail", "stall_count",
    )  # fmt: skip
    return {name: outer.get(name) for name in copied} | {
        "stream_id": uuid.UUID(int=rng.getrandbits(128), version=4), "gateway": gateway, "tap": "tap-1",
        "client_id": "9a7e9a7e", "started_at": outer["started_at"] + timedelta(microseconds=before_ns // 1000),
        "span_id": f"{rng.getrandbits(64):016x}", "parent_span_id": outer["span_id"], "client_start_ns": -200_000,
        "connected_ns": 80_000, "request_sent_ns": 90_000, "request_bytes": 900,
    }  # fmt: skip


def _hop(outer: Row, inner: Row, attempt: int, how: str, before_ns: int, clock_error_ns: int) -> Row:
    return {
        "outer_stream_id": outer["stream_id"], "inner_stream_id": inner["stream_id"],
        "outer_started_at": outer["started_at"], "outer_gateway": outer["gateway"], "inner_gateway": inner["gateway"],
        "model": outer["request_model"], "matched_by": how, "attempt": attempt, "inner_outcome": inner["outcome"],
        "inner_error_type": inner["error_type"], "gateway_before_ns": before_ns, "clock_error_ns": clock_error_ns,
        "clock_offset_ns": 3_000_000_000 if clock_error_ns else 0,
    }  # fmt: skip

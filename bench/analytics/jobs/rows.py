"""The rows that the other contenders compute: one per event, and one per stream with TTFT, ITL and tokens.

This is less work than Streamgauge does: no quantiles, stalls, roll-ups or spans, one dialect, one choice. Standard library
only.
"""

from __future__ import annotations

from typing import Any

TABLES = """
CREATE TABLE events (stream_id UUID, seq INTEGER, at_ns BIGINT, kind VARCHAR, chars INTEGER, finish_reason VARCHAR);
CREATE TABLE streams (stream_id UUID, model VARCHAR, ttft_ns BIGINT, itl_ns DOUBLE, input_tokens BIGINT, output_tokens BIGINT,
    event_count BIGINT);
"""
EVENT_COLUMNS = ("stream_id", "seq", "at_ns", "kind", "chars", "finish_reason")
STREAM_COLUMNS = (
    "stream_id", "model", "ttft_ns", "itl_ns", "input_tokens", "output_tokens", "event_count",
)  # fmt: skip

Row = tuple[Any, ...]


def step(state: dict[str, Any], stream_id: str, message: dict[str, Any]) -> tuple[list[Row], Row | None]:
    """The rows of a message's events, and the stream's row if it has ended. Updates `state`."""
    rows: list[Row] = []
    ended = None
    seq = state.get("seq", 0)
    for event in message["events"]:
        at_ns, data = event["at_ns"], event["data"]
        kind, chars, finish = "other", None, None
        if data is None:
            kind = "terminal"
            ended = _stream_row(state, stream_id, seq + 1)
        elif not data["choices"]:
            kind = "usage"
            state["input"] = data["usage"]["prompt_tokens"]
            state["output"] = data["usage"]["completion_tokens"]
        else:
            choice = data["choices"][0]
            text, finish = choice["delta"].get("content"), choice["finish_reason"]
            if text:
                kind, chars = "text", len(text)
                if "first" not in state:
                    state["first"], state["model"] = at_ns, data["model"]
                state["last"] = at_ns
            elif finish:
                kind = "finish"
        rows.append((stream_id, seq, at_ns, kind, chars, finish))
        seq += 1
    state["seq"] = seq
    return rows, ended


def _stream_row(state: dict[str, Any], stream_id: str, events: int) -> Row:
    first, last, tokens = state.get("first"), state.get("last"), state.get("output")
    itl_ns = (
        (last - first) / (tokens - 1)
        if first is not None and last > first and tokens and tokens > 1
        else None
    )
    return stream_id, state.get("model"), first, itl_ns, state.get("input"), tokens, events

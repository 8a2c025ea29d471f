"""Made-up streams of one hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamgauge.analytics.hops.comparison import STREAM_COLUMNS, Stall, Stream
from streamgauge.analytics.schema.frames import frame
from streamgauge.analytics.schema.tables import EVENTS

MS = 1_000_000


def stream(*events: tuple[Any, ...], stalls: Sequence[Stall] = (), **row: Any) -> Stream:
    """A stream of events (ms, chars[, kind[, choice]]), with these values in its row."""
    whole = [(*event, *("text", 0)[len(event) - 2 :]) for event in events]
    at_ns = [round(event[0] * MS) for event in whole]
    values: dict[str, list[Any]] = {
        "seq": list(range(len(whole))),
        "at_ns": at_ns,
        "kind": [event[2] for event in whole],
        "choice": [event[3] for event in whole],
        "chars": [event[1] for event in whole],
    }
    usual = {
        "outcome": "ok", "dialect": "openai_chat", "streamed": True, "http_status": 200, "request_model": "m",
        "ttft_ns": next((at for at, event in zip(at_ns, whole, strict=True) if event[1]), None),
        "end_ns": at_ns[-1] if at_ns else 0,
    }  # fmt: skip
    return Stream(dict.fromkeys(STREAM_COLUMNS) | usual | row, frame(EVENTS, values, values), stalls)

"""The spans of one trace as lanes: client, tap, gateway and whatever else told of itself, parents above their children. Pure.

The table has the tap's own spans, which belong to a stream, and those that clients and gateways sent (`--otlp-listen`). Where
they sent none, the tap tells: it sees both ends of each stream, so it can say how long the client's request and the gateway's
answer were seen from here. Such a lane is marked as observed, and gives way to the real span where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Span = dict[str, Any]
OBSERVED = "as the tap saw it"


def with_observed(spans: Sequence[Span], streams: Sequence[Mapping[str, Any]]) -> list[Span]:
    """The spans, and for each stream what the tap saw of its client and its gateway; offsets begin at 0 again.

    `spans` need `span_id, parent_span_id, stream_id, offset_ns, duration_ns, kind, attributes`; `streams` a row's own columns.
    """
    known = {s["span_id"]: s for s in spans}
    parents = {s["parent_span_id"] for s in spans if not s["stream_id"]}
    lanes: list[Span] = list(spans)
    for stream in streams:
        tap = known.get(stream["span_id"])
        if tap is None:
            continue
        t0 = tap["offset_ns"]
        end = stream["end_ns"]
        begin = stream["client_start_ns"] or 0
        if tap["parent_span_id"] not in known and end is not None:
            drained = max(stream["client_drain_ns"] or 0, end)
            client = _observed(
                f"client:{tap['span_id']}", "client", None, t0 + begin, drained - begin, "waits and reads"
            )
            lanes = [client] + [{**s, "parent_span_id": client["span_id"]} if s is tap else s for s in lanes]
        if tap["span_id"] not in parents and stream["request_sent_ns"] is not None and end is not None:
            sent = stream["request_sent_ns"]
            name = f"gateway {stream['gateway'] or ''}".strip()
            lanes.append(
                _observed(f"gateway:{tap['span_id']}", name, tap["span_id"], t0 + sent, end - sent, "answers")
            )
    first = min((s["offset_ns"] for s in lanes), default=0)
    return [{**s, "offset_ns": s["offset_ns"] - first} for s in lanes]


def _observed(
    span_id: str, who: str, parent: str | None, offset_ns: int, duration_ns: int, does: str
) -> Span:
    return {
        "span_id": span_id,
        "parent_span_id": parent,
        "name": f"{who} {does}",
        "offset_ns": offset_ns,
        "duration_ns": max(duration_ns, 0),
        "kind": "observed",
        "status": "unset",
        "attributes": json.dumps({"service.name": f"{who.split()[0]}, {OBSERVED}"}),
    }


def nested(spans: Sequence[Span]) -> list[Span]:
    """The spans below their parents, with `depth`; a span whose parent is not here is a root."""
    known = {s["span_id"] for s in spans}
    children: dict[str | None, list[Span]] = {}
    for span in spans:
        parent = (
            span["parent_span_id"]
            if span["parent_span_id"] in known and span["parent_span_id"] != span["span_id"]
            else None
        )
        children.setdefault(parent, []).append(span)
    placed: list[Span] = []
    stack = [(span, 0) for span in reversed(children.get(None, []))]
    while stack:
        span, depth = stack.pop()
        placed.append({**span, "depth": depth})
        stack += [(child, depth + 1) for child in reversed(children.pop(span["span_id"], []))]
    # Spans that are each other's parents have no root: they come last rather than never.
    there = {s["span_id"] for s in placed}
    return placed + [{**s, "depth": 0} for s in spans if s["span_id"] not in there]


def service(span: Mapping[str, Any]) -> str:
    """Which part of the way a span belongs to."""
    try:
        attributes = json.loads(span["attributes"] or "{}")
    except ValueError:
        attributes = {}
    named = attributes.get("service.name") if isinstance(attributes, dict) else None
    return str(named or span["kind"])

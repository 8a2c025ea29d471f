"""Order the spans of one trace, and add observed spans for clients and gateways that sent none. Pure.

The store has the tap's own spans, which have a `stream_id`, and the spans that clients and gateways sent to `--otlp-listen`.
The tap sees both ends of a stream. If the client or the gateway sent no span, `with_observed` adds one from the tap's times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Span = dict[str, Any]
OBSERVED = "observed by the tap"


def with_observed(spans: Sequence[Span], streams: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Add the observed spans of the streams to the spans. The earliest span has offset 0.

    `spans` need `span_id, parent_span_id, stream_id, offset_ns, duration_ns, kind, attributes`; `streams` are rows of
    `queries.traces.streams_of`.
    """
    by_id = {s["span_id"]: s for s in spans}
    parents = {s["parent_span_id"] for s in spans if not s["stream_id"]}
    found: list[Span] = list(spans)
    for stream in streams:
        tap = by_id.get(stream["span_id"])
        if tap is None:
            continue
        t0_ns, end_ns = tap["offset_ns"], stream["end_ns"]
        if tap["parent_span_id"] not in by_id and end_ns is not None:
            begin_ns = stream["client_start_ns"] or 0
            drained_ns = max(stream["client_drain_ns"] or 0, end_ns)
            client = _observed("client", tap["span_id"], t0_ns + begin_ns, drained_ns - begin_ns)
            found = [client] + [{**s, "parent_span_id": client["span_id"]} if s is tap else s for s in found]
        sent_ns = stream["request_sent_ns"]
        if tap["span_id"] not in parents and sent_ns is not None and end_ns is not None:
            gateway = _observed("gateway", tap["span_id"], t0_ns + sent_ns, end_ns - sent_ns)
            name = f"gateway {stream['gateway'] or ''}".strip()
            found.append({**gateway, "name": name, "parent_span_id": tap["span_id"]})
    first_ns = min((s["offset_ns"] for s in found), default=0)
    return [{**s, "offset_ns": s["offset_ns"] - first_ns} for s in found]


def _observed(service_name: str, tap_span_id: str, offset_ns: int, duration_ns: int) -> Span:
    return {
        "span_id": f"{service_name}:{tap_span_id}",
        "parent_span_id": None,
        "name": service_name,
        "offset_ns": offset_ns,
        "duration_ns": max(duration_ns, 0),
        "kind": "observed",
        "status": "unset",
        "attributes": json.dumps({"service.name": f"{service_name}, {OBSERVED}"}),
    }


def nested(spans: Sequence[Span]) -> list[Span]:
    """Each span followed by its children, with its `depth`. A span without a known parent is a root."""
    ids = {s["span_id"] for s in spans}
    children: dict[str | None, list[Span]] = {}
    for span in spans:
        parent = span["parent_span_id"]
        known = parent in ids and parent != span["span_id"]
        children.setdefault(parent if known else None, []).append(span)
    ordered: list[Span] = []
    stack = [(span, 0) for span in reversed(children.get(None, []))]
    while stack:
        span, depth = stack.pop()
        ordered.append({**span, "depth": depth})
        stack += [(child, depth + 1) for child in reversed(children.pop(span["span_id"], []))]
    # Spans that are each other's parents have no root. They come last.
    reached = {s["span_id"] for s in ordered}
    return ordered + [{**s, "depth": 0} for s in spans if s["span_id"] not in reached]


def service(span: Mapping[str, Any]) -> str:
    """The `service.name` of a span, else its kind."""
    try:
        attributes = json.loads(span["attributes"] or "{}")
    except ValueError:
        attributes = {}
    name = attributes.get("service.name") if isinstance(attributes, dict) else None
    return str(name or span["kind"])

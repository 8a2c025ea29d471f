"""Traces of other services: one of 5,000 spans, and one with errors, hostile text, different clocks and a missing parent."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import duckdb

from tests.dashboard.generated_store import insert

LARGE_TRACE, SPANS = "b" * 32, 5_000
ODD_TRACE = "e" * 32
HOSTILE = """<img src=x onerror="window.hostile=1"><script>window.hostile=1</script>'"&</summary></details>"""
MS = 1_000_000


def span(trace_id: str, number: int, parent: int | None, name: str, at_ms: float, length_ms: float, began: datetime,
         service: str = "app", **more: Any) -> dict[str, Any]:  # fmt: skip
    """A row of `spans`. The number is its id."""
    return {
        "trace_id": trace_id, "span_id": f"{number:016x}", "parent_span_id": None if parent is None else f"{parent:016x}",
        "name": name, "kind": "internal", "started_at": began + timedelta(milliseconds=at_ms), "start_ns": 0,
        "duration_ns": round(length_ms * MS), "status": "unset", "status_message": None,
        "attributes": json.dumps({"service.name": service}), "events": "[]", **more,
    }  # fmt: skip


def insert_traces(connection: duckdb.DuckDBPyConnection, began: datetime) -> None:
    """Insert both traces."""
    rows = [span(LARGE_TRACE, 1, None, "evaluate all documents", 0, 60_000, began)]
    rows += [
        span(LARGE_TRACE, i, 1 if i < 20 else i % 18 + 2, f"document {i}", i * 10, 9, began, "worker")
        for i in range(2, SPANS + 1)
    ]
    rows[-1] |= {"status": "error", "status_message": "the last document failed"}
    more = {"attributes": json.dumps({"service.name": HOSTILE, HOSTILE: HOSTILE, "list": [1, {"a": HOSTILE}]}),
            "events": json.dumps([{"name": HOSTILE, "at_ns": 5 * MS, "attributes": {HOSTILE: HOSTILE}}]),
            "status": "error", "status_message": HOSTILE}  # fmt: skip
    rows += [
        span(ODD_TRACE, 1, None, "plan the journey", 0, 900, began),
        span(ODD_TRACE, 2, 1, HOSTILE, 50, 300, began, **more),
        span(ODD_TRACE, 3, 2, "asks earlier than its parent", 20, 100, began, "other clock"),
        span(ODD_TRACE, 4, 99, "has an unknown parent", 400, 0, began),
        span(ODD_TRACE, 5, 1, "long name " * 40, 500, 400, began, attributes="no JSON", events="no JSON"),
    ]
    insert(connection, "spans", rows)

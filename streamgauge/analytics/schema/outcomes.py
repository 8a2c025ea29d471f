"""Groups of the values of `outcome`, in Python and as SQL over the tables `streams` and `stream_minutes`.

An error rate is errors / counted streams. Streams with an outcome of `NOT_COUNTED` show neither a success nor an error of the
upstream, so they are in neither number. Requests that the tap refused are in no count or share of requests, and neither are the
operations of `NO_REQUESTS`. Of a WebSocket, its answers are.
"""

from __future__ import annotations

from streamgauge.analytics.schema.dimensions import HAS_ROLLUPS

OK = "ok"
REFUSED = "refused"
NOT_COUNTED = ("client_abort", "tap_lost", REFUSED)
NOT_ERRORS = (OK, *NOT_COUNTED)
ERRORS = (
    "http_error",
    "connect_error",
    "inband_error",
    "truncated",
    "upstream_reset",
    "idle_timeout",
    "malformed",
)

IS_REQUEST = f"outcome <> '{REFUSED}' AND {HAS_ROLLUPS}"
REQUESTS = f"count(*) FILTER ({IS_REQUEST})"
"""Number of requests in rows of `streams`, without those that the tap refused."""
ANSWERED = ("input_tokens", "ttft_ns")
"""Columns of `streams`. A model has answered a request if one of them is known."""
IS_ANSWERED = f"coalesce({', '.join(ANSWERED)}) IS NOT NULL"
IS_COUNTED = f"outcome NOT IN {NOT_COUNTED}"
IS_ERROR = f"outcome NOT IN {NOT_ERRORS}"
ERROR_RATE = f"count(*) FILTER ({IS_ERROR}) / nullif(count(*) FILTER ({IS_COUNTED}), 0)"
"""Error rate of requests (`IS_REQUEST`). NULL without counted streams."""
IS_GOOD = f"meets_objective AND outcome = '{OK}'"
IS_BAD = "NOT meets_objective"
"""SQL conditions: a stream is known to meet its objective; a stream failed or is known to miss a limit of its objective."""
BY_OUTCOME = ",\n    ".join(
    f"coalesce(sum(stream_minutes.streams) FILTER (outcome = '{outcome}'), 0)::BIGINT AS {outcome}"
    for outcome in (*ERRORS, *NOT_COUNTED)
)
"""Columns of the view `errors_by_minute`: the streams of each outcome but ok."""

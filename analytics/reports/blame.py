"""Who took the time of streams: upstream, gateway, tap or client. Of many streams in SQL, of one in Python.

The columns of `streams` split the whole stream between upstream, client and tap. A hop takes the gateway's part from the
upstream's: the time from the last byte of the request to the gateway's first attempt, and the added tail. Failed attempts count
as upstream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamgauge.analytics.reports import Query, hops
from streamgauge.analytics.reports.selection import Selection, instant

CAUSES = ("upstream", "gateway", "tap", "client")


def quantiles(query: Query, selection: Selection) -> dict[str, float | None]:
    """`streams`, and `upstream_p50_ns, upstream_p95_ns, gateway_p50_ns …` of each cause, over the streams with known parts.

    Parts are those of `stream_blame.whole_stream`. `gateway` is over the streams with a hop. The inner stream of a selected
    outer stream is a part of it and not counted.
    """
    within = hops.within(selection)
    columns = ", ".join(f"quantile_cont({cause}_ns, [0.5, 0.95]) AS {cause}_q" for cause in CAUSES)
    names = ", ".join(
        f"{cause}_q[{i}] AS {cause}_{name}_ns" for cause in CAUSES for i, name in ((1, "p50"), (2, "p95"))
    )
    found: dict[str, float | None] = query(f"""
        WITH outer_hops AS (
                SELECT outer_stream_id AS stream_id, min(gateway_before_ns) AS before_ns,
                    coalesce(sum(added_tail_ns), 0) AS tail_ns
                FROM hops WHERE {within} GROUP BY ALL),
            inner_streams AS (
                SELECT inner_stream_id FROM hops
                WHERE outer_started_at >= {instant(selection.since)} - INTERVAL 1 HOUR
                    AND outer_started_at < {instant(selection.until)} AND {hops.outer_where(selection)}),
            parts AS (
                SELECT waited_upstream_ns, tap_delay_ns AS tap_ns, waited_client_ns AS client_ns,
                    CASE WHEN before_ns IS NOT NULL THEN greatest(0, least(waited_upstream_ns,
                        tail_ns + greatest(0, before_ns - coalesce(request_sent_ns, 0)))) END AS gateway_ns,
                    waited_upstream_ns - coalesce(gateway_ns, 0) AS upstream_ns
                FROM streams LEFT JOIN outer_hops USING (stream_id)
                WHERE {selection.where()} AND waited_upstream_ns IS NOT NULL
                    AND stream_id NOT IN (SELECT inner_stream_id FROM inner_streams))
        SELECT streams, {names} FROM (SELECT count(*) AS streams, {columns} FROM parts)""").to_dicts()[0]
    return found


# One stream. Pure.

Row = Mapping[str, Any]


def whole_stream(row: Row, attempts: Sequence[Row]) -> dict[str, int]:
    """Cause → ns from t0 to the end of the stream. Empty if it is unknown.

    `row` is a row of `streams`. `attempts` are the rows of `hops` with it as the outer stream; without them there is no gateway.
    """
    upstream_ns, client_ns, tap_ns = (
        row[name] for name in ("waited_upstream_ns", "waited_client_ns", "tap_delay_ns")
    )
    if upstream_ns is None or client_ns is None or tap_ns is None:
        return {}
    return _with_gateway(upstream_ns, gateway_ns(row, attempts)) | {"tap": tap_ns, "client": client_ns}


def first_token(row: Row, attempts: Sequence[Row]) -> dict[str, int]:
    """Cause → ns from t0 to the first token. Empty without a matched attempt that has output."""
    added = next((a["added_ttft_ns"] for a in attempts if a["added_ttft_ns"] is not None), None)
    if added is None or row["ttft_ns"] is None:
        return {}
    return _with_gateway(row["ttft_ns"], added - sum(a["lost_ns"] or 0 for a in attempts))


def gateway_ns(row: Row, attempts: Sequence[Row]) -> int | None:
    """The gateway's part of a stream, or None without a hop."""
    if not attempts:
        return None
    before_ns = min(a["gateway_before_ns"] or 0 for a in attempts) - (row["request_sent_ns"] or 0)
    tail_ns = sum(a["added_tail_ns"] or 0 for a in attempts)
    return max(before_ns, 0) + tail_ns


def _with_gateway(total_ns: int, gateway_part_ns: int | None) -> dict[str, int]:
    if gateway_part_ns is None:
        return {"upstream": total_ns}
    part_ns = min(max(gateway_part_ns, 0), total_ns)
    return {"upstream": total_ns - part_ns, "gateway": part_ns}

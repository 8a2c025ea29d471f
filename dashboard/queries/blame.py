"""SQL for who took the time of the selected streams: upstream, gateway, tap or client."""

from __future__ import annotations

from streamgauge.dashboard.queries import Query, hops
from streamgauge.dashboard.queries.selection import Selection, instant

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

"""Who took the time of streams: upstream, gateway, tap or client.

The columns of `streams` split the whole stream between upstream, client and tap. The time from its end to its delivery is the
client's. A hop takes the gateway's part from the
upstream's: the time from the last byte of the request to the gateway's first attempt, and the added tail. Failed attempts count
as upstream. Clocks of two hosts differ, so the gateway's part is limited to what it is taken from.

A server that reports its times (`server_timing`) splits the upstream's part of one stream: queue, prefill and decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamgauge.analytics.reports import Query, formatting, hops
from streamgauge.analytics.reports.selection import Selection, instant
from streamgauge.analytics.schema.dimensions import is_one_of

CAUSES = ("upstream", "gateway", "tap", "client")
SERVER_PARTS = ("queue", "prefill", "decode")
CLIENT_NS = "waited_client_ns + greatest(coalesce(delivered_ns - end_ns, 0), 0)"
"""SQL of the time that a stream waited for its client, until the response was delivered."""


def _parts(streams: str, outer: str) -> str:
    """SQL of the parts of streams with known ones, in ns: `stream_id`, those to the delivery and, with the prefix `first_`, those to the
    first token. `outer` is the condition of their hops."""
    return f"""(
            SELECT stream_id, waited_upstream_ns - coalesce(gateway_ns, 0) AS upstream_ns, gateway_ns, tap_delay_ns AS tap_ns,
                {CLIENT_NS} AS client_ns, ttft_ns - first_gateway_ns AS first_upstream_ns, first_gateway_ns
            FROM (
                SELECT *,
                    CASE WHEN before_ns IS NOT NULL THEN greatest(0, least(waited_upstream_ns,
                        tail_ns + greatest(0, before_ns - coalesce(request_sent_ns, 0)))) END AS gateway_ns,
                    CASE WHEN added_ns IS NOT NULL AND ttft_ns IS NOT NULL THEN greatest(0, least(ttft_ns, added_ns)) END
                        AS first_gateway_ns
                FROM streams LEFT JOIN (
                    SELECT outer_stream_id AS stream_id, min(gateway_before_ns) AS before_ns,
                        coalesce(sum(added_tail_ns), 0)::BIGINT AS tail_ns,
                        arg_min(added_ttft_ns, attempt) - coalesce(sum(lost_ns), 0)::BIGINT AS added_ns
                    FROM hops WHERE {outer} GROUP BY ALL) USING (stream_id)
                WHERE {streams}))"""


def quantiles(query: Query, selection: Selection) -> dict[str, float | None]:
    """`streams`, and `upstream_p50_ns, upstream_p95_ns, gateway_p50_ns …` of each cause, over the streams with known parts.

    `gateway` is over the streams with a hop. The inner stream of a selected outer stream is a part of it and not counted.
    """
    columns = ", ".join(f"quantile_cont({cause}_ns, [0.5, 0.95]) AS {cause}_q" for cause in CAUSES)
    names = ", ".join(
        f"{cause}_q[{i}] AS {cause}_{name}_ns" for cause in CAUSES for i, name in ((1, "p50"), (2, "p95"))
    )
    inner = f"""
            SELECT inner_stream_id FROM hops
            WHERE outer_started_at >= {instant(selection.since)} - INTERVAL 1 HOUR
                AND outer_started_at < {instant(selection.until)} AND {hops.outer_where(selection)}"""
    streams = f"{selection.where()} AND waited_upstream_ns IS NOT NULL AND stream_id NOT IN ({inner})"
    parts = _parts(streams, hops.within(selection))
    sql = f"SELECT streams, {names} FROM (SELECT count(*) AS streams, {columns} FROM {parts})"
    return query(sql).to_dicts()[0]


@dataclass(frozen=True)
class Blame:
    """The parts of one stream: cause → ns."""

    first_token: Mapping[str, int]
    """From t0 to the first token. Empty without a matched attempt that has output."""
    whole: Mapping[str, int]
    """From t0 to the delivery of the response. Empty if it is unknown. Without hops there is no gateway."""
    server: Mapping[str, int]
    """Parts at the server, as it reports them: `SERVER_PARTS`."""

    def server_text(self, ttft_ns: int | None) -> str | None:
        """`Queue at the server 3.1 s of 3.4 s to the first token, prefill 0.2 s`. None without a report."""
        before = [name for name in ("queue", "prefill") if name in self.server]
        if not before:
            return None
        first, *others = sorted(before, key=self.server.__getitem__, reverse=True)
        text = f"{first.capitalize()} at the server {formatting.duration(self.server[first])}"
        text += f" of {formatting.duration(ttft_ns)} to the first token" if ttft_ns is not None else ""
        return ", ".join([text, *(f"{name} {formatting.duration(self.server[name])}" for name in others)])


def of_streams(query: Query, stream_ids: Iterable[object]) -> dict[str, Blame]:
    """Stream id → its parts."""
    ids = [str(stream_id) for stream_id in stream_ids]
    if not ids:
        return {}
    parts = _parts(is_one_of("stream_id", ids), is_one_of("outer_stream_id", ids))
    names = ", ".join(f"{name}_ns" for name in SERVER_PARTS)
    timing = query(
        f"SELECT stream_id, {names} FROM server_timing WHERE {is_one_of('stream_id', ids)} LIMIT {len(ids)}"
    )
    reported = {
        str(stream_id): dict(zip(SERVER_PARTS, values, strict=True)) for stream_id, *values in timing.rows()
    }
    found = {}
    for row in query(f"SELECT * FROM {parts} LIMIT {len(ids)}").to_dicts():
        first, whole = (
            {cause: row[name] for cause in CAUSES if row.get(name := f"{prefix}{cause}_ns") is not None}
            for prefix in ("first_", "")
        )
        known = {"upstream", "tap", "client"} <= whole.keys()
        server = {
            name: value
            for name, value in reported.get(str(row["stream_id"]), {}).items()
            if value is not None
        }
        found[str(row["stream_id"])] = Blame(first, whole if known else {}, server)
    return found

"""SQL for the overview: summary, trends, changes and contributors to bad streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl

from streamgauge.analytics.reports import Query, columns, has_rows
from streamgauge.analytics.reports.columns import DIMENSION, NAME, ms, number, percent
from streamgauge.analytics.reports.selection import (
    DIMENSIONS,
    FILTERS,
    GATEWAY,
    MAX_STREAM_S,
    MIN_SAMPLES,
    MODEL,
    Selection,
    dimension,
    instant,
)
from streamgauge.analytics.schema.dimensions import ENDED_AT, LABEL, OTHER, UNKNOWN_APP
from streamgauge.analytics.schema.objectives import LEAST_BAD
from streamgauge.analytics.schema.outcomes import (
    ERROR_RATE,
    IS_COUNTED,
    IS_ERROR,
    IS_GOOD,
    IS_REQUEST,
    REQUESTS,
)
from streamgauge.analytics.schema.outcomes import IS_BAD as IS_BAD

MAX_MARKERS = 50
MOST_LABEL_VALUES = 50
LABELS_READ = timedelta(hours=6)
CLEAR = 2
SHOWN_AS_ALL = 0.995
"""Share from which a table shows 100 %."""
MAX_OPEN_SHARE = 0.05
"""Share of streams in flight above which an interval is incomplete. It changes a rate by at most this share of the rate."""
LARGEST_INTERVAL_S = 60
STORED_AFTER = timedelta(seconds=2)
"""Time after which a query finds a stream that started."""

COUNTS = f"""
    {REQUESTS} AS requests,
    count(*) FILTER ({IS_ERROR} AND {IS_REQUEST}) AS errors,
    count(*) FILTER (outcome = 'client_abort') AS aborts,
    count(*) FILTER (outcome = 'tap_lost') AS lost,
    count(*) FILTER (outcome = 'refused') AS refused,
    errors / nullif(count(*) FILTER ({IS_COUNTED} AND {IS_REQUEST}), 0) AS error_rate
"""
"""Counts of a group of streams."""

SUMMARY = f"""{COUNTS},
    count(*) FILTER ({IS_COUNTED} AND {IS_REQUEST}) AS counted,
    count(ttft_ns) AS ttft_n,
    quantile_cont(ttft_ns, [0.5, 0.9, 0.95, 0.98, 0.99]) AS ttft_q,
    count(itl_ns) AS itl_n,
    quantile_cont(itl_ns, [0.5, 0.9, 0.95, 0.98]) AS itl_q,
    quantile_cont(tps_user, 0.5) AS tps_user_p50,
    sum(output_tokens)::BIGINT AS output_tokens,
    sum(stall_count)::BIGINT AS stalls
"""
"""Aggregates of a group of streams. A list of quantiles costs as much as one quantile."""

TREND = f"""
    count(*) AS requests,
    {ERROR_RATE} AS error_rate,
    quantile_cont(ttft_ns, {{quantile}}) AS ttft_ns,
    quantile_cont(itl_ns, {{quantile}}) AS itl_ns,
    sum(output_tokens)::BIGINT AS output_tokens,
    count(*) FILTER ({IS_GOOD}) AS good
"""
"""Aggregates of a point of a time series of requests (`IS_REQUEST`), with one quantile of the latencies."""

SUMMARY_COLUMNS = """* EXCLUDE (ttft_q, itl_q),
    ttft_q[1] AS ttft_p50_ns, ttft_q[2] AS ttft_p90_ns, ttft_q[3] AS ttft_p95_ns, ttft_q[4] AS ttft_p98_ns, ttft_q[5] AS ttft_p99_ns,
    itl_q[1] AS itl_p50_ns, itl_q[2] AS itl_p90_ns, itl_q[3] AS itl_p95_ns, itl_q[4] AS itl_p98_ns"""
"""Columns of a query over SUMMARY, with one column per quantile."""


def summary_now_and_before(query: Query, selection: Selection) -> dict[str, dict[str, float | None]]:
    """{"now": …, "before": …}: the columns of SUMMARY and `good`, of the selection and the previous period."""
    summary = f"{SUMMARY}, count(*) FILTER ({IS_GOOD}) AS good"
    return _now_and_before(query, selection, summary, SUMMARY_COLUMNS)


def counts_now_and_before(query: Query, selection: Selection) -> dict[str, dict[str, float | None]]:
    """{"now": …, "before": …}: the columns of COUNTS, of the selection and the previous period."""
    return _now_and_before(query, selection, COUNTS, "*")


def _now_and_before(
    query: Query, selection: Selection, aggregates: str, columns: str
) -> dict[str, dict[str, float | None]]:
    before = selection.before()
    frame = query(f"""
        SELECT {columns} FROM (
            SELECT started_at >= {instant(selection.since)} AS is_now, {aggregates}
            FROM streams
            WHERE started_at >= {instant(before.since)} AND started_at < {instant(selection.until)}
                AND {selection.filters()}
            GROUP BY ALL)""")
    rows = {bool(row.pop("is_now")): row for row in frame.to_dicts()}
    names = ("requests", "errors", "aborts", "lost", "refused", "good")
    empty: dict[str, float | None] = dict.fromkeys(names, 0)
    return {"now": rows.get(True, empty), "before": rows.get(False, empty)}


def data_began(query: Query) -> datetime | None:
    """When the first stored stream started, or None."""
    found: datetime | None = query("SELECT min(first_at) AS at FROM stream_minutes")["at"][0]
    return found


def markers(query: Query, selection: Selection) -> list[tuple[datetime, str]]:
    """The newest `MAX_MARKERS` markers of the time range, such as deployments."""
    frame = query(f"""
        SELECT marked_at, text FROM markers
        WHERE {selection.within("marked_at")}
        ORDER BY marked_at DESC LIMIT {MAX_MARKERS}""")
    return [(at, text) for at, text in frame.iter_rows()]


def in_flight_now_and_before(query: Query, selection: Selection, now: datetime) -> tuple[int, int]:
    """Streams in flight that match the filters, and those that were in flight one length of the range earlier and have ended since."""
    then = instant(now - selection.length)
    row = query(f"""
        SELECT (SELECT count(*) FROM open_streams WHERE {selection.filters()}) AS active,
            (SELECT count(*) FROM streams
                WHERE started_at > {then} - INTERVAL '{MAX_STREAM_S} seconds' AND started_at <= {then}
                    AND {ENDED_AT} > {then} AND {selection.filters()}) AS before""").row(0)
    return int(row[0]), int(row[1])


def widened(query: Query, selection: Selection, name: str, *, most: int = 7) -> Selection:
    """The selection with points wide enough for the median one of the `most` busiest groups. `name`: SQL of the group.

    `query` may return an answer that is a minute old.
    """
    found = query(f"""
        SELECT median(per_s) AS per_s FROM (
            SELECT {name} AS name, count(*) / greatest(epoch(max(started_at) - min(started_at)), 1) AS per_s
            FROM streams WHERE {selection.in_minutes().where()} AND {IS_REQUEST}
            GROUP BY ALL ORDER BY count(*) DESC, name LIMIT {most:d})""")["per_s"][0]
    return selection.widened(float(found or 0))


def complete_until(query: Query, selection: Selection, now: datetime) -> datetime:
    """The instant before which nearly all selected streams have ended. Later numbers are biased: failures are quick to end.

    It begins the latest incomplete intervals. An interval is incomplete while more than MAX_OPEN_SHARE of its streams are in
    flight, of all or of a model or gateway with MIN_SAMPLES streams in it. Without complete streams it is the end of the range.
    """
    step = f"INTERVAL '{min(selection.bucket_s, LARGEST_INTERVAL_S)} seconds'"
    within = f"started_at < {instant(selection.until)} AND {selection.filters()}"
    columns = f'time_bucket({step}, started_at) AS "at", {MODEL} AS model, {GATEWAY} AS gateway'
    edge, has_complete = query(f"""
        WITH open AS (
                SELECT started_at, {columns}, TRUE AS is_open FROM open_streams WHERE {within}
                    AND started_at >= greatest({instant(selection.since)}, {instant(selection.until)} - INTERVAL '{MAX_STREAM_S} seconds')),
            begun AS (
                SELECT * FROM open UNION ALL SELECT started_at, {columns}, FALSE FROM streams
                WHERE {within} AND started_at >= (SELECT min("at") FROM open)),
            intervals AS (
                SELECT "at", bool_or(share > {MAX_OPEN_SHARE} AND (is_all OR n >= {MIN_SAMPLES})) AS is_incomplete FROM (
                    SELECT "at", GROUPING(model, gateway) = 3 AS is_all, count(*) AS n, count(*) FILTER (is_open) / n AS share
                    FROM begun GROUP BY GROUPING SETS (("at"), ("at", model), ("at", gateway)))
                GROUP BY "at"),
            edge AS (
                SELECT min("at") AS "at" FROM intervals WHERE is_incomplete
                    AND "at" > coalesce((SELECT max("at") FROM intervals WHERE NOT is_incomplete), '-infinity'::TIMESTAMPTZ))
        SELECT "at", EXISTS (SELECT 1 FROM streams WHERE {selection.where()} AND started_at < edge."at") AS has_complete FROM edge
        """).row(0)
    # In steps, as the ends of live ranges, so that readers share answers.
    stored = now.replace(microsecond=0, second=now.second - now.second % 2) - STORED_AFTER
    stored = max(min(selection.until, stored), selection.since)
    return min(edge, stored) if edge is not None and has_complete else stored


def judged(query: Query, selection: Selection, now: datetime) -> Selection:
    """The part of the selection whose streams are complete (`complete_until`)."""
    return replace(selection, until=complete_until(query, selection, now))


def timeline_by(
    query: Query, selection: Selection, by: str, *, quantile: float = 0.95, most: int = 7
) -> pl.DataFrame:
    """`at`, `name` and the columns of TREND, of the `most` busiest values of a dimension, of "others" and of "total"."""
    column = dimension(by)
    return query(f"""
        WITH busiest AS (
                SELECT {column} AS value FROM streams WHERE {selection.where()} AND {IS_REQUEST}
                GROUP BY value ORDER BY count(*) DESC, value LIMIT {most:d})
        SELECT "at", coalesce(name, 'total') AS name, {TREND.format(quantile=f"{quantile:.4f}")}
        FROM (
            SELECT *, {selection.bucket()} AS "at",
                CASE WHEN {column} IN (SELECT value FROM busiest) THEN {column} ELSE 'others' END AS name
            FROM streams WHERE {selection.where()} AND {IS_REQUEST})
        GROUP BY GROUPING SETS (("at", name), ("at")) ORDER BY "at", name""")


CHANGES = columns.table(
    "Largest changes",
    NAME,
    DIMENSION,
    ms("ttft_p50_ns", "TTFT p50"),
    percent("ttft_change", "Change", digits=0, sign=True),
    columns.ERROR_RATE,
    number("error_change", "Change", unit="points", digits=1, factor=100, sign=True,
           help="Change of the error rate in percentage points."),
    ms("ttft_p50_before_ns", "TTFT before", priority=3),
    percent("error_rate_before", "Errors before", priority=3),
    number("requests", "Requests", opens={}),
    number("requests_before", "Requests before", priority=4),
    empty="Nothing to compare: no model or gateway has 5 requests both in this range and in the previous {period}.",
    stacks=False,)  # fmt: skip


def largest_changes(query: Query, selection: Selection, *, least: int = 5, most: int = 6) -> pl.DataFrame:
    """Models and gateways with the largest changes from the previous period, with at least `least` requests in both periods.

    `dimension, name, requests, requests_before, ttft_p50_ns, ttft_p50_before_ns, ttft_change` (relative), `error_rate,
    error_rate_before, error_change` (difference).
    """
    before = selection.before()
    return query(f"""
        WITH chosen AS (
                SELECT started_at >= {instant(selection.since)} AS is_now, {MODEL} AS model, {GATEWAY} AS gateway, outcome,
                    ttft_ns
                FROM streams
                WHERE started_at >= {instant(before.since)} AND started_at < {instant(selection.until)}
                    AND {selection.filters()} AND {IS_REQUEST}),
            grouped AS (
                SELECT CASE GROUPING(model, gateway) WHEN 1 THEN 'model' ELSE 'gateway' END AS dimension,
                    coalesce(model, gateway) AS name, is_now, count(*) AS requests, {ERROR_RATE} AS error_rate,
                    quantile_cont(ttft_ns, 0.5) AS ttft_p50_ns
                FROM chosen GROUP BY GROUPING SETS ((model, is_now), (gateway, is_now)))
        SELECT a.dimension, a.name, a.requests, b.requests AS requests_before,
            a.ttft_p50_ns, b.ttft_p50_ns AS ttft_p50_before_ns,
            a.ttft_p50_ns / nullif(b.ttft_p50_ns, 0) - 1 AS ttft_change,
            a.error_rate, b.error_rate AS error_rate_before, a.error_rate - b.error_rate AS error_change
        FROM grouped AS a JOIN grouped AS b ON a.dimension = b.dimension AND a.name = b.name AND a.is_now AND NOT b.is_now
        WHERE a.requests >= {least:d} AND b.requests >= {least:d}
        ORDER BY greatest(coalesce(abs(ttft_change), 0), 5 * coalesce(abs(error_change), 0)) DESC, a.name
        LIMIT {most:d}""")


CONTRIBUTORS = columns.table(
    "Models, gateways and clients with more than their share of affected streams",
    NAME,
    DIMENSION,
    percent("of_all_bad", "Share of affected", digits=0, bar=True, help="Its share of all affected streams of the selection."),
    percent("of_all", "Share of requests", digits=0, help="Its share of all requests."),
    percent("bad_share", "Affected", help="Affected streams / its own requests."),
    number("bad", "Streams", help="Affected streams."),
    replace(columns.ERROR_RATE, priority=2),
    ms("ttft_p95_ns", "TTFT p95", priority=3),
    ms("itl_p95_ns", "ITL p95", digits=1, priority=3),
    empty="No model, gateway or client has clearly more than its share of affected streams, and at least 5 of them.",
    stacks=False,)  # fmt: skip
UNSUCCESSFUL = replace(
    CONTRIBUTORS,
    columns=[
        replace(c, opens={"kind": "unsuccessful"}) if c.name == "bad" else c for c in CONTRIBUTORS.columns
    ],
)
"""If the affected streams are those that failed or missed their objective, which the page Streams can select."""


def top_contributors(
    query: Query,
    selection: Selection,
    bad: str = IS_BAD,
    *,
    labels: Sequence[str] = (),
    least: int = LEAST_BAD,
    most: int = 8,
) -> pl.DataFrame:
    """Values of DIMENSIONS and labels with clearly more bad streams than their share of the requests, and at least `least` of them.

    An unknown app is left out if it has all bad streams, or only bad ones: it names nobody.

    Of each label, the `MOST_LABEL_VALUES` values with the most bad streams are looked at.

    `bad` is the SQL condition of a bad stream. Clearly: by more than `CLEAR` standard deviations of the expected number.

    `dimension, name, requests, bad, bad_share` (of its requests), `of_all_bad` (its share of all bad streams), `of_all`
    (its share of all requests), `error_rate, ttft_p95_ns, itl_p95_ns`. Sorted by the number of bad streams above its share.
    """
    names = ", ".join(DIMENSIONS)
    by_column = DIMENSIONS | {f"label_{name}": f"labels['{name}']" for name in labels}
    columns = ", ".join(f"{column} AS {name}" for name, column in by_column.items())
    dimension = " ".join(f"WHEN grouping({name}) = 0 THEN '{name}'" for name in DIMENSIONS)
    value = " ".join(f"WHEN '{name.removeprefix('label_')}' THEN {name}" for name in by_column)
    counts = f"count(*) AS requests, count(*) FILTER (is_bad) AS bad, {ERROR_RATE} AS error_rate"
    of_labels = "".join(
        f"""
                UNION ALL SELECT '{name}', label_{name}, {counts} FROM chosen WHERE label_{name} IN (
                    SELECT label_{name} FROM chosen WHERE is_bad GROUP BY ALL ORDER BY count(*) DESC, 1 LIMIT {MOST_LABEL_VALUES})
                GROUP BY ALL"""
        for name in labels
    )
    # Quantiles cost more than counts, so they are only those of the groups that are shown.
    return query(f"""
        WITH chosen AS MATERIALIZED (
                SELECT {columns}, coalesce({bad}, FALSE) AS is_bad, outcome, ttft_ns, itl_ns
                FROM streams WHERE {selection.where()} AND {IS_REQUEST}),
            grouped AS (
                SELECT CASE {dimension} END AS dimension, coalesce({names}) AS name, {counts}
                FROM chosen GROUP BY GROUPING SETS ({", ".join(f"({d})" for d in DIMENSIONS)}){of_labels}),
            total AS (SELECT count(*) AS n, count(*) FILTER (is_bad) AS bad FROM chosen),
            shown AS (
                SELECT g.*, g.bad / g.requests AS bad_share, g.bad / total.bad AS of_all_bad, g.requests / total.n AS of_all,
                    g.bad - g.requests * total.bad / total.n AS excess
                FROM grouped AS g, total
                WHERE g.bad >= {least:d} AND excess > {CLEAR} * sqrt(g.requests * total.bad / total.n)
                    AND NOT (g.name = '{UNKNOWN_APP}' AND greatest(bad_share, of_all_bad) >= {SHOWN_AS_ALL})
                ORDER BY excess DESC, g.dimension, g.name LIMIT {most:d})
        SELECT shown.dimension, shown.name, requests, bad, bad_share, of_all_bad, of_all, error_rate,
            quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns, quantile_cont(itl_ns, 0.95) AS itl_p95_ns
        FROM shown JOIN chosen ON shown.name = CASE shown.dimension {value} END
        GROUP BY ALL ORDER BY any_value(excess) DESC, shown.dimension, shown.name""")


def filter_options(query: Query, selection: Selection, *, most: int = 200) -> dict[str, list[str]]:
    """The values of each filter in the time range and in the streams in flight, busiest first.

    Labels are those of finished streams in the newest `LABELS_READ` of the range: a label may have many values.
    """
    labelled_since = max(selection.since, selection.until - LABELS_READ)
    columns = ", ".join(f"{column} AS {name}" for name, column in DIMENSIONS.items())
    union = " UNION ALL ".join(
        f"SELECT * FROM (SELECT '{name}' AS dimension, {name} AS name, count(*) AS n FROM seen GROUP BY ALL "
        f"ORDER BY n DESC LIMIT {most:d})"
        for name in DIMENSIONS
    )
    frame = query(f"""
        WITH seen AS (
            SELECT {columns} FROM streams
            WHERE {selection.within()}
            UNION ALL SELECT {columns} FROM open_streams)
        {union}
        UNION ALL SELECT * FROM (
            SELECT '{LABEL}', label || '=' || value, sum(streams) AS n FROM label_minutes
            WHERE minute >= date_trunc('minute', {instant(labelled_since)}) AND minute < {instant(selection.until)} AND value <> '{OTHER}'
            GROUP BY label, value ORDER BY n DESC, label, value LIMIT {most:d})
        ORDER BY dimension, n DESC, name""")
    found: dict[str, list[str]] = {name: [] for name in FILTERS}
    for filter_name, name in frame.select("dimension", "name").iter_rows():
        found[filter_name].append(name)
    return found


def label_names(query: Query) -> list[str]:
    """The labels of the settings that analytics started with."""
    return query("SELECT name AS label FROM labels ORDER BY label")["label"].to_list()


def any_stream(query: Query) -> bool:
    """Whether the store has any stream, finished or in flight."""
    return has_rows(query, "streams") or has_rows(query, "open_streams")

"""SQL for errors, client aborts and undelivered tokens."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from streamgauge.analytics.reports import Query, columns
from streamgauge.analytics.reports.columns import GROUP, REQUESTS, Row, number, percent, seconds, stream, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection, dimension, instant
from streamgauge.analytics.schema import outcomes
from streamgauge.analytics.schema.dimensions import ENDED_AT
from streamgauge.analytics.schema.outcomes import ERROR_RATE, IS_ERROR, IS_REQUEST
from streamgauge.analytics.schema.strict_clients import CLIENTS, RULES, clients_of

CAUSE = (
    "CASE WHEN outcome = 'http_error' THEN 'HTTP ' || coalesce(http_status::VARCHAR, '?') ELSE outcome END"
)
"""SQL of the short name of an error's cause."""
CAUSE_AND_TYPE = f"""{CAUSE}
    || CASE WHEN error_type IS NULL OR error_type IN (outcome, http_status::VARCHAR) THEN '' ELSE ' · ' || left(error_type, 60) END"""
"""SQL of the cause with the error type, if that says more."""


def causes_timeline(query: Query, selection: Selection, *, most: int = 7) -> pl.DataFrame:
    """`at, cause, n`: errors over time by the `most` frequent causes, and "others"."""
    return query(f"""
        WITH chosen AS (SELECT {selection.bucket()} AS "at", {CAUSE} AS cause FROM streams
                WHERE {selection.where()} AND {IS_ERROR} AND {IS_REQUEST}),
            frequent AS (SELECT cause FROM chosen GROUP BY cause ORDER BY count(*) DESC, cause LIMIT {most:d})
        SELECT "at", CASE WHEN cause IN (SELECT cause FROM frequent) THEN cause ELSE 'others' END AS cause, count(*) AS n
        FROM chosen GROUP BY ALL ORDER BY "at", cause""")


def rate_timeline(query: Query, selection: Selection) -> pl.DataFrame:
    """`at, error_rate, n` of all requests."""
    return query(f"""
        SELECT {selection.bucket()} AS "at", {ERROR_RATE} AS error_rate, count(*) AS n
        FROM streams WHERE {selection.where()} AND {IS_REQUEST} GROUP BY ALL ORDER BY "at" """)


def worst_pairs(query: Query, selection: Selection, *, most: int = 6) -> pl.DataFrame:
    """`at, model, gateway, error_rate, n, errors, total_errors, total_n` over time of the `most` pairs with most errors above
    their share, worst first. The totals are those of the pair."""
    return query(f"""
        WITH chosen AS (
                SELECT *, {DIMENSIONS["model"]} AS the_model, {DIMENSIONS["gateway"]} AS the_gateway
                FROM streams WHERE {selection.where()} AND {IS_REQUEST}),
            overall AS (SELECT {ERROR_RATE} AS rate FROM chosen),
            worst AS (
                SELECT the_model, the_gateway, count(*) FILTER ({IS_ERROR}) AS total_errors, count(*) AS total_n,
                    total_errors - total_n * any_value(overall.rate) AS excess
                FROM chosen, overall GROUP BY the_model, the_gateway HAVING total_errors > 0
                ORDER BY excess DESC, the_model, the_gateway LIMIT {most:d})
        SELECT {selection.bucket()} AS "at", the_model AS model, the_gateway AS gateway, {ERROR_RATE} AS error_rate,
            count(*) AS n, count(*) FILTER ({IS_ERROR}) AS errors, any_value(total_errors) AS total_errors,
            any_value(total_n) AS total_n
        FROM chosen JOIN worst USING (the_model, the_gateway)
        GROUP BY "at", the_model, the_gateway ORDER BY any_value(excess) DESC, model, gateway, "at" """)


def matrix(query: Query, selection: Selection, *, most: int = 200) -> pl.DataFrame:
    """`model, gateway, requests, errors, error_rate` of each pair with requests, most errors first."""
    return query(f"""
        SELECT {DIMENSIONS["model"]} AS model, {DIMENSIONS["gateway"]} AS gateway, {outcomes.REQUESTS} AS requests,
            count(*) FILTER ({IS_ERROR}) AS errors, {ERROR_RATE} AS error_rate
        FROM streams WHERE {selection.where()} AND {IS_REQUEST} GROUP BY ALL
        ORDER BY errors DESC, requests DESC, model, gateway LIMIT {most:d}""")


def _streams_of(cause: Row) -> dict[str, str] | None:
    if cause["error_type"] is None:
        return None
    status = {} if cause["http_status"] is None else {"status": str(cause["http_status"])}
    return {"cause": cause["error_type"], **status}


CAUSES = columns.table(
    "Causes of errors",
    text("error_type", "Error type", opens=_streams_of, help="Opens the streams with this error type and status."),
    number("http_status", "HTTP"),
    text("error_phase", "Phase", min_characters=16, priority=5),
    number("n", "Streams"),
    percent("share", "Share", priority=2, help="Share of all errors in the selection."),
    columns.instant("first_at", "First seen", form="%m-%d %H:%M:%S", priority=2, help="End of the first stream with this error."),
    number("before_onset", "Before onset", priority=2,
           help="Errors with this cause before the onset of the diagnosis: First seen is earlier than the onset because of them."),
    columns.instant("last_at", "Last seen", form="%m-%d %H:%M:%S", priority=3, help="End of the last stream with this error."),
    number("clients", "Clients", priority=4, help="Number of clients with this error."),
    number("models", "Models", priority=7, help="Number of models with this error."),
    number("gateways", "Gateways", priority=7, help="Number of gateways with this error."),
    stream(heading="Example", what="the newest stream with this cause"),
    text("message", "Last message", min_characters=24, priority=6),
    empty="No errors in this selection.",
    zone_of="First and last seen",)  # fmt: skip


def causes(
    query: Query, selection: Selection, onset: datetime | None = None, *, most: int = 100
) -> pl.DataFrame:
    """`http_status, error_type, error_phase, n, share, clients, models, gateways, first_at, last_at, before_onset, stream_id,
    message`: the causes of errors, most frequent first.

    `share` is the share of all errors of the selection. `stream_id` and `message` are those of the newest error. A stream fails
    when it ends, as the onset of a diagnosis counts it. `before_onset` is NULL without an onset.
    """
    before = "NULL::BIGINT" if onset is None else f"count(*) FILTER (failed_at < {instant(onset)})"
    return query(f"""
        SELECT http_status, error_type, error_phase, count(*) AS n, count(*) / sum(count(*)) OVER () AS share,
            count(DISTINCT {DIMENSIONS["client"]}) AS clients, count(DISTINCT {DIMENSIONS["model"]}) AS models,
            count(DISTINCT {DIMENSIONS["gateway"]}) AS gateways, min(failed_at) AS first_at, max(failed_at) AS last_at,
            {before} AS before_onset, arg_max(stream_id, started_at) AS stream_id, arg_max(error_message, started_at) AS message
        FROM (SELECT *, {ENDED_AT} AS failed_at
            FROM streams WHERE {selection.where()} AND {IS_ERROR} AND {IS_REQUEST})
        GROUP BY http_status, error_type, error_phase
        ORDER BY n DESC, http_status, error_type, error_phase LIMIT {most:d}""")


def _violations_of(row: Row) -> dict[str, str]:
    return {"gateway": row["gateway"], "model": row["model"], "kind": "breaks strict clients"}


VIOLATIONS = columns.table(
    "Streams that strict clients reject",
    text("gateway", "Gateway", opens=_violations_of, help="Opens the streams of this gateway and model."),
    text("upstream", "Upstream", priority=5),
    text("model", "Model", priority=2),
    text("clients", "Breaks", min_characters=24),
    text("meaning", "What the streams do", min_characters=32),
    text("rule", "Rule", priority=4),
    number("n", "Streams"),
    percent("share", "Share", digits=0, help="Share of the streams of this place and format."),
    columns.instant("first_at", "First seen", form="%m-%d %H:%M:%S", priority=3),
    columns.instant("last_at", "Last seen", form="%m-%d %H:%M:%S", priority=6),
    stream(heading="Example", what="the newest stream that breaks the rule"),
    empty="No stream of this selection breaks a rule.",
    zone_of="First and last seen",
)


def violations(query: Query, selection: Selection, *, most: int = 100) -> pl.DataFrame:
    """`gateway, upstream, model, rule, dialect, n, share, first_at, last_at, stream_id` (the newest): streams that break rules of
    strict clients, most frequent first. `share` is that of the streams of the place and dialect that were checked. `clients` are
    the names of those that break, `meaning` is what the streams do."""
    place = f"""{DIMENSIONS["gateway"]} AS gateway, coalesce(server_address, '') AS upstream, {DIMENSIONS["model"]} AS model, dialect"""
    found = query(f"""
        WITH chosen AS (SELECT {place}, violations, started_at, stream_id FROM streams
                WHERE {selection.where()} AND violations IS NOT NULL),
            checked AS (SELECT gateway, upstream, model, dialect, count(*) AS checked FROM chosen GROUP BY ALL)
        SELECT gateway, upstream, model, rule, dialect, count(*) AS n, n / any_value(checked) AS share,
            min(started_at) AS first_at, max(started_at) AS last_at, arg_max(stream_id, started_at) AS stream_id
        FROM (SELECT * EXCLUDE (violations), unnest(violations) AS rule FROM chosen WHERE len(violations) > 0)
        JOIN checked USING (gateway, upstream, model, dialect)
        GROUP BY gateway, upstream, model, rule, dialect ORDER BY n DESC, gateway, upstream, model, rule LIMIT {most:d}""")
    rules = found.select("rule", "dialect").rows()
    broken = [", ".join(CLIENTS[c] for c in clients_of(rule, dialect)) for rule, dialect in rules]
    meanings = [RULES[rule].meaning.replace("`", "") if rule in RULES else None for rule, _ in rules]
    return found.with_columns(
        clients=pl.Series(broken, dtype=pl.String), meaning=pl.Series(meanings, dtype=pl.String)
    )


_ABORTS = f"""
    count(*) FILTER (outcome = 'client_abort') AS aborts, aborts / nullif({outcomes.REQUESTS}, 0) AS abort_share,
    count(*) FILTER (outcome = 'client_abort' AND ttft_ns IS NULL) AS before_output,
    sum(output_tokens) FILTER (outcome = 'client_abort')::BIGINT AS output_tokens,
    sum(output_tokens * (1 - least(delivered_bytes / nullif(response_bytes, 0), 1))) FILTER (outcome = 'client_abort')
        AS undelivered_tokens,
    sum(response_bytes - delivered_bytes) FILTER (outcome = 'client_abort')::BIGINT AS undelivered_bytes"""
"""Aggregates of client aborts. Undelivered tokens are estimated from the undelivered share of the bytes."""


def abort_summary(query: Query, selection: Selection) -> dict[str, float | None]:
    """Client aborts: `aborts, abort_share, aborts_with_tokens, output_tokens, undelivered_tokens, undelivered_bytes, before_output,
    lost, refused, after_terminal`.

    - `aborts_with_tokens`: aborted streams with known output tokens. `output_tokens` are their tokens and `undelivered_tokens` the
      undelivered part of them.
    - `before_output`: aborted before the first token.
    - `lost`: streams lost by the tap; `refused`: requests that the tap refused. Neither are aborts.
    - `after_terminal`: the client disconnected after the terminal event, which is no abort.
    """
    return query(f"""
        SELECT {_ABORTS}, count(output_tokens) FILTER (outcome = 'client_abort') AS aborts_with_tokens,
            count(*) FILTER (outcome = 'tap_lost') AS lost,
            count(*) FILTER (outcome = 'refused') AS refused,
            count(*) FILTER (aborted_after_terminal) AS after_terminal
        FROM streams WHERE {selection.where()}""").to_dicts()[0]


ABORTS = columns.table(
    "Client aborts by {by}",
    GROUP,
    REQUESTS,
    number("aborts", "Aborts", help=metric_help("aborts"), opens={"kind": "aborted"}),
    percent("abort_share", "Share"),
    number("before_output", "Before first token", help="The client disconnected while waiting for the first token."),
    seconds("aborted_after_ns", "Median time to abort"),
    number("output_tokens", "Tokens generated", help=metric_help("aborted_tokens")),
    number("undelivered_tokens", "Undelivered tokens", help=metric_help("undelivered")),
    number("undelivered_bytes", "Undelivered bytes", unit="KiB", digits=1, factor=1 / 1024),
    empty="No client aborts in this selection.",)  # fmt: skip


def aborts(query: Query, selection: Selection, by: str, *, most: int = 50) -> pl.DataFrame:
    """`name, requests, aborts, abort_share, before_output, aborted_after_ns` (median), `output_tokens, undelivered_tokens,
    undelivered_bytes` of the groups with client aborts."""
    return query(f"""
        SELECT * FROM (
            SELECT {dimension(by)} AS name, {outcomes.REQUESTS} AS requests, {_ABORTS},
                quantile_cont(end_ns, 0.5) FILTER (outcome = 'client_abort') AS aborted_after_ns
            FROM streams WHERE {selection.where()} GROUP BY ALL)
        WHERE aborts > 0 ORDER BY aborts DESC, name LIMIT {most:d}""")

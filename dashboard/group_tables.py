"""Tables with one row per group: a model, gateway or client, or a cause of errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.schema.clients import NO_CLIENT_NAMES, shortened
from streamgauge.analytics.schema.strict_clients import CLIENTS, RULES, clients_of
from streamgauge.dashboard import filters
from streamgauge.dashboard.html_table import (
    Column,
    Row,
    State,
    instant,
    ms,
    number,
    percent,
    seconds,
    show_table,
)
from streamgauge.dashboard.stream_tables import SESSION, stream_column

REQUESTS = number("requests", "Requests")
STREAMS = number("streams", "Streams")


def group_column(group: str) -> Column:
    """Names of groups. A model, gateway or client is a link that filters the page."""

    def link(row: Row) -> str | None:
        if not filters.of_group(group, "") or row["name"] in (None, *NO_CLIENT_NAMES[1:]):
            return None
        return filters.group_address(group, row["name"])

    return Column(name="name", heading=group.capitalize(), text=shortened, link=link)


def opens_streams(column: Column, by: str | None = None, *, field: str = "name", **changes: str) -> Column:
    """The column with a link to the streams of the group in `field`, by default of the row's `dimension`. The whole row opens it."""

    def link(row: Row) -> str | None:
        return filters.streams_address(by or row["dimension"], row[field], changes)

    # A column that disappears would take the link with it.
    return replace(column, link=link, opens_row=True, priority=0)


def show_quantiles(frame: pl.DataFrame, *, group: str, counted: str = "streams") -> None:
    """Quantiles in ns (`reports.latency.table`). `counted` names the unit of `n`."""
    quantiles = [c for c in frame.columns if c.endswith("_ns")]
    show_table(
        [
            group_column(group),
            opens_streams(number("n", counted.capitalize(), help="With a known value."), group),
            *(ms(name, name.removesuffix("_ns"), digits=1) for name in quantiles),
        ],
        frame,
        label=f"Quantiles by {group}",
        stacks=True,
    )


def show_stalls(frame: pl.DataFrame, *, group: str) -> None:
    """Stalls (`reports.latency.stalls`)."""
    columns = [
        group_column(group),
        number("streams", "Streams", help="Streams with known stalls."),
        opens_streams(number("stalled_streams", "Streams with stalls"), group, kind="stalled"),
        percent("stalled_share", "Share with stalls"),
        number("stalls", "Stalls"),
        seconds("stalled_ns", "Stalled time"),
        percent("stalled_time_share", "Share of output time", digits=2),
        seconds("worst_ns", "Longest gap", digits=2),
    ]
    empty = "Stalls are unknown for these streams."
    show_table(columns, frame, label=f"Stalls by {group}", stacks=True, empty=empty)


def show_throughput(frame: pl.DataFrame, *, group: str) -> None:
    """Tokens and speed (`reports.throughput.table`)."""
    slowest = "The slowest 5 % of streams are at or below this."
    columns = [
        group_column(group),
        opens_streams(REQUESTS, group),
        number("input_tokens", "Tokens in"),
        percent("cached_share", "Cached", help=metric_help("cached")),
        number("output_tokens", "Tokens out"),
        percent("reasoning_share", "Reasoning", help="Reasoning tokens / output tokens."),
        number("output_per_s", "Output", unit="tok/s", digits=1, help=metric_help("tps_total")),
        number("tps_user_p50", "Tokens/s p50", digits=1, help=metric_help("tps_user")),
        number("tps_user_p5", "Tokens/s p5", digits=1, help=slowest),
        number("tps_e2e_p50", "Tokens/s end to end p50", digits=1, help=metric_help("tps_e2e")),
        percent("burstiness_p50", "Burstiness p50", digits=0, help=metric_help("burstiness")),
        percent("known", "Tokens known", digits=0, help="Share of streams with known output tokens."),
    ]
    show_table(columns, frame, label=f"Throughput by {group}", stacks=True)


def show_wasted(frame: pl.DataFrame) -> None:
    """Wasted tokens by model and reason (`reports.throughput.wasted`)."""
    columns = [
        Column(name="model", heading="Model"),
        Column(name="reason", heading="Reason"),
        opens_streams(STREAMS, "model", field="model"),
        number("output_tokens", "Tokens out"),
        number("input_tokens", "Tokens in"),
        number("cost", "Cost", digits=4, help="Needs `--price-file`."),
        Column(name="currency", heading="Currency"),
    ]
    empty = "No wasted tokens in this selection."
    show_table(columns, frame, label="Wasted tokens by model and reason", stacks=True, empty=empty)


def _cost_columns(frame: pl.DataFrame, currency: str) -> list[Column]:
    return [
        number("cost", f"Cost, {currency}", digits=4),
        *(_RANGE if (frame["high"] > frame["low"]).any() else []),
        number("per_1000_output", "Per 1,000 tokens out", digits=4, priority=2),
        number("per_ok", "Per successful request", digits=4, priority=2),
        percent("wasted_share", "Wasted", help=metric_help("wasted_tokens"), priority=1),
        percent("estimated_share", "Estimated", digits=0, priority=3, help=metric_help("cost_estimate")),
        *([] if frame["reported"].is_null().all() else _REPORTED),
    ]


_RANGE = [
    number(name, name.capitalize(), digits=4, priority=4, help=metric_help("cost_estimate"))
    for name in ("low", "high")
]
_REPORTED = [
    number("reported", "Reported, USD", digits=4, priority=2, help=metric_help("cost_reported")),
    number(
        "reported_difference",
        "Difference, USD",
        digits=4,
        sign=True,
        priority=2,
        help=metric_help("cost_reported"),
    ),
]


def show_spend(frame: pl.DataFrame, *, group: str, currency: str) -> None:
    """Cost by group (`reports.spend.table`)."""
    requests = opens_streams(REQUESTS, group) if filters.of_group(group, "") else REQUESTS
    columns = [group_column(group), requests, *_cost_columns(frame, currency)]
    show_table(columns, frame, label=f"Spend by {group}", stacks=True)


def show_budgets(frame: pl.DataFrame) -> None:
    """Budgets in their current period (`reports.spend.budgets`)."""

    def state(reason: str) -> Callable[[Row], State | None]:
        return lambda row: "bad" if row["severity"] and reason in row["reasons"] else None

    columns = [
        Column(name="budget", heading="Budget"),
        Column(name="period", heading="Period", line=True, priority=2),
        instant("ends_at", "Until", form="%m-%d %H:%M", priority=2),
        number("amount", "Amount", digits=2),
        Column(name="spent_text", heading="Spent", number=True, state=state("spent"), help=metric_help("cost")),
        percent("share", "Share", digits=0, bar=True),
        Column(name="forecast_text", heading="Forecast", number=True, state=state("forecast"), help=metric_help("budget_forecast")),
        number("burn_1h", "Burn rate, 1 h", digits=1, state=state("burn"), help=metric_help("budget_burn")),
        percent("estimated_share", "Estimated", digits=0, priority=3, help=metric_help("cost_estimate")),
        number("not_counted", "Not counted", priority=4, help="Its requests of the period without a price in its currency."),
    ]  # fmt: skip
    show_table(columns, frame, label="Budgets", stacks=True, zone_of="Until")


def show_dearest_sessions(frame: pl.DataFrame, *, currency: str) -> None:
    """The dearest sessions (`reports.spend.table`). Each row opens its session."""
    client = Column(name="client", heading="Client", text=shortened)
    columns = [SESSION, client, REQUESTS, *_cost_columns(frame, currency)]
    empty = "No session in this selection has a cost."
    show_table(columns, frame, label="Dearest sessions", stacks=True, empty=empty)


def show_cache(frame: pl.DataFrame, *, group: str, currency: str) -> None:
    """Use of the prompt cache by group (`reports.spend.cache`)."""
    columns = [
        group_column(group),
        percent("hit_share", "Hits", help=metric_help("cached")),
        number("read_tokens", "Tokens read"),
        number("written_tokens", "Tokens written", help="Where the vendor reports them."),
        number("written_5m_tokens", "For 5 min", priority=3, help="Where the vendor reports the lifetime."),
        number("written_1h_tokens", "For 1 h", priority=3, help="Where the vendor reports the lifetime."),
        number("saved", f"Saved, {currency}", digits=4, help="By reads: against the price of other input."),
        number("premium", "Paid for writes", digits=4, help="Above the price of other input.", priority=2),
        number("wasted", "Wasted", digits=4, help="The part of it for writes that no later request read in time."),
        number("net", "Net", digits=4, help="Saved - paid for writes."),
    ]  # fmt: skip
    empty = "No request of this selection reports cached tokens."
    show_table(columns, frame, label=f"Prompt cache by {group}", stacks=True, empty=empty)


def show_causes(frame: pl.DataFrame) -> None:
    """Causes of errors (`reports.errors.causes`). Each links to its streams, and to the newest of them."""
    before = "Errors with this cause before the onset of the diagnosis: First seen is earlier than the onset because of them."
    columns = [
        Column(name="error_type", heading="Error type", link=_streams_of, opens_row=True,
               help="Opens the streams with this error type and status."),
        number("http_status", "HTTP", priority=1),
        Column(name="error_phase", heading="Phase", min_characters=16, priority=5),
        number("n", "Streams", priority=1),
        percent("share", "Share", priority=2, help="Share of all errors in the selection."),
        instant("first_at", "First seen", form="%m-%d %H:%M:%S", priority=2, help="End of the first stream with this error."),
        number("before_onset", "Before onset", priority=2, help=before),
        instant("last_at", "Last seen", form="%m-%d %H:%M:%S", priority=3, help="End of the last stream with this error."),
        number("clients", "Clients", priority=4, help="Number of clients with this error."),
        number("models", "Models", priority=7, help="Number of models with this error."),
        number("gateways", "Gateways", priority=7, help="Number of gateways with this error."),
        stream_column(heading="Example", opens="the newest stream with this cause"),
        Column(name="message", heading="Last message", min_characters=24, priority=6),
    ]  # fmt: skip
    empty, zone_of = "No errors in this selection.", "First and last seen"
    show_table(columns, frame, label="Causes of errors", stacks=True, empty=empty, zone_of=zone_of)


def _streams_of(cause: Row) -> str | None:
    if cause["error_type"] is None:
        return None
    status = {} if cause["http_status"] is None else {"status": str(cause["http_status"])}
    return filters.page_address("streams", {"cause": cause["error_type"], **status})


def show_violations(frame: pl.DataFrame) -> None:
    """Broken rules of strict clients (`reports.errors.violations`)."""
    rows = [
        row
        | {"clients": ", ".join(CLIENTS[c] for c in clients_of(row["rule"], row["dialect"]))}
        | {"meaning": RULES[row["rule"]].meaning.replace("`", "") if row["rule"] in RULES else None}
        for row in frame.to_dicts()
    ]
    kinds = frame.schema | {"clients": pl.String(), "meaning": pl.String()}
    columns = [
        Column(name="gateway", heading="Gateway", link=_violations_of, opens_row=True, help="Opens the streams of this gateway and model."),
        Column(name="upstream", heading="Upstream", priority=5),
        Column(name="model", heading="Model", priority=2),
        Column(name="clients", heading="Breaks", min_characters=24),
        Column(name="meaning", heading="What the streams do", min_characters=32, priority=1),
        Column(name="rule", heading="Rule", priority=4),
        number("n", "Streams", priority=1),
        percent("share", "Share", digits=0, priority=1, help="Share of the streams of this place and format."),
        instant("first_at", "First seen", form="%m-%d %H:%M:%S", priority=3),
        instant("last_at", "Last seen", form="%m-%d %H:%M:%S", priority=6),
        stream_column(heading="Example", opens="the newest stream that breaks the rule"),
    ]  # fmt: skip
    empty, zone_of = "No stream of this selection breaks a rule.", "First and last seen"
    label = "Streams that strict clients reject"
    show_table(
        columns, pl.DataFrame(rows, schema=kinds), label=label, stacks=True, empty=empty, zone_of=zone_of
    )


def _violations_of(row: Row) -> str:
    chosen = {"gateway": row["gateway"], "model": row["model"], "kind": "breaks strict clients"}
    return filters.page_address("streams", chosen)


def show_aborts(frame: pl.DataFrame, *, group: str) -> None:
    """Client aborts and undelivered tokens (`reports.errors.aborts`)."""
    columns = [
        group_column(group),
        REQUESTS,
        opens_streams(number("aborts", "Aborts", help=metric_help("aborts")), group, kind="aborted"),
        percent("abort_share", "Share"),
        number("before_output", "Before first token", help="The client disconnected while waiting for the first token."),
        seconds("aborted_after_ns", "Median time to abort"),
        number("output_tokens", "Tokens generated", help=metric_help("aborted_tokens")),
        number("undelivered_tokens", "Undelivered tokens", help=metric_help("undelivered")),
        number("undelivered_bytes", "Undelivered bytes", unit="KiB", digits=1, factor=1 / 1024),
    ]  # fmt: skip
    empty = "No client aborts in this selection."
    show_table(columns, frame, label=f"Client aborts by {group}", stacks=True, empty=empty)


NAME = Column(name="name", heading="Name", text=shortened, help="Filters all pages by this name.",
              link=lambda row: filters.group_address(row["dimension"], row["name"]))  # fmt: skip
DIMENSION = Column(name="dimension", heading="Kind", line=True, priority=2)


def show_contributors(frame: pl.DataFrame, *, missed_objective: bool) -> None:
    """Groups with clearly more than their share of bad streams (`reports.overview.top_contributors`).

    `missed_objective`: these are the streams that failed or missed their objective, which the page Streams can select.
    """
    bad = number("bad", "Streams", help="Affected streams.")
    columns = [
        NAME,
        DIMENSION,
        percent("of_all_bad", "Share of affected", digits=0, bar=True, help="Its share of all affected streams of the selection."),
        percent("of_all", "Share of requests", digits=0, help="Its share of all requests."),
        percent("bad_share", "Affected", help="Affected streams / its own requests."),
        opens_streams(bad, kind="unsuccessful") if missed_objective else bad,
        percent("error_rate", "Error rate", priority=2, help=metric_help("error_rate")),
        ms("ttft_p95_ns", "TTFT p95", priority=3),
        ms("itl_p95_ns", "ITL p95", digits=1, priority=3),
    ]  # fmt: skip
    label = "Models, gateways and clients with more than their share of affected streams"
    empty = "No model, gateway or client has clearly more than its share of affected streams, and at least 5 of them."
    show_table(columns, frame, label=label, empty=empty)


def show_changes(frame: pl.DataFrame, period: str) -> None:
    """Groups that changed most from the previous `period` (`reports.overview.largest_changes`)."""
    points = "Change of the error rate in percentage points."
    columns = [
        NAME,
        DIMENSION,
        ms("ttft_p50_ns", "TTFT p50"),
        percent("ttft_change", "Change", digits=0, sign=True),
        percent("error_rate", "Error rate", help=metric_help("error_rate")),
        number("error_change", "Change", unit="points", digits=1, factor=100, sign=True, help=points),
        ms("ttft_p50_before_ns", "TTFT before", priority=3),
        percent("error_rate_before", "Errors before", priority=3),
        opens_streams(REQUESTS),
        number("requests_before", "Requests before", priority=4),
    ]
    empty = "Nothing to compare: no model or gateway has 5 requests both in this range and in the previous "
    show_table(columns, frame, label="Largest changes", empty=f"{empty}{period}.")


def show_gateways(frame: pl.DataFrame) -> None:
    """What each gateway adds (`reports.hops.by_gateway`)."""
    columns = [
        Column(name="gateway", heading="Gateway"),
        opens_streams(
            number("streams", "Streams", help="Matched streams between client and gateway."),
            "gateway",
            field="gateway",
        ),
        ms("added_ttft_p50_ns", "Added TTFT p50", digits=1, help=metric_help("hop_ttft")),
        ms("added_ttft_p95_ns", "Added TTFT p95", digits=1, help=metric_help("hop_ttft")),
        ms("event_p50_ns", "Event delay p50", digits=1, help=metric_help("hop_event")),
        ms("event_p95_ns", "Event delay p95", digits=1, help=metric_help("hop_event")),
        ms("event_max_ns", "Event delay max", digits=1, help="Longest delay of any event of these streams."),
        ms("tail_p50_ns", "Tail p50", digits=1, help=metric_help("hop_tail")),
        percent(
            "merged_share", "Merged", help="Events that the gateway merged into others / aligned events."
        ),
        percent(
            "split_share", "Split", help="Events that continue an event of the model server / aligned events."
        ),
        percent("buffered_share", "Buffered", help=metric_help("hop_buffered")),
        number("stalls", "Stalls", help="Stalls that the gateway caused: the model server had no such gap."),
        ms("clock_error_ns", "Clock ±", digits=2, help=metric_help("hop_clock")),
    ]
    show_table(columns, frame, label="Delays by gateways", stacks=True)

"""Spend: budgets; estimated cost by group, over time and by session; what the prompt cache saves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import polars as pl
import streamlit as st

from streamgauge.analytics.query.render import render
from streamgauge.analytics.reports import formatting, has_rows, prompt_reuse, spend
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_frame, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.time_series import time_bars
from streamgauge.dashboard.panels import draw_download, numbers, panel, section
from streamgauge.dashboard.query_runner import QueryError, prefetch, query_catalog, query_month
from streamgauge.dashboard.report_tables import show_report

MOST_SESSIONS = 10


def body(by: str, chosen: Selection) -> None:
    verdict.prefetch_marks(chosen)
    coverage = spend.coverage(query_catalog, chosen)
    if coverage.is_empty():
        page_frame.show_no_matches()
        return
    priced = coverage.drop_nulls("currency")
    if priced.is_empty():
        show_first_steps()
        return
    currencies = priced["currency"].to_list()
    currency = (
        filters.choice("Currency", currencies, currencies[0], key="currency")
        if len(currencies) > 1
        else currencies[0]
    )
    timeline = prefetch(spend.timeline, query_catalog, chosen, by, currency)
    sessions = prefetch(
        spend.table, query_catalog, chosen, spend.BY_SESSION, currency, most=MOST_SESSIONS + 1
    )
    cache = prefetch(spend.cache, query_catalog, chosen, by, currency)
    reuse = prefetch(prompt_reuse.table, query_catalog, chosen, currency)
    budgets = prefetch(spend.budgets, query_month) if has_rows(query_catalog, "budgets") else None
    total, *_ = (table := spend.table(query_catalog, chosen, by, currency)).to_dicts()
    # All answers first, so that the page does not shift while it appears.
    points, of_sessions, of_cache, of_reuse = timeline(), sessions(), cache(), reuse()
    of_budgets = None if budgets is None else _or_error(budgets)
    show_numbers(total | {"currency": currency})
    requests = dict(coverage.iter_rows())
    missing = requests.pop(None, 0)
    elsewhere = sum(requests.values()) - requests[currency]
    notes = [
        f"{formatting.count(missing)} requests have no price: `streamgauge prices check` names their models."
        if missing
        else "",
        f"{formatting.count(elsewhere)} requests are in another currency." if elsewhere else "",
        f"Providers report {spend.with_difference(total)} for {formatting.count(total['reporting'])} requests."
        if total["reporting"]
        else "",
    ]
    st.caption(" ".join(["Estimates from your price list; not a bill.", *filter(None, notes)]))
    if of_budgets is not None:
        section(
            "Budgets",
            "In their current period, whatever the time range and the filters of the page. At most 5 min old.",
        )
        if isinstance(of_budgets, QueryError):
            st.warning(str(of_budgets), icon=":material/warning:")
        else:
            show_report(spend.BUDGETS, of_budgets)
    time = verdict.time_range(chosen)
    group_colors = colors.of_groups(points)
    panel(
        f"Cost by {by}",
        points,
        lambda f: time_bars(f, "cost", time, series="name", series_colors=group_colors, unit=currency),
        metric_help("cost"),
        legend=group_colors,
        on_click=filters.opens_streams(time, by=by) if by != spend.BY_SESSION else None,
    )
    groups = table.filter(pl.col("name").is_not_null())
    section(f"By {by}")
    show_report(spend.TABLE, spend.without_range(groups), by=by, currency=currency)
    draw_download("CSV", partial(render, groups, "csv"), f"spend-by-{by}.csv", "text/csv")
    section("Dearest sessions")
    named = of_sessions.filter(pl.col("name").is_not_null(), pl.col("session_id").is_not_null())
    show_report(spend.DEAREST, spend.without_range(named.head(MOST_SESSIONS)), currency=currency)
    section("Prompt cache", metric_help("cache_money"))
    show_report(spend.CACHE, of_cache, by=by, currency=currency)
    section("Reuse of prompts", metric_help("reuse_available"))
    show_report(prompt_reuse.TABLE, of_reuse, currency=currency)


def _or_error(budgets: Callable[[], pl.DataFrame]) -> pl.DataFrame | QueryError:
    """A month may have too many streams for a page, which its range has not."""
    try:
        return budgets()
    except QueryError as e:
        return e


def show_first_steps() -> None:
    st.info("**No prices.** Spend needs a price list: `--price-file`.", icon=":material/payments:")
    st.markdown(
        "`streamgauge prices import FILE --price-file prices.csv` reads the prices of LiteLLM's price map or models.dev's catalog. "
        "Restart analytics with `--price-file prices.csv`."
    )


def show_numbers(total: dict[str, object]) -> None:
    currency = str(total["currency"])

    def cost(name: str) -> str:
        value = total[name]
        return spend.cost_text(float(str(value)) if value is not None else None, currency)

    shares = {name: formatting.share(total[name]) for name in ("wasted_share", "estimated_share")}  # type: ignore[arg-type]
    numbers(
        [
            ("Cost", spend.with_range(total), metric_help("cost")),
            ("Per 1,000 output tokens", cost("per_1000_output"), None),
            ("Per successful request", cost("per_ok"), "Cost of all requests / requests that ended ok."),
            ("Wasted", shares["wasted_share"], metric_help("wasted_tokens")),
            ("Estimated", shares["estimated_share"], metric_help("cost_estimate")),
        ],
        least_px=150,
    )


def draw_page() -> None:
    """Estimated cost by model, gateway, client and session; what the prompt cache saves."""
    with filters.row():
        by = filters.choice("By", [*spend.GROUPS, *filters.label_names()], "model", key="by")
    page_frame.show(partial(body, by))


PAGE = page_frame.Page(draw_page, "Spend", "payments", diagnosed=True)

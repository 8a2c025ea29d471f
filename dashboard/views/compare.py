"""Two selections side by side: differences with confidence intervals, and whether the samples are large enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, query_runner
from dashboard.charts import colors, distributions
from dashboard.confidence_intervals import MIN_N, RESAMPLES, Difference, quantile_difference, rate_difference
from dashboard.metric_cards import Summary
from dashboard.metric_help import metric_help
from dashboard.panels import panel
from dashboard.queries import compare, latency, overview
from dashboard.queries.selection import Selection
from dashboard.query_runner import query

SHIFTS: dict[str, timedelta | None] = {
    "same time": timedelta(0),
    "previous period": None,
    "1 h earlier": timedelta(hours=1),
    "1 d earlier": timedelta(days=1),
    "7 d earlier": timedelta(days=7),
}
SIDE_COLORS = colors.by_name(("A", "B"))
Sides = Mapping[str, Selection]


@dataclass(frozen=True)
class Row:
    """One metric of the comparison."""

    label: str
    less_is_better: bool
    to_text: Callable[[float | None], str]
    found: Difference | None

    @property
    def result(self) -> str:
        found = self.found
        if found is None:
            return "unknown on one side"
        if not found.enough:
            return f"too few streams ({found.a_count} and {found.b_count})"
        if not found.clear:
            return "no clear difference"
        return "B is better" if (found.difference < 0) == self.less_is_better else "B is worse"

    def signed(self, value: float) -> str:
        """A difference with its sign. Differences of shares are in percentage points."""
        text = self.to_text(abs(value)).replace(" %", " points")
        return ("+" if value > 0 else "−" if value < 0 else "±") + text


def choose_side(
    letter: str, default_shift: str, offered: dict[str, list[str]]
) -> Callable[[Selection], Selection]:
    """Draw the widgets of one side. Returns a function from the selection of the page to the selection of this side."""
    st.markdown(f"**{letter}**")
    names = list(SHIFTS)
    shift = st.selectbox(
        "When", names, index=names.index(default_shift), key=f"{letter}-when", bind="query-params"
    )
    selected: dict[str, tuple[str, ...]] = {}
    for name, label in filters.FILTERS.items():
        key = f"{letter}-{name}"
        values = filters.options(offered, name, key=key)
        selected[name] = tuple(
            st.multiselect(label, values, key=key, bind="query-params", placeholder="as in the sidebar")
        )

    def side_of(base: Selection) -> Selection:
        shift_by = SHIFTS[shift]
        back = base.length if shift_by is None else shift_by
        return replace(
            base,
            since=base.since - back,
            until=base.until - back,
            models=selected["model"] or base.models,
            gateways=selected["gateway"] or base.gateways,
            clients=selected["client"] or base.clients,
        )

    return side_of


def compare_samples(a: pl.DataFrame, b: pl.DataFrame) -> list[Row]:
    """Each metric with the confidence interval of its difference."""

    def quantile(
        label: str, column: str, q: float, to_text: Callable[[float | None], str], less_is_better: bool = True
    ) -> Row:
        samples = [f[column].drop_nulls().cast(pl.Float64).to_numpy() for f in (a, b)]
        return Row(label, less_is_better, to_text, quantile_difference(samples[0], samples[1], q))

    is_error = [f.filter("is_counted")["is_error"].cast(pl.Float64).to_numpy() for f in (a, b)]
    return [
        quantile("TTFT p50", "ttft_ns", 0.5, formatting.duration),
        quantile("TTFT p95", "ttft_ns", 0.95, formatting.duration),
        quantile("ITL p50", "itl_ns", 0.5, formatting.duration),
        quantile("ITL p95", "itl_ns", 0.95, formatting.duration),
        quantile("Speed p50", "tps_user", 0.5, formatting.rate, less_is_better=False),
        quantile("End to end p50", "end_ns", 0.5, formatting.duration),
        Row("Error rate", True, formatting.share, rate_difference(is_error[0], is_error[1])),
    ]


def body(base: Selection) -> None:
    sides = {"A": side_a(base), "B": side_b(base)}
    if sides["A"] == sides["B"]:
        st.info("A and B are the same selection. Choose another time, model, gateway or client for one of them.",
                icon=":material/compare_arrows:")  # fmt: skip
        return
    summaries = {letter: compare.summary(query, side) for letter, side in sides.items()}
    for column, letter in zip(st.columns(2), sides, strict=True):
        column.metric(f"{letter}: requests", formatting.count(summaries[letter]["requests"]), border=True)
        column.caption(filters.describe(sides[letter]))
    samples = {letter: compare.sample(query, side) for letter, side in sides.items()}
    if any(f.is_empty() for f in samples.values()):
        st.warning("No comparison: one side has no streams.", icon=":material/warning:")
        return
    show_differences(compare_samples(samples["A"], samples["B"]))
    st.caption(" ".join(method_notes(summaries, min(f.height for f in samples.values()))))
    show_ttft(sides)


def show_differences(rows: list[Row]) -> None:
    unknown = formatting.UNKNOWN
    st.dataframe(
        {
            "Metric": [row.label for row in rows],
            "A": [row.to_text(row.found.a) if row.found else unknown for row in rows],
            "B": [row.to_text(row.found.b) if row.found else unknown for row in rows],
            "B − A": [row.signed(row.found.difference) if row.found else unknown for row in rows],
            "95 % interval": [
                f"{row.signed(row.found.low)} … {row.signed(row.found.high)}" if row.found else unknown
                for row in rows
            ],
            "Result": [row.result for row in rows],
        },
        hide_index=True,
        key="differences",
        alt="Differences between A and B",
    )


def method_notes(summaries: Mapping[str, Summary], smaller_side: int) -> list[str]:
    notes = [
        f"Intervals: percentile bootstrap, {RESAMPLES:,} resamples of up to {compare.SAMPLE_STREAMS:,} streams per side."
    ]
    if any((summary["requests"] or 0) > compare.SAMPLE_STREAMS for summary in summaries.values()):
        notes.append(
            "Larger sides are sampled by a hash of the stream id, so values can differ slightly from other pages."
        )
    if smaller_side < MIN_N:
        notes.append(
            f"The smaller side has {smaller_side} streams. Differences are judged from {MIN_N} streams on each side."
        )
    notes.append(
        "With seven metrics at 95 %, about one in three comparisons of equal selections shows a difference by chance."
    )
    return notes


def show_ttft(sides: Sides) -> None:
    spread = pl.concat(
        latency.distribution(query, side, "ttft_ns", "everything").with_columns(pl.lit(letter).alias("name"))
        for letter, side in sides.items()
    )
    panel(
        "TTFT, cumulative distribution",
        spread,
        lambda f: distributions.ecdf(f, SIDE_COLORS),
        help_text=metric_help("ttft"),
        legend=SIDE_COLORS,
    )


page_frame.title(
    "Compare", "B compared with A. Both use the time range and filters of the sidebar unless set here."
)
try:
    offered = overview.filter_options(query, filters.selection())
except query_runner.QueryError:
    offered = {}
left, right = st.columns(2)
with left.container(border=True):
    side_a = choose_side("A", "previous period", offered)
with right.container(border=True):
    side_b = choose_side("B", "same time", offered)
page_frame.show(body, uses_time_range=False)

"""Two selections side by side: differences with confidence intervals, and an honest word when the sample is too small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, palette, query_runner
from dashboard.bootstrap import ENOUGH, RESAMPLES, Difference, quantile_difference, rate_difference
from dashboard.charts import distributions
from dashboard.metric_help import described
from dashboard.panels import panel
from dashboard.queries import compare, latency, overview
from dashboard.queries.selection import Selection

SHIFTS: dict[str, timedelta | None] = {
    "same time": timedelta(0),
    "the period before": None,
    "1 h earlier": timedelta(hours=1),
    "1 d earlier": timedelta(days=1),
    "7 d earlier": timedelta(days=7),
}


SIDES = palette.of_series(("A", "B"))


@dataclass(frozen=True)
class Line:
    """One row of the comparison."""

    label: str
    help_text: str
    less_is_better: bool
    form: Callable[[float | None], str]
    found: Difference | None


def side(letter: str, default_shift: str, offered: dict[str, list[str]]) -> Callable[[Selection], Selection]:
    """The widgets of one side; gives how the page's selection becomes this side's."""
    st.markdown(f"**{letter}**")
    names = list(SHIFTS)
    shift = st.selectbox(
        "When", names, index=names.index(default_shift), key=f"{letter}-when", bind="query-params"
    )
    chosen: dict[str, tuple[str, ...]] = {}
    for name, label in (("model", "Models"), ("gateway", "Gateways"), ("client", "Clients")):
        key = f"{letter}-{name}"
        options = list(dict.fromkeys([*offered.get(name, []), *st.query_params.get_all(key)]))
        chosen[name] = tuple(
            st.multiselect(label, options, key=key, bind="query-params", placeholder="as in the sidebar")
        )

    def made(base: Selection) -> Selection:
        moved = SHIFTS[shift]
        back = base.length if moved is None else moved
        return replace(
            base,
            since=base.since - back,
            until=base.until - back,
            models=chosen["model"] or base.models,
            gateways=chosen["gateway"] or base.gateways,
            clients=chosen["client"] or base.clients,
        )

    return made


def lines(a: pl.DataFrame, b: pl.DataFrame) -> list[Line]:
    """Each measure of both sides with the interval of its difference."""

    def quantile(
        label: str,
        column: str,
        q: float,
        measure: str,
        form: Callable[[float | None], str],
        less: bool = True,
    ) -> Line:
        one, other = (f[column].drop_nulls().cast(pl.Float64).to_numpy() for f in (a, b))
        return Line(label, described(measure), less, form, quantile_difference(one, other, q))

    judged = [f.filter("judged")["is_error"].cast(pl.Float64).to_numpy() for f in (a, b)]
    return [
        quantile("TTFT p50", "ttft_ns", 0.5, "ttft", formatting.duration),
        quantile("TTFT p95", "ttft_ns", 0.95, "ttft", formatting.duration),
        quantile("ITL p50", "itl_ns", 0.5, "itl", formatting.duration),
        quantile("ITL p95", "itl_ns", 0.95, "itl", formatting.duration),
        quantile("Speed p50", "tps_user", 0.5, "tps_user", formatting.rate, less=False),
        quantile("Length p50", "end_ns", 0.5, "end", formatting.duration),
        Line("Error rate", described("error_rate"), True, formatting.share, rate_difference(*judged)),
    ]


def verdict(line: Line) -> str:
    """What may be said of a difference."""
    found = line.found
    if found is None:
        return "unknown on one side"
    if not found.enough:
        return f"too few streams to say ({found.a_count} and {found.b_count})"
    if not found.clear:
        return "no clear difference"
    return "B is better" if (found.difference < 0) == line.less_is_better else "B is worse"


def body(base: Selection) -> None:
    sides = {"A": make_a(base), "B": make_b(base)}
    if sides["A"] == sides["B"]:
        st.info("A and B are the same selection: choose another time, model, gateway or client for one of them.",
                icon=":material/compare_arrows:")  # fmt: skip
        return
    totals = {letter: compare.summary(query_runner.ask, s) for letter, s in sides.items()}
    columns = st.columns(2)
    for place, letter in zip(columns, sides, strict=True):
        place.metric(f"{letter}: requests", formatting.count(totals[letter]["requests"]), border=True)
        place.caption(filters.said(sides[letter]))
    samples = {letter: compare.sample(query_runner.ask, s) for letter, s in sides.items()}
    if any(f.is_empty() for f in samples.values()):
        st.warning("One side has no streams: nothing to compare.", icon=":material/warning:")
        return
    made = lines(samples["A"], samples["B"])
    st.dataframe(
        {
            "Measure": [m.label for m in made],
            "A": [m.form(m.found.a) if m.found else formatting.UNKNOWN for m in made],
            "B": [m.form(m.found.b) if m.found else formatting.UNKNOWN for m in made],
            "B − A": [signed(m, m.found.difference) if m.found else formatting.UNKNOWN for m in made],
            "95 % interval": [
                f"{signed(m, m.found.low)} … {signed(m, m.found.high)}" if m.found else formatting.UNKNOWN
                for m in made
            ],
            "Verdict": [verdict(m) for m in made],
        },
        hide_index=True,
        key="compared",
        alt="Differences between A and B",
    )
    smallest = min(f.height for f in samples.values())
    words = [
        f"Intervals: percentile bootstrap, {RESAMPLES:,} resamples of up to {compare.SAMPLE:,} streams of each side."
    ]
    if any((totals[x]["requests"] or 0) > compare.SAMPLE for x in sides):
        words.append(
            "Larger sides are sampled by a hash of the stream id, so values here may differ a little from other pages."
        )
    if smallest < ENOUGH:
        words.append(f"The smaller side has {smallest} streams: under {ENOUGH}, differences are not judged.")
    words.append(
        "Seven measures at 95 %: about one in three comparisons of equal things shows one “clear” difference by chance."
    )
    st.caption(" ".join(words))
    spread = pl.concat(
        latency.distribution(query_runner.ask, s, "ttft_ns", "everything").with_columns(
            pl.lit(letter).alias("name")
        )
        for letter, s in sides.items()
    )
    panel(
        "TTFT, share at or below",
        spread,
        lambda f: distributions.ecdf(f, SIDES),
        help_text=described("ttft"),
        legend=SIDES,
    )


def signed(line: Line, value: float) -> str:
    """A difference with its sign; shares in points."""
    text = line.form(abs(value)).replace(" %", " points")
    return ("+" if value > 0 else "−" if value < 0 else "±") + text


page_frame.title(
    "Compare", "B against A, within the sidebar's time range and filters unless a side says otherwise."
)
try:
    offered = overview.choices(query_runner.ask, filters.selection())
except query_runner.QueryError:
    offered = {}
left, right = st.columns(2)
with left.container(border=True):
    make_a = side("A", "the period before", offered)
with right.container(border=True):
    make_b = side("B", "same time", offered)
page_frame.show(body, timed=False)

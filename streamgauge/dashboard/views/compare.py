"""Two groups of streams side by side: failures first, then answers, and lengths and durations of `ok` streams.

URL parameters of this page, besides the time range and the filters of all pages:
- `onset`: an instant in UTC, `2026-01-02T03:04:05`. With it, A is the time before and B the time after the onset, unless
  `A-when` and `B-when` say otherwise. `compare?range=1h&onset=2026-01-02T03:04:05&model=m&gateway=g` is a complete link.
- `A-when`, `B-when`: one of SHIFTS, `before onset`, `after onset`, or a time range as in `zoom`.
- `A-model`, `A-gateway`, `A-client` (repeatable, also with B): replace the filters of all pages for this side.
- `dimension`: one of FURTHER_DIMENSIONS; `A-value`, `B-value` (repeatable): its values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import Query, comparison, formatting, latency, overview
from streamgauge.analytics.reports.comparison import MIN_N, RESAMPLES, Row
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import FURTHER_DIMENSIONS, Selection
from streamgauge.analytics.schema.dimensions import LABEL
from streamgauge.dashboard import filters, page_frame, query_runner, zoom
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import draw
from streamgauge.dashboard.charts.group_charts import ecdf, forest
from streamgauge.dashboard.panels import number, panel, section
from streamgauge.dashboard.query_runner import prefetch, query
from streamgauge.dashboard.report_tables import show_report

PREVIOUS = "previous period"
SHIFTS: dict[str, timedelta | None] = {
    "same time": timedelta(0),
    PREVIOUS: None,
    "1 h earlier": timedelta(hours=1),
    "1 d earlier": timedelta(days=1),
    "7 d earlier": timedelta(days=7),
}
BEFORE, AFTER = "before onset", "after onset"
NO_DIMENSION = "none"
SIDE_COLORS = colors.by_name(("A", "B"))
Ask = Callable[[Query, Selection], Any]
Side = Callable[[Selection], Selection | None]
"""From the selection of the page to that of one side, or to None without an onset that it needs."""


class Offered(NamedTuple):
    """What the widgets of both sides offer."""

    onset: datetime | None
    dimension: str
    values: Mapping[str, Sequence[str]]
    further_values: Sequence[str]


def parse_onset(text: str) -> datetime | None:
    """An instant in UTC, or None."""
    try:
        at = datetime.fromisoformat(text.replace(" ", "T"))
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # Sums with instants near the ends of the calendar overflow.
    return at if 2000 <= at.year <= 9000 else None


def around(base: Selection, onset: datetime, when: str) -> Selection:
    """The part of the time range before or after the onset, or as much time on each side of an onset outside the range."""
    since, until = base.since, base.until
    if not since < onset < until:
        since, until = onset - base.length, onset + base.length
    return (
        replace(base, since=since, until=onset) if when == BEFORE else replace(base, since=onset, until=until)
    )


def choose_side(letter: str, default_when: str, offered: Offered) -> Side:
    """Draw the widgets of one side."""
    st.markdown(f"**{letter}**")
    names = filters.options([*SHIFTS, BEFORE, AFTER], key=f"{letter}-when")
    selected: dict[str, tuple[str, ...]] = {}
    further: tuple[str, ...] = ()
    with st.grid(2, min_column_width=180):
        when = filters.select("When", names, key=f"{letter}-when", index=names.index(default_when))
        for name, label in filters.FILTERS.items():
            key = f"{letter}-{name}"
            values = offered.values.get(name, ())
            if name == LABEL and not filters.options(values, key=key):
                continue
            of_page = ", ".join(filters.selected(name))
            selected[name] = choose_values(label, values, key, of_page or "all")
        if offered.dimension != NO_DIMENSION:
            further = choose_values(
                offered.dimension.capitalize(), offered.further_values, f"{letter}-value", "all"
            )

    def side_of(base: Selection) -> Selection | None:
        chosen = replace(base, further=((offered.dimension, further),) if further else ())
        chosen = chosen.filtered({name: values for name, values in selected.items() if values})
        if when in (BEFORE, AFTER):
            return around(chosen, offered.onset, when) if offered.onset is not None else None
        if (span := zoom.from_text(when)) is not None:
            return replace(chosen, since=span[0], until=span[1])
        shift_by = SHIFTS.get(when, timedelta(0))
        back = base.length if shift_by is None else shift_by
        return replace(chosen, since=base.since - back, until=base.until - back)

    return side_of


def choose_values(label: str, offered: Sequence[str], key: str, placeholder: str) -> tuple[str, ...]:
    values = filters.options(offered, key=key)
    return tuple(st.multiselect(label, values, key=key, bind="query-params", placeholder=placeholder))


def body(side_a: Side, side_b: Side, base: Selection) -> None:
    base = overview.judged(query, base, datetime.now(UTC))
    if PREVIOUS in (st.session_state.get(f"{letter}-when") for letter in SIDE_COLORS):
        base = base.with_comparable_before()
    a, b = side_a(base), side_b(base)
    if a is None or b is None:
        st.info(
            "Enter the onset as an instant in UTC, for example `2026-01-02T03:04:05`.",
            icon=":material/schedule:",
        )
        return
    if a == b:
        st.info("A and B are the same selection. Choose another time, model, gateway or client for one of them.",
                icon=":material/compare_arrows:")  # fmt: skip
        return
    sides = {"A": a, "B": b}
    # The queries of B run in the background.
    of_b = {ask: prefetch(ask, query, b) for ask in ASKED}

    def of_sides(ask: Ask) -> dict[str, Any]:
        return {"A": ask(query, a), "B": of_b[ask]()}

    counts = of_sides(comparison.counts)
    for column, (letter, side) in zip(st.columns(2), sides.items(), strict=True):
        with column:
            requests, ok = (formatting.count(counts[letter][name]) for name in ("requests", "ok"))
            number(f"{letter}: requests", requests, f"{ok} of them ended ok.")
            st.caption(filters.describe(side))
    if empty := [letter for letter, found in counts.items() if not found["requests"]]:
        text = f"No comparison: no streams in {' and '.join(empty)}. Choose another time or remove a filter."
        st.warning(text, icon=":material/warning:")
        return
    causes, finishes = of_sides(comparison.causes), of_sides(comparison.finishes)
    samples = of_sides(comparison.ok_sample)
    failures = comparison.failure_rows(counts["A"], counts["B"], causes["A"], causes["B"])
    answers = comparison.answer_rows(counts["A"], counts["B"], finishes["A"], finishes["B"])
    rows = comparison.adjusted([*failures, *answers, *comparison.ok_rows(samples["A"], samples["B"])])
    st.markdown("  \n".join(map(formatting.markdown, comparison.summary(rows))))
    first, second = len(failures), len(failures) + len(answers)
    show_rows("Failures", "Shares of all requests with a known outcome, client aborts of all requests, and `ok` streams "
              "with a stall.", rows[:first])  # fmt: skip
    show_rows("Answers", "Shares of the answers that ended `ok`. Malformed arguments and failures: of streams with a tool call. "
              "No side is called better while its answers are worse or shorter.", rows[first:second])  # fmt: skip
    show_rows("Lengths and durations of ok streams", "Only streams that ended `ok`, because a failed stream is shorter than a "
              "complete one. TTFT: only streams of similar uncached input length, because a longer prompt takes longer.",
              rows[second:])  # fmt: skip
    st.caption(" ".join(method_notes(counts, rows)))
    show_ttft(of_sides(ttft_spread))


def show_rows(title: str, help_text: str, rows: Sequence[Row]) -> None:
    """A forest plot and the table of its values."""
    section(title, help_text)
    plot = forest(rows)
    with st.container(border=True):
        if plot is None:
            st.caption("No effects are known.")
        else:
            draw(plot, f"{title}: effects with their 95 % intervals", key=f"forest-{title}")
    show_report(comparison.TABLE, comparison.table(rows), title=title)


def method_notes(counts: Mapping[str, Mapping[str, int]], rows: Sequence[Row]) -> list[str]:
    notes = [
        f"Intervals: percentile bootstrap at 95 %, {RESAMPLES:,} resamples. Rates count all streams; quantiles use up to "
        f"{comparison.SAMPLE_STREAMS:,} `ok` streams per side.",
        "Results are adjusted by Holm's method: over all rows together, equal selections show a difference in at most 5 % of "
        "comparisons. An interval may therefore exclude zero without a clear difference.",
    ]
    if ttft := next((row.found for row in rows if row.label == "TTFT p50"), None):
        notes.append(
            f"TTFT is that of {ttft.a_count:,} and {ttft.b_count:,} streams of similar uncached input length."
        )
    if any(found["ok"] > comparison.SAMPLE_STREAMS for found in counts.values()):
        notes.append(
            "Larger sides are sampled by a hash of the stream id, so values can differ slightly from other pages."
        )
    if (smaller := min(found["ok"] for found in counts.values())) < MIN_N:
        notes.append(
            f"The smaller side has {smaller} `ok` streams. Differences are judged from {MIN_N} streams on each side."
        )
    return notes


def ttft_spread(query: Query, side: Selection) -> pl.DataFrame:
    return latency.distribution(query, latency.Source(selection=side, group="everything"), "ttft_ns")


ASKED: tuple[Ask, ...] = (
    comparison.counts,
    comparison.causes,
    comparison.finishes,
    comparison.ok_sample,
    ttft_spread,
)
"""What the page asks of each side, in the order of its rows."""


def show_ttft(spreads: Mapping[str, pl.DataFrame]) -> None:
    spread = pl.concat(found.with_columns(pl.lit(letter).alias("name")) for letter, found in spreads.items())
    panel(
        "TTFT, cumulative distribution",
        spread,
        lambda f: ecdf(f, SIDE_COLORS),
        metric_help("ttft", more="The curves have streams of all input lengths."),
        legend=SIDE_COLORS,
    )


def draw_page() -> None:
    """Two selections side by side, with confidence intervals."""
    st.caption("B compared with A. Both use the time range and filters of the page unless set here.")
    has_onset = "onset" in st.query_params
    with filters.row():
        onset_help = "Start of an incident. Choose *before onset* and *after onset* as the times of A and B."
        onset_text = filters.text(
            "Onset (UTC)",
            key="onset",
            placeholder="2026-01-02T03:04:05",
            width=240,
            max_chars=40,
            help=onset_help,
        )
        dimensions = [NO_DIMENSION, *FURTHER_DIMENSIONS]
        dimension = filters.select("Further dimension", dimensions, key="dimension", width=200)
    values: dict[str, list[str]] = {}
    further_values: list[str] = []
    with contextlib.suppress(query_runner.QueryError):  # the body shows the error
        values = filters.offered_values()
        if dimension != NO_DIMENSION:
            further_values = comparison.values(query, filters.selection(), dimension)
    offered = Offered(parse_onset(onset_text), dimension, values, further_values)
    left, right = st.columns(2)
    with left.container(border=True):
        side_a = choose_side("A", BEFORE if has_onset else PREVIOUS, offered)
    with right.container(border=True):
        side_b = choose_side("B", AFTER if has_onset else "same time", offered)
    page_frame.show(partial(body, side_a, side_b), uses_time_range=False)


PAGE = page_frame.Page(draw_page, "Compare", "compare_arrows")

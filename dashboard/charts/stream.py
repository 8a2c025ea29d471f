"""The drawings of one stream: its phases, its events on a time axis, what had arrived by when, and the gaps.

All share the time axis (from t0, in the unit that suits the whole), so that they read as one picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from dashboard import formatting, palette
from dashboard.stream_phases import Phase

AXIS_EXTENT = 78
"""Room for the vertical axis, the same on each, so that the time axes line up."""
STALL_COLOR = palette.ALARM


class Axis:
    """The common time axis."""

    def __init__(self, begin_ns: float, end_ns: float) -> None:
        longest = max(abs(begin_ns), abs(end_ns), 1.0)
        self.divisor, self.unit = (
            (1e9, "s") if longest >= 1e9 else (1e6, "ms") if longest >= 1e6 else (1e3, "µs")
        )
        self._domain = [begin_ns / self.divisor, end_ns / self.divisor]

    def x(self, field: str, *, titled: bool = False) -> alt.X:
        title = f"{self.unit} from t0" if titled else None
        return alt.X(
            f"{field}:Q",
            scale=alt.Scale(domain=self._domain, nice=False),
            title=title,
            axis=alt.Axis(grid=True),
        )

    def of(self, value_ns: float) -> float:
        return value_ns / self.divisor


def _heading(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=12, fontWeight="normal", offset=4)


def waterfall(phases: Sequence[Phase], axis: Axis) -> alt.LayerChart | alt.FacetChart:
    """One bar per phase, with its length beside it."""
    frame = pl.DataFrame(
        {
            "phase": [p.name for p in phases],
            "start": [axis.of(p.start_ns) for p in phases],
            "end": [axis.of(p.end_ns) for p in phases],
            "length": [formatting.duration(p.length_ns) for p in phases],
            "meaning": [p.meaning for p in phases],
        }
    )
    base = alt.Chart(frame).encode(
        y=alt.Y(
            "phase:N",
            sort=None,
            title=None,
            axis=alt.Axis(minExtent=AXIS_EXTENT, maxExtent=AXIS_EXTENT, grid=False),
        ),
        x=axis.x("start"),
        tooltip=["phase:N", "length:N", "meaning:N"],
    )
    bars = base.mark_bar(cornerRadius=2, height=14, minBandSize=2).encode(
        x2="end:Q", color=alt.value(palette.ONE)
    )
    ticks = base.mark_tick(
        thickness=2, height=14, color=palette.ONE
    )  # a phase too short to see still shows where it was
    text = base.mark_text(align="left", dx=6, fontSize=12, color=palette.RULE).encode(
        x=axis.x("end"), text="length:N"
    )
    return alt.layer(bars, ticks, text).properties(height=26 * len(phases) + 40)


def event_marks(events: pl.DataFrame, axis: Axis, stall_ns: float | None) -> alt.LayerChart | alt.FacetChart:
    """Each event as a mark in the row of its kind; stalls as bands behind them."""
    frame = events.with_columns(
        (pl.col("at_ns") / axis.divisor).alias("at"),
        pl.col("gap_ns").map_elements(formatting.duration, return_dtype=pl.String).alias("gap"),
    ).select("at", "kind", "seq", "gap", "chars", "tokens", "bytes", "event_name", "finish_reason")
    kinds = [k for k in palette.KINDS if k in set(frame["kind"])] + sorted(
        set(frame["kind"]) - set(palette.KINDS)
    )
    marks = (
        alt.Chart(frame)
        .mark_tick(thickness=1.2, height=15, opacity=0.85)
        .encode(
            x=axis.x("at"),
            y=alt.Y("kind:N", sort=kinds, title=None, axis=alt.Axis(minExtent=AXIS_EXTENT, maxExtent=AXIS_EXTENT, grid=False)),
            color=alt.Color(
                "kind:N",
                legend=None,
                scale=alt.Scale(domain=kinds, range=[palette.KINDS.get(k, palette.REST) for k in kinds]),
            ),
            tooltip=["seq:Q", "kind:N", alt.Tooltip("gap:N", title="since the output before"), "chars:Q", "tokens:Q", "bytes:Q",
                     "event_name:N", "finish_reason:N"],
        )
    )  # fmt: skip
    bands = [stall_bands(events, axis, stall_ns)] if stall_ns is not None else []
    return alt.layer(*bands, marks).properties(height=26 * len(kinds) + 45)


def stall_bands(events: pl.DataFrame, axis: Axis, stall_ns: float) -> alt.Chart:
    """A band for each gap that is a stall."""
    stalls = events.filter(pl.col("gap_ns") >= stall_ns).select(
        ((pl.col("at_ns") - pl.col("gap_ns")) / axis.divisor).alias("from"),
        (pl.col("at_ns") / axis.divisor).alias("to"),
        pl.col("gap_ns").map_elements(formatting.duration, return_dtype=pl.String).alias("stall"),
    )
    chart: alt.Chart = (
        alt.Chart(stalls)
        .mark_rect(color=STALL_COLOR, opacity=0.16)
        .encode(x=axis.x("from"), x2="to:Q", tooltip="stall:N")
    )
    return chart


def arrived(events: pl.DataFrame, axis: Axis, what: str) -> alt.Chart:
    """How much had arrived by when: the running sum of chars, tokens or bytes."""
    frame = events.group_by("at_ns", maintain_order=True).agg(
        (pl.col("at_ns").first() / axis.divisor).alias("at"),
        pl.col(f"{what}_sum").max().alias("sum"),
        pl.col("seq").last(),
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_area(
            interpolate="step-after",
            line={"color": palette.ONE, "strokeWidth": 1.6},
            color=palette.ONE,
            opacity=0.18,
        )
        .encode(
            x=axis.x("at"),
            y=alt.Y(
                "sum:Q",
                title=None,
                stack=None,
                axis=alt.Axis(minExtent=AXIS_EXTENT, maxExtent=AXIS_EXTENT, tickCount=4),
            ),
            tooltip=[
                "seq:Q",
                alt.Tooltip("at:Q", title=axis.unit, format=".4f"),
                alt.Tooltip("sum:Q", title=what),
            ],
        )
        .properties(height=170, title=_heading(f"{what}, cumulative"))
    )
    return chart


def gaps(events: pl.DataFrame, axis: Axis, stall_ns: float | None) -> alt.LayerChart | alt.FacetChart:
    """The gap before each output event, on a log axis, and a line at the shortest stall.

    A gap of 0 means that two events came in one read: a log axis has no place for it.
    """
    frame = events.filter(pl.col("gap_ns") > 0).select(
        (pl.col("at_ns") / axis.divisor).alias("at"),
        (pl.col("gap_ns") / 1e6).alias("gap_ms"),
        "seq",
        "kind",
        pl.col("gap_ns").map_elements(formatting.duration, return_dtype=pl.String).alias("gap"),
    )
    kinds = [k for k in palette.KINDS if k in set(frame["kind"])]
    points = (
        alt.Chart(frame)
        .mark_point(size=28, filled=True, opacity=0.75)
        .encode(
            x=axis.x("at", titled=True),
            y=alt.Y(
                "gap_ms:Q",
                scale=alt.Scale(type="log"),
                title=None,
                axis=alt.Axis(minExtent=AXIS_EXTENT, maxExtent=AXIS_EXTENT, tickCount=4),
            ),
            color=alt.Color(
                "kind:N", legend=None, scale=alt.Scale(domain=kinds, range=[palette.KINDS[k] for k in kinds])
            ),
            tooltip=["seq:Q", "kind:N", "gap:N"],
        )
    )
    if stall_ns is None:
        return alt.layer(points).properties(height=190, title=_heading("gap before each output event, ms"))
    limit = (
        alt.Chart(pl.DataFrame({"stall": [stall_ns / 1e6]}))
        .mark_rule(strokeDash=[4, 4], color=STALL_COLOR)
        .encode(y="stall:Q", tooltip=alt.Tooltip("stall:Q", title="shortest stall, ms"))
    )
    return alt.layer(points, limit).properties(height=190, title=_heading("gap before each output event, ms"))

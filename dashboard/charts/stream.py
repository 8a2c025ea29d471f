"""Charts of one stream: phases, events, cumulative output and gaps. All share one time axis, which starts at t0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.one_stream import Phase
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.axes import duration_text, duration_unit, tooltips
from streamgauge.dashboard.charts.drawing import Drawing

AXIS_EXTENT = 78
"""Width of every vertical axis, so the time axes are aligned."""


class StreamAxis:
    """The time axis of a stream, in the unit that suits its length."""

    def __init__(self, begin_ns: float, end_ns: float) -> None:
        self.divisor, self.unit = duration_unit(max(abs(begin_ns), abs(end_ns)))
        self._domain = [begin_ns / self.divisor, end_ns / self.divisor]

    def x(self, field: str, *, titled: bool = False) -> alt.X:
        scale = alt.Scale(domain=self._domain, nice=False)
        title = f"{self.unit} from t0" if titled else None
        return alt.X(f"{field}:Q", scale=scale, title=title, axis=alt.Axis(grid=True))


def phase_waterfall(
    phases: Sequence[Phase], axis: StreamAxis, phase_colors: Mapping[str, str] | None = None
) -> Drawing:
    """One bar per phase, with its length. Without `phase_colors`, all bars have one colour."""
    frame = pl.DataFrame(
        {
            "phase": [p.name for p in phases],
            "start": [p.start_ns / axis.divisor for p in phases],
            "end": [p.end_ns / axis.divisor for p in phases],
            "length": [formatting.duration(p.length_ns) for p in phases],
            "meaning": [p.meaning for p in phases],
        }
    )
    base = alt.Chart(frame).encode(
        y=alt.Y("phase:N", sort=None, title=None, axis=_y_axis(grid=False)),
        x=axis.x("start"),
        tooltip=tooltips("phase:N", "length:N", "meaning:N"),
    )
    color = colors.scale("phase", phase_colors or {p.name: colors.SINGLE for p in phases})
    bars = base.mark_bar(cornerRadius=2, height=14, minBandSize=2).encode(x2=alt.X2("end:Q"), color=color)
    # A tick keeps very short phases visible.
    ticks = base.mark_tick(thickness=2, height=14).encode(color=color)
    lengths = base.mark_text(align="left", dx=6, fontSize=12, color=colors.RULE).encode(
        x=axis.x("end"), text=alt.Text("length:N")
    )
    return alt.layer(bars, ticks, lengths).properties(height=26 * len(phases) + 40)


def event_marks(events: pl.DataFrame, axis: StreamAxis, stalls: pl.DataFrame) -> Drawing:
    """Each event as a mark in the row of its kind, and a band behind each stall in the colour of its cause."""
    frame = events.with_columns(
        (pl.col("at_ns") / axis.divisor).alias("at"), duration_text("gap_ns").alias("gap")
    )
    present = set(frame["kind"])
    kinds = [kind for kind in colors.EVENT_KINDS if kind in present]
    kinds += sorted(present - set(colors.EVENT_KINDS))
    kind_colors = [colors.EVENT_KINDS.get(kind, colors.UNNAMED) for kind in kinds]
    marks = (
        alt.Chart(
            frame.select("at", "kind", "seq", "gap", "chars", "tokens", "bytes", "event_name", "finish_reason")
        )
        .mark_tick(thickness=1.2, height=15, opacity=0.85)
        .encode(
            x=axis.x("at"),
            y=alt.Y("kind:N", sort=kinds, title=None, axis=_y_axis(grid=False)),
            color=alt.Color("kind:N", legend=None, scale=alt.Scale(domain=kinds, range=kind_colors)),
            tooltip=[
                *tooltips("seq:Q", "kind:N"), alt.Tooltip("gap:N", title="gap before it"),
                *tooltips("chars:Q", "tokens:Q", "bytes:Q", "event_name:N", "finish_reason:N"),
            ],
        )
    )  # fmt: skip
    bands = [_stall_bands(stalls, axis)] if stalls.height else []
    layers = alt.layer(*bands, marks, height=26 * len(kinds) + 45)
    chart: alt.LayerChart = layers.resolve_scale(color="independent")
    return chart


def _stall_bands(stalls: pl.DataFrame, axis: StreamAxis) -> alt.Chart:
    frame = stalls.select(
        (pl.col("at_ns") / axis.divisor).alias("from"),
        ((pl.col("at_ns") + pl.col("gap_ns")) / axis.divisor).alias("to"),
        duration_text("gap_ns").alias("stall"),
        "cause",
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_rect(opacity=0.28)
        .encode(
            x=axis.x("from"),
            x2=alt.X2("to:Q"),
            color=_cause_color(frame),
            tooltip=tooltips("stall:N", "cause:N"),
        )
    )
    return chart


def _cause_color(frame: pl.DataFrame) -> alt.Color:
    return colors.scale("cause", colors.present(colors.CAUSES, frame, "cause"))


def cumulative_output(events: pl.DataFrame, axis: StreamAxis, unit: str) -> alt.Chart:
    """The running sum of chars, tokens or bytes."""
    frame = events.group_by("at_ns", maintain_order=True).agg(
        (pl.col("at_ns").first() / axis.divisor).alias("at"),
        pl.col(f"{unit}_sum").max().alias("sum"),
        pl.col("seq").last(),
    )
    color = colors.SINGLE
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_area(
            interpolate="step-after", line={"color": color, "strokeWidth": 1.6}, color=color, opacity=0.18
        )
        .encode(
            x=axis.x("at"),
            y=alt.Y("sum:Q", title=None, stack=None, axis=_y_axis(tickCount=4)),
            tooltip=[
                alt.Tooltip("seq:Q"),
                alt.Tooltip("at:Q", title=axis.unit, format=".4f"),
                alt.Tooltip("sum:Q", title=unit),
            ],
        )
        .properties(height=170, title=_heading(f"{unit}, cumulative"))
    )
    return chart


def gap_points(
    events: pl.DataFrame, axis: StreamAxis, stalls: pl.DataFrame, limit_ns: float | None = None
) -> Drawing:
    """The gap before each output event on a log axis. Stalls have a ring in the colour of their cause.

    A rule marks `limit_ns`, above which a gap is a stall. Gaps of 0 (two events in one read) are left out, because a log axis
    cannot show them.
    """
    frame = events.filter(pl.col("gap_ns") > 0).select(
        (pl.col("at_ns") / axis.divisor).alias("at"),
        (pl.col("gap_ns") / 1e6).alias("gap_ms"),
        "seq",
        "kind",
        duration_text("gap_ns").alias("gap"),
    )
    kinds = [kind for kind in colors.EVENT_KINDS if kind in set(frame["kind"])]
    scale = alt.Scale(domain=kinds, range=[colors.EVENT_KINDS[kind] for kind in kinds])
    layers: list[alt.Chart] = [
        alt.Chart(frame)
        .mark_point(size=28, filled=True, opacity=0.75)
        .encode(
            x=axis.x("at", titled=True),
            y=alt.Y("gap_ms:Q", scale=alt.Scale(type="log"), title=None, axis=_y_axis(tickCount=4)),
            color=alt.Color("kind:N", legend=None, scale=scale),
            tooltip=tooltips("seq:Q", "kind:N", "gap:N"),
        )
    ]
    stalled = frame.join(stalls.select("seq", "cause"), on="seq")
    if stalled.height:
        layers.append(
            alt.Chart(stalled)
            .mark_point(size=170, filled=False, strokeWidth=2.5, opacity=1)
            .encode(
                x=axis.x("at", titled=True),
                y=alt.Y("gap_ms:Q"),
                color=_cause_color(stalled),
                tooltip=tooltips("seq:Q", "kind:N", "gap:N", "cause:N"),
            )
        )
    if limit_ns is not None:
        layers += _limit(limit_ns)
    layered = alt.layer(*layers, height=190, title=_heading("gap before each output event, ms"))
    chart: alt.LayerChart = layered.resolve_scale(color="independent")
    return chart


def _limit(limit_ns: float) -> list[alt.Chart]:
    """A rule at the limit of stalls, with its value."""
    frame = pl.DataFrame(
        {"gap_ms": [limit_ns / 1e6], "text": [f"stall: above {formatting.duration(limit_ns)}"]}
    )
    base = alt.Chart(frame).encode(
        y=alt.Y("gap_ms:Q", scale=alt.Scale(type="log")), tooltip=alt.Tooltip("text:N", title=" ")
    )
    rule = base.mark_rule(color=colors.STALL, strokeDash=[4, 3], strokeWidth=1.5)
    text = base.mark_text(
        align="left", baseline="bottom", dx=4, dy=-3, fontSize=11, color=colors.STALL
    ).encode(x=alt.value(0), text=alt.Text("text:N"))
    return [rule, text]


def _y_axis(**options: Any) -> alt.Axis:
    return alt.Axis(minExtent=AXIS_EXTENT, maxExtent=AXIS_EXTENT, **options)


def _heading(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=12, fontWeight="normal", offset=4)

"""Charts of one stream (phases, events, cumulative output and gaps, on one time axis from t0), of the turns of one session, and of one
turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import altair as alt
import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.one_stream import Phase
from streamgauge.analytics.reports.sessions import MODEL, USER, Bar
from streamgauge.analytics.reports.turn_timeline import CRITICAL, Lane, Turn
from streamgauge.analytics.schema.outcomes import OK
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import (
    FADED,
    HEIGHT,
    Drawing,
    Layers,
    duration_text,
    duration_unit,
    largest,
    tooltips,
)

AXIS_EXTENT = 78
"""Width of every vertical axis, so the time axes are aligned."""


class StreamAxis:
    """The time axis of a stream, in the unit that suits its length."""

    def __init__(self, begin_ns: float, end_ns: float) -> None:
        self.divisor, self.unit = duration_unit(max(abs(begin_ns), abs(end_ns)))
        # The same ends in every chart, so that one instant is at one place in all charts of the page.
        self._scale = alt.Scale(domain=[begin_ns / self.divisor, end_ns / self.divisor], nice=False)

    def x(self, field: str, *, titled: bool = False) -> alt.X:
        title = f"{self.unit} from t0" if titled else None
        return alt.X(f"{field}:Q", scale=self._scale, title=title, axis=alt.Axis(grid=True))


def phase_waterfall(
    phases: Sequence[Phase], axis: StreamAxis, phase_colors: Mapping[str, str] | None = None
) -> Drawing:
    """One bar per phase, with its length. Without `phase_colors`, all bars have one colour."""
    rows = [
        {"phase": p.name, "start": p.start_ns / axis.divisor, "end": p.end_ns / axis.divisor,
         "length": formatting.duration(p.length_ns), "meaning": p.meaning}
        for p in phases
    ]  # fmt: skip
    base = alt.Chart(pl.DataFrame(rows)).encode(
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
    return Layers([bars, ticks, lengths], height=26 * len(phases) + 40)


def event_marks(events: pl.DataFrame, axis: StreamAxis, stalls: pl.DataFrame) -> Drawing:
    """Each event as a mark in the row of its kind, and a band behind each stall in the colour of its cause."""
    shown = colors.present(colors.EVENT_KINDS, events, "kind")
    frame = events.select(
        (pl.col("at_ns") / axis.divisor).alias("at"),
        duration_text("gap_ns").alias("gap"),
        *("kind", "seq", "chars", "tokens", "bytes", "event_name", "finish_reason"),
    )
    sizes = ("chars:Q", "tokens:Q", "bytes:Q", "event_name:N", "finish_reason:N")
    marks = alt.Chart(frame).mark_tick(thickness=1.2, height=15, opacity=0.85)
    marks = marks.encode(
        x=axis.x("at"),
        y=alt.Y("kind:N", sort=list(shown), title=None, axis=_y_axis(grid=False)),
        color=colors.scale("kind", shown),
        tooltip=tooltips("seq:Q", "kind:N", ("gap:N", "gap before it"), *sizes),
    )
    bands = [_stall_bands(stalls, axis)] if stalls.height else []
    return Layers([*bands, marks], height=26 * len(shown) + 45, own_colors=True)


def _stall_bands(stalls: pl.DataFrame, axis: StreamAxis) -> alt.Chart:
    frame = stalls.select(
        (pl.col("at_ns") / axis.divisor).alias("from"),
        ((pl.col("at_ns") + pl.col("gap_ns")) / axis.divisor).alias("to"),
        duration_text("gap_ns").alias("stall"),
        "cause",
    )
    bands: alt.Chart = alt.Chart(frame).mark_rect(opacity=0.28)
    return bands.encode(
        x=axis.x("from"),
        x2=alt.X2("to:Q"),
        color=_cause_color(frame),
        tooltip=tooltips("stall:N", "cause:N"),
    )


def _cause_color(frame: pl.DataFrame) -> alt.Color:
    return colors.scale("cause", colors.present(colors.CAUSES, frame, "cause"))


def cumulative_output(events: pl.DataFrame, axis: StreamAxis, unit: str) -> Drawing:
    """The running sum of chars, tokens or bytes."""
    # Events of one read share a time: one point for them, because the area would go up and down at this place.
    frame = events.group_by("at_ns", maintain_order=True).agg(
        (pl.col("at_ns").first() / axis.divisor).alias("at"),
        pl.col(f"{unit}_sum").max().alias("sum"),
        pl.col("seq").last(),
    )
    line = {"color": colors.SINGLE, "strokeWidth": 1.6}
    area: alt.Chart = alt.Chart(frame, height=170, title=_heading(f"{unit}, cumulative")).mark_area(
        interpolate="step-after", line=line, color=colors.SINGLE, opacity=0.18
    )
    return area.encode(
        x=axis.x("at"),
        y=alt.Y("sum:Q", title=None, stack=None, axis=_y_axis(tickCount=4, tickMinStep=1)),
        tooltip=tooltips("seq:Q", ("at:Q", axis.unit, ".4f"), ("sum:Q", unit)),
    )


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
    x, log = axis.x("at", titled=True), alt.Scale(type="log")
    points = alt.Chart(frame).mark_point(size=28, filled=True, opacity=0.75)
    points = points.encode(
        x=x,
        y=alt.Y("gap_ms:Q", scale=log, title=None, axis=_y_axis(tickCount=4)),
        color=colors.scale("kind", colors.present(colors.EVENT_KINDS, frame, "kind")),
        tooltip=tooltips("seq:Q", "kind:N", "gap:N"),
    )
    layers = [points]
    stalled = frame.join(stalls.select("seq", "cause"), on="seq")
    if stalled.height:
        rings = alt.Chart(stalled).mark_point(size=170, filled=False, strokeWidth=2.5, opacity=1)
        rings = rings.encode(
            x=x,
            y=alt.Y("gap_ms:Q"),
            color=_cause_color(stalled),
            tooltip=tooltips("seq:Q", "kind:N", "gap:N", "cause:N"),
        )
        layers.append(rings)
    if limit_ns is not None:
        text = f"stall: above {formatting.duration(limit_ns)}"
        limit = alt.Chart(pl.DataFrame({"gap_ms": [limit_ns / 1e6], "text": [text]})).encode(
            y=alt.Y("gap_ms:Q", scale=log), tooltip=tooltips(("text:N", " "))
        )
        label = limit.mark_text(align="left", baseline="bottom", dx=4, dy=-3, fontSize=11, color=colors.STALL)
        layers.append(limit.mark_rule(color=colors.STALL, strokeDash=[4, 3], strokeWidth=1.5))
        layers.append(label.encode(x=alt.value(0), text=alt.Text("text:N")))
    return Layers(layers, height=190, title=_heading("gap before each output event, ms"), own_colors=True)


def _y_axis(**options: Any) -> alt.Axis:
    return alt.Axis(minExtent=AXIS_EXTENT, maxExtent=AXIS_EXTENT, **options)


def _heading(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=12, fontWeight="normal", offset=4)


def session_turns(bars: Sequence[Bar]) -> Drawing:
    """One row per turn with its requests, tool time and waits. Requests that did not end ok have a cross."""
    divisor, unit = duration_unit(max((b.end_ns for b in bars), default=1), ("s", "ms"))
    rows = [
        {
            "turn": f"turn {b.turn}", "kind": b.kind, "start": b.start_ns / divisor, "end": b.end_ns / divisor,
            "turn_link": f"sessions?{urlencode({'session': b.request['session_id'], 'turn': b.turn})}",
            "length": formatting.duration(b.end_ns - b.start_ns),
            "request": b.request["request"], "model": b.request["model"],
            "outcome": b.request["outcome"] if b.kind == MODEL else None,
            "link": f"stream?id={b.request['stream_id']}" if b.kind == MODEL else None,
        }
        for b in bars
    ]  # fmt: skip
    frame = pl.DataFrame(rows, infer_schema_length=None)
    names = list(dict.fromkeys(frame["turn"]))
    base = alt.Chart(frame).encode(
        # Labels of an axis cannot be links: texts in their place are.
        y=alt.Y("turn:N", sort=names, title=None, axis=_y_axis(grid=False, labels=False)),
        x=alt.X("start:Q", title=f"{unit} from the first request", scale=alt.Scale(nice=False)),
        tooltip=tooltips("turn:N", "kind:N", "length:N", "request:Q", "model:N", "outcome:N"),
    )
    color, end = colors.scale("kind", colors.SESSION_PARTS), alt.X2("end:Q")
    is_request = f"datum.kind == '{MODEL}'"
    waits = base.mark_bar(height=4).encode(x2=end, color=color)
    requests = base.mark_bar(height=13, cornerRadius=2, minBandSize=2).encode(
        x2=end, color=color, href=alt.Href("link:N")
    )
    # A tick keeps very short requests visible.
    ticks = base.mark_tick(thickness=2, height=13).encode(color=color)
    turns = alt.Chart(frame.unique("turn", maintain_order=True)).mark_text(
        align="right", dx=-8, fontSize=12, color=colors.SINGLE
    )
    turns = turns.encode(
        x=alt.value(0),
        y=alt.Y("turn:N", sort=names),
        text=alt.Text("turn:N"),
        href=alt.Href("turn_link:N"),
        tooltip=tooltips(("turn:N", "open")),
    )
    layers = [
        waits.transform_filter(f"!({is_request})"),
        requests.transform_filter(is_request),
        ticks.transform_filter(is_request),
        turns,
    ]
    # An empty layer would be a warning of Vega.
    if any(outcome not in (None, OK) for outcome in frame["outcome"]):
        failed = base.mark_point(
            shape="cross", angle=45, size=60, filled=True, color=colors.OUTCOMES["http_error"]
        )
        layers.append(
            failed.transform_filter(f"datum.outcome && datum.outcome != '{OK}'").encode(x=alt.X("end:Q"))
        )
    return Layers(layers, height=24 * len(names) + 50)


def session_legend(bars: Sequence[Bar]) -> dict[str, str]:
    """Names and colours of the legend of `session_turns`."""
    kinds = {b.kind for b in bars}
    return {kind: color for kind, color in colors.SESSION_PARTS.items() if kind in kinds or kind != USER}


def context_growth(parts: pl.DataFrame, value: str) -> Drawing:
    """Bars of `value` (tokens or bytes) by request, stacked by part of the prompt. A click opens the stream."""
    unit = "KB" if value == "bytes" else "tokens"
    rank = {part: place for place, part in enumerate(colors.CONTEXT)}
    data = parts.select(
        "request", "turn", "part", pl.col(value) / (1000 if unit == "KB" else 1),
        pl.col("part").replace_strict(rank, return_dtype=pl.Int32).alias("rank"),
        pl.format("stream?id={}", "stream_id").alias("link"),
    )  # fmt: skip
    last = int(largest(parts, "request"))
    bars: alt.Chart = alt.Chart(data, height=HEIGHT).mark_bar(binSpacing=1 if last < 120 else 0)
    return bars.encode(
        x=alt.X("request:Q", bin=alt.Bin(step=1, extent=[0.5, last + 0.5]), title="request", axis=alt.Axis(format="d", grid=False)),
        y=alt.Y(f"{value}:Q", title=unit, stack="zero"),
        color=colors.scale("part", colors.CONTEXT), order=alt.Order("rank:Q"), href=alt.Href("link:N"),
        tooltip=tooltips("request:Q", "turn:Q", "part:N", (f"{value}:Q", unit, ",.0f")),
    )  # fmt: skip


def turn_waterfall(turn: Turn, lanes: Sequence[Lane]) -> Drawing:
    """The critical path, and a row for each lane. Bars are faded where they are not on the path. A click on one opens its stream."""
    divisor, unit = duration_unit(turn.length_ns, ("s", "ms"))
    bars = [(lane.name, s, False) for lane in lanes for s in lane.segments()]
    lane_of = {id(s.activity): lane for lane, s, _ in bars}
    for s in turn.path:
        bars += [(lane, s, True) for lane in (CRITICAL, lane_of.get(id(s.activity))) if lane is not None]
    rows = [
        {
            "lane": lane, "part": s.part, "on_path": on_path, "start": (s.start_ns - turn.start_ns) / divisor,
            "end": (s.end_ns - turn.start_ns) / divisor, "length": formatting.duration(s.end_ns - s.start_ns),
            "link": f"stream?id={s.activity.stream_id}" if s.activity and s.activity.stream_id else None,
            **{key: getattr(s.activity, key, None) for key in ("name", "source", "outcome")},
        }
        for lane, s, on_path in bars
    ]  # fmt: skip
    names = [CRITICAL, *(lane.name for lane in lanes)]
    chart = alt.Chart(pl.DataFrame(rows, infer_schema_length=None)).mark_bar(height=14, minBandSize=2)
    drawing: alt.Chart = chart.encode(
        y=alt.Y("lane:N", sort=names, title=None, axis=alt.Axis(grid=False, labelLimit=160, labelOverlap=False)),
        x=alt.X("start:Q", title=f"{unit} from the start of the turn", scale=alt.Scale(nice=False)),
        x2=alt.X2("end:Q"),
        color=colors.scale("part", colors.TURN_PARTS),
        opacity=alt.OpacityValue(FADED).condition(test="datum.on_path", value=1),
        href=alt.Href("link:N"),
        tooltip=tooltips("name:N", "part:N", "length:N", ("source:N", "seen as"), "outcome:N", ("on_path:N", CRITICAL)),
    )  # fmt: skip
    return drawing.properties(height=24 * len(names) + 50)

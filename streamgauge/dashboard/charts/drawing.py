"""What all charts share: their style, axes, units, tooltips and legends, and how a page draws them.

Legends are drawn outside the charts, so several charts can share one. Durations are in ns, and are drawn in the unit that suits the
largest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl
import streamlit as st
from altair.utils import schemapi

from streamgauge.analytics.reports import formatting
from streamgauge.dashboard.charts import colors

HEIGHT = 200
STEP_PX = 20
"""Step of the heights that a page reserves for its charts."""
RESERVED_HEIGHTS = "".join(
    f"[class*='-height-{px}-']{{min-height:{px}px}}" for px in range(STEP_PX, 801, STEP_PX)
)
"""CSS of the containers of `draw`."""
SECONDS_BELOW = timedelta(minutes=6)  # longer time axes have labels without seconds
DATES_ABOVE = timedelta(hours=26)  # longer time axes have labels with dates
LABEL_PX = 180
Y_AXIS_PX = 30
"""Least width of the labels of a vertical axis over time, so that the same time is at the same place in charts above each other."""
TIME_TOOLTIP: Any = "utcyearmonthdatehoursminutesseconds"
FADED = 0.35
"""Opacity of points with few samples and of incomplete points."""
CLICKED = "clicked"
"""Name of the selection of a chart whose marks the reader can click."""
POINT_OF_LINE: dict[str, Any] = {"filled": True, "fillOpacity": 0, "size": 30}
"""Options of the invisible points of a line, which the reader clicks: a line itself is one mark for all its points."""
OVER_TIME: dict[str, Any] = {"embedOptions": {"renderer": "svg"}}
"""`usermeta` of a chart over the time range of its page, which `zoom` links with the others. It finds the plot in the SVG."""

STYLE = alt.Config(
    axis=alt.AxisConfig(
        gridOpacity=0.35, domain=False, ticks=False, labelPadding=6, titleFontWeight="normal"
    ),
    legend=alt.LegendConfig(orient="bottom", title=None, labelLimit=160, symbolSize=80),
    view=alt.ViewConfig(strokeWidth=0),
    point=alt.MarkConfig(size=22, filled=True),
    line=alt.LineConfig(strokeWidth=1.8),
)


@dataclass
class Layers:
    """Charts over each other. `alt.layer` would copy each chart several times, half of the time of a page of charts."""

    layers: Sequence[alt.Chart]
    height: int
    usermeta: Any = None
    title: alt.TitleParams | None = None
    own_colors: bool = False
    """The colours of the layers stand for different things, so they have no common scale."""
    config: alt.Config | None = None

    def to_dict(self, *, validate: bool = True) -> dict[str, Any]:
        """The specification in Vega-Lite, with the data of all layers."""
        made: dict[str, Any] = {"layer": [], "height": self.height, "datasets": {}}
        for layer in (one.to_dict(validate=validate) for one in self.layers):
            made["datasets"] |= layer.pop("datasets", {})
            made["$schema"] = layer.pop("$schema")
            layer.pop("config", None)
            made["layer"].append(layer)
        if self.own_colors:
            made["resolve"] = {"scale": {"color": "independent"}}
        if self.usermeta is not None:
            made["usermeta"] = self.usermeta
        parts = {"title": self.title, "config": self.config}
        return made | {
            name: part.to_dict(validate=validate) for name, part in parts.items() if part is not None
        }


Drawing = alt.Chart | alt.FacetChart | Layers


def draw(
    chart: Drawing, alt_text: str, *, key: str, on_click: Callable[[Mapping[str, Any]], None] | None = None
) -> None:
    """Put a chart on the page. `alt_text` is for screen readers. `on_click` gets the fields of the selection `CLICKED`."""
    chart.config = STYLE
    # Validation against Vega-Lite's schema takes most of a page's time. `launch` switches it off; tests keep it.
    if not schemapi.DEBUG_MODE:
        object.__setattr__(chart, "to_dict", partial(chart.to_dict, validate=False))
    height = getattr(chart, "height", None)
    reserved = height // STEP_PX * STEP_PX if isinstance(height, int) else 0
    kind = "over-time" if chart.usermeta == OVER_TIME else "chart"

    def selected() -> None:
        if on_click is not None and (points := st.session_state[key].selection.get(CLICKED)):
            on_click(points[0])

    clicks: dict[str, Any] = {"on_select": selected, "selection_mode": CLICKED} if on_click else {}
    kind += "-opens" if on_click else ""  # page.css and zoom.js find such charts by it
    # Vega draws a chart some time after it arrives, and the elements below would shift. The container, which has its key as a
    # class (charts have not), has the height from the beginning.
    with st.container(key=f"{kind}-height-{reserved}-{key}"):
        drawn: Any = chart  # Streamlit calls `to_dict` only
        st.altair_chart(drawn, width="stretch", key=key, alt=alt_text, **clicks)


def clickable(*fields: str, nearest: bool = False) -> alt.Parameter:
    """The selection `CLICKED` of the marks of a chart: a click gives `on_click` of `draw` these fields of the mark."""
    return alt.selection_point(name=CLICKED, fields=list(fields), on="click", clear=False, nearest=nearest)


def draw_placeholder(why: str) -> None:
    """A note of the same height in place of a chart without data, which says why."""
    with st.container(
        height=HEIGHT, border=False, vertical_alignment="center", horizontal_alignment="center"
    ):
        st.caption(why)


def draw_legend(colors: Mapping[str, str]) -> None:
    """Names and colours in one line, for the charts below it."""
    entries = "".join(
        f'<span title="{escape(name)}"><i style="background:{color}"></i><span>{escape(name)}</span></span>'
        for name, color in colors.items()
    )
    st.html(f'<div class="sg-legend">{entries}</div>')


def draw_split(parts_ns: Mapping[str, float], part_colors: Mapping[str, str], label: str) -> None:
    """A thin bar that splits a duration between its parts, with their lengths and shares. HTML, so it costs no chart.

    `label` names the whole for screen readers. A part of 0 is only in the legend.
    """
    total_ns = sum(parts_ns.values())
    bars, entries = [], []
    for name, length_ns in parts_ns.items():
        color, length = part_colors[name], formatting.duration(length_ns)
        share = formatting.share(length_ns / total_ns if total_ns else None)
        if length_ns > 0:
            # The growth factors are percentages, because factors below 1 in total would leave a part of the bar empty.
            style = f"flex:{100 * length_ns / total_ns:.4f} 0 0;background:{color}"
            bars.append(f'<span style="{style}" title="{escape(name)} {length}, {share}"></span>')
        entries.append(
            f'<span><i style="background:{color}"></i>{escape(name)}&nbsp;<b>{length}</b>&nbsp;<small>{share}</small></span>'
        )
    spoken = ", ".join(f"{name} {formatting.duration(value)}" for name, value in parts_ns.items())
    st.html(
        f'<div role="img" aria-label="{escape(f"{label}: {spoken}")}">'
        f'<div class="sg-split">{"".join(bars)}</div><div class="sg-legend">{"".join(entries)}</div></div>'
    )


def choose_series(colors: Mapping[str, str], highlighted: Collection[str] = ()) -> Collection[str]:
    """Draw the legend of the charts below it as buttons. Returns the series that the charts highlight.

    A click isolates a series, another one restores all. The URL has the series. Without one, `highlighted` are the series.
    """
    names = list(colors)
    # Streamlit raises for a value that is not among the options, for example from a link to other groups.
    if st.session_state.get("series") not in names:
        st.session_state.pop("series", None)
    with st.container(key="legend"):
        chosen = st.pills(
            "Series", names, key="series", bind="query-params", format_func=formatting.markdown, label_visibility="collapsed"
        )  # fmt: skip
        shown = {chosen} if chosen in names else {name for name in names if name in highlighted}
        # Buttons have no colour of their own, and Markdown in a label would show its few named colours only.
        swatches = "".join(
            f".st-key-legend button:nth-of-type({i})::before{{background:{color};opacity:{1 if not shown or name in shown else 0.3}}}"
            for i, (name, color) in enumerate(colors.items(), 1)
        )
        st.html(f"<style>{swatches}</style>")
    return shown


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeRange:
    """The range of a time axis, the time zone of its labels, and the distance between its points."""

    since: datetime
    until: datetime
    zone: ZoneInfo
    bucket_s: int
    marks: Sequence[tuple[datetime, str]] = field(default=())
    """Instants that every chart marks with a vertical line, and their texts: onsets of incidents, and markers."""
    complete_until: datetime | None = None
    """Points beyond it, and those that begin before the range, are incomplete: faded, and not part of a scale. None: no point is."""

    def is_complete(self) -> pl.Expr:
        """Whether the point of `at` is complete."""
        if self.complete_until is None:
            return pl.lit(True)
        # `pl.lit` takes milliseconds for an instant with a time zone.
        since, until = (
            pl.lit((at - _EPOCH) // timedelta(microseconds=1)).cast(pl.Datetime("us", "UTC"))
            for at in (self.since, self.complete_until)
        )
        return (pl.col("at") >= since) & (pl.col("at") + pl.duration(seconds=self.bucket_s) <= until)

    def complete(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The complete points, or all without a complete one."""
        found = frame.filter(self.is_complete())
        return frame if found.is_empty() else found

    def point(self, t_ms: float) -> tuple[datetime, datetime]:
        """The time range of the point that begins at this Unix time, as far as it is inside the range."""
        begin = datetime.fromtimestamp(t_ms / 1000, UTC)
        return max(begin, self.since), min(begin + timedelta(seconds=self.bucket_s), self.until)

    def axis(self, *, fixed: bool = False) -> alt.X:
        """The axis over the column `at`. `fixed` sets its domain, which Vega-Lite rejects for marks with x and x2."""
        # The wall clock, as in `to_wall_time`. Vega would take a number of milliseconds as a year.
        walls = [end.astimezone(self.zone) for end in (self.since, self.until)]
        domain = [
            alt.DateTime(
                year=at.year, month=at.month, date=at.day, hours=at.hour, minutes=at.minute, seconds=at.second, utc=True
            )
            for at in walls
        ]  # fmt: skip
        scale = alt.Scale(type="utc", domain=domain) if fixed else alt.Scale(type="utc", nice=False)
        labels = time_labels(self.until - self.since)
        axis = alt.Axis(grid=False, labelOverlap=True, labelFlush=True, format=labels, tickCount=8)
        return alt.X("at:T", scale=scale, title=None, axis=axis)

    def mark_lines(self) -> list[alt.Chart]:
        """A layer with a vertical line per mark inside the range, for charts whose axis is `fixed`."""
        inside = [(at, text) for at, text in self.marks if self.since <= at < self.until]
        if not inside:
            return []
        frame = pl.DataFrame(inside, schema={"at": pl.Datetime("us", "UTC"), "mark": pl.String}, orient="row")
        lines = alt.Chart(to_wall_time(frame, self.zone, "at")).mark_rule(
            color=colors.MARK, strokeWidth=2, strokeDash=[2, 3]
        )
        tooltip = [time_tooltip("at", "time"), alt.Tooltip("mark:N")]
        return [lines.encode(x=self.axis(fixed=True), tooltip=tooltip)]

    def with_until(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the columns `until`, the end of each point of `at`, and `begin`, its beginning, all as wall time; `t` as in `point`.

        `at` and `until` are limited to the range, so that all axes of a page end at the same instants.
        """
        since, end = (pl.lit(at).cast(pl.Datetime("us", "UTC")) for at in (self.since, self.until))
        until = pl.min_horizontal(pl.col("at") + pl.duration(seconds=self.bucket_s), end)
        limited = frame.with_columns(
            pl.col("at").alias("begin"),
            pl.col("at").dt.epoch("ms").alias("t"),
            pl.max_horizontal("at", since).alias("at"),
            until.alias("until"),
        )
        return to_wall_time(limited, self.zone, "begin", "at", "until")

    def extend(self, frame: pl.DataFrame, *, low: str, high: str) -> pl.DataFrame:
        """Add a rectangle of zero height at each end of the range, so the axis covers the whole range."""
        ends = to_wall_time(pl.DataFrame({"end": [self.since, self.until]}), self.zone, "end")["end"]
        ends = ends.cast(frame.schema["at"])
        corners = pl.concat([frame.head(1)] * 2).with_columns(
            ends.alias("at"), ends.alias("until"), pl.col(low).alias(high)
        )
        return pl.concat([frame, corners])


def to_wall_time(frame: pl.DataFrame, zone: ZoneInfo, *columns: str) -> pl.DataFrame:
    """Instants as the wall clock of a time zone, labelled UTC, because Vega draws every instant as UTC."""
    return frame.with_columns(
        pl.col(c).dt.convert_time_zone(zone.key).dt.replace_time_zone(None).dt.replace_time_zone("UTC")
        for c in columns
    )


def whole_numbers(is_count: bool, **options: Any) -> alt.Axis:
    """A vertical axis, which has labels of whole numbers only if its values are counts. Options as of `alt.Axis`."""
    return alt.Axis(**options, tickMinStep=1 if is_count else alt.Undefined)


def names_y(field: str, names: Sequence[str] | None = None) -> alt.Y:
    """The axis of the names next to bars, in their order. Long names are cut off; the tooltip shows them in full."""
    axis = alt.Axis(labelLimit=LABEL_PX, labelOverlap=False, grid=False)
    return alt.Y(f"{field}:N", sort=names, title=None, axis=axis)


def tooltips(*fields: str | tuple[str, ...]) -> list[alt.Tooltip]:
    """Rows of a tooltip: a field, or a field with its title and format. Altair turns strings into channels much more slowly."""
    given = [(one,) if isinstance(one, str) else one for one in fields]
    return [alt.Tooltip(one[0], **dict(zip(("title", "format"), one[1:], strict=False))) for one in given]  # type: ignore[arg-type]


def time_labels(length: timedelta) -> str:
    """The format of the labels of a time axis of this length."""
    return "%H:%M:%S" if length <= SECONDS_BELOW else "%H:%M" if length <= DATES_ABOVE else "%d %b %H:%M"


def time_tooltip(field: str, title: str) -> alt.Tooltip:
    """The row of a tooltip that shows an instant."""
    return alt.Tooltip(f"{field}:T", title=title, timeUnit=TIME_TOOLTIP)


def faded() -> alt.OpacityValue:
    """The opacity of marks with the column `complete`."""
    return alt.OpacityValue(FADED).condition(test="datum.complete", value=1)


def duration_unit(largest_ns: float, units: Sequence[str] = ("s", "ms", "µs")) -> tuple[float, str]:
    """(divisor, name) of the unit that suits the largest duration."""
    sizes = {"s": 1e9, "ms": 1e6, "µs": 1e3}
    name = next((unit for unit in units if largest_ns >= sizes[unit]), units[-1])
    return sizes[name], name


def largest(frame: pl.DataFrame, column: str) -> float:
    """The largest number of a column, or 0 if it has none."""
    found = frame[column].max()
    return float(found) if isinstance(found, int | float) else 0.0


def duration_text(column: str) -> pl.Expr:
    """A column of durations in ns as text."""
    return pl.col(column).map_elements(formatting.duration, return_dtype=pl.String)

"""The one house style of all charts: Altair in, nothing of it set anywhere else.

- Colours of series come from the theme (theme.toml: safe for any colour vision, light and dark); outcomes have colours of
  their own here, the same on every page, and never speak by colour alone: a legend or a tooltip names them.
- Times are drawn as wall clock of the reader's zone, which the axis names; Vega is told they are UTC so that it adds nothing.
- Durations arrive in ns and are drawn in the unit that suits the largest of them.
- Heights are fixed (axes and legend included, which is how Streamlit counts): a refresh moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl
import streamlit as st

from dashboard import units

HEIGHT = 230
OUTCOME_COLORS: dict[str, str] = {
    "ok": "#4c9ad3",
    "http_error": "#d55e00",
    "connect_error": "#a23b72",
    "inband_error": "#e4783a",
    "truncated": "#b58900",
    "upstream_reset": "#7a5cc9",
    "idle_timeout": "#cc79a7",
    "malformed": "#8c564b",
    "client_abort": "#9aa5ae",
    "tap_lost": "#5b666f",
}
KIND_COLORS: dict[str, str] = {
    "text": "#3b8fd0",
    "reasoning": "#9a7fe0",
    "tool_call": "#1faa83",
    "refusal": "#cc79a7",
    "audio": "#b58900",
    "error": "#d55e00",
    "finish": "#6b7f8c",
    "terminal": "#6b7f8c",
    "usage": "#8d99a3",
    "start": "#8d99a3",
}
OTHER_COLOR = "#8d99a3"
QUANTILE_DASH = {"p50": [1, 0], "p95": [6, 3], "p99": [2, 2]}


def draw(chart: alt.TopLevelMixin, alt_text: str, *, key: str | None = None) -> None:
    """Put a chart on the page, in the house style. `alt_text` is what a screen reader says."""
    styled = (
        chart.configure_axis(
            gridOpacity=0.35, domain=False, ticks=False, labelPadding=6, titleFontWeight="normal"
        )
        .configure_legend(orient="bottom", title=None, labelLimit=90, symbolSize=80, columns=3)
        .configure_view(strokeWidth=0)
        .configure_point(size=22, filled=True)
        .configure_line(strokeWidth=1.8)
    )
    st.altair_chart(styled, width="stretch", key=key, alt=alt_text)


def empty(words: str, *, height: int = HEIGHT) -> None:
    """The place of a chart that has nothing to draw, of the same height."""
    with st.container(
        height=height, border=False, vertical_alignment="center", horizontal_alignment="center"
    ):
        st.caption(words)


def wall(frame: pl.DataFrame, zone: ZoneInfo, *columns: str) -> pl.DataFrame:
    """Instants as wall clock of a zone, labelled UTC, so that Vega (told: UTC) draws just that."""
    return frame.with_columns(
        pl.col(c).dt.convert_time_zone(zone.key).dt.replace_time_zone(None).dt.replace_time_zone("UTC")
        for c in columns
    )


def unit_of(frame: pl.DataFrame, *columns: str) -> tuple[float, str]:
    """(divisor, name) of the unit that suits the largest of these durations in ns."""
    most = max((largest(frame, c) for c in columns), default=0.0)
    return (1e9, "s") if most >= 1e9 else (1e6, "ms") if most >= 1e6 else (1e3, "µs")


def largest(frame: pl.DataFrame, column: str) -> float:
    """The largest number of a column, 0 when there is none."""
    found = frame[column].max()
    return float(found) if isinstance(found, int | float) else 0.0


def time_axis(field: str, domain: Sequence[alt.DateTime] | None = None) -> alt.X:
    """A time axis, as long as its data when no domain is given."""
    scale = alt.Scale(type="utc", domain=list(domain)) if domain else alt.Scale(type="utc", nice=False)
    return alt.X(
        f"{field}:T", scale=scale, title=None, axis=alt.Axis(grid=False, labelOverlap=True, labelFlush=True)
    )


def time_lines(
    frame: pl.DataFrame,
    value: str,
    *,
    zone: ZoneInfo,
    span: tuple[datetime, datetime],
    series: str | None = None,
    order: Sequence[str] | None = None,
    dash: str | None = None,
    unit: str | None = None,
    form: Callable[[float | None], str] | None = None,
    rule: float | None = None,
    bucket_s: int | None = None,
    height: int = HEIGHT,
    zero: bool = True,
    legend: bool = True,
    percent: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """Lines of `value` over `at`, one per `series`; durations (columns that end in _ns) find their unit.

    `bucket_s` breaks a line where a point of time has no data, so that silence does not look like calm.
    """
    keys = [k for k in (series, dash) if k]
    frame = frame.filter(pl.col(value).is_not_null())
    if value.endswith("_ns"):
        divisor, unit = unit_of(frame, value)
        form = form or units.duration
    else:
        divisor = 1.0
        form = form or units.count
    frame = frame.with_columns(
        (pl.col(value) / divisor).alias("y"),
        pl.col(value).map_elements(form, return_dtype=pl.String).alias("said"),
    )
    if bucket_s:
        frame = _broken(frame, keys, bucket_s)
    drawn = wall(frame.select("at", "y", "said", *keys), zone, "at")
    axis = alt.Axis(tickCount=5, format="%") if percent else alt.Axis(tickCount=5)
    encoded: dict[str, Any] = {
        "x": time_axis("at", [_wall_moment(end, zone) for end in span]),
        "y": alt.Y("y:Q", title=unit, scale=alt.Scale(zero=zero, nice=True), axis=axis),
        "tooltip": [
            alt.Tooltip("at:T", title="time", timeUnit="utcyearmonthdatehoursminutesseconds"),
            *([alt.Tooltip(f"{k}:N", title=k) for k in keys]),
            alt.Tooltip("said:N", title="value"),
        ],
    }
    if series:
        shown = alt.Legend() if legend else None
        encoded["color"] = alt.Color(
            f"{series}:N",
            legend=shown,
            scale=alt.Scale(domain=list(order)) if order else alt.Undefined,
            sort=None,
        )
    if dash:
        names = [n for n in QUANTILE_DASH if n in set(frame[dash])]
        encoded["strokeDash"] = alt.StrokeDash(
            f"{dash}:N", scale=alt.Scale(domain=names, range=[QUANTILE_DASH[n] for n in names]), sort=None
        )
    base = alt.Chart(drawn).encode(**encoded)
    layers: list[alt.Chart] = [base.mark_line(invalid="break-paths-show-path-domains"), base.mark_point()]
    if dash:
        layers[1] = layers[1].encode(strokeDash=alt.Undefined)
    if rule is not None:
        layers.append(slo_rule(rule / divisor))
    return alt.layer(*layers).properties(height=height)


def slo_rule(at: float) -> alt.Chart:
    """A dashed line where an objective lies."""
    rule: alt.Chart = alt.Chart(pl.DataFrame({"slo": [at]})).mark_rule(strokeDash=[4, 4], color="#8d99a3")
    chart: alt.Chart = rule.encode(y="slo:Q", tooltip=alt.Tooltip("slo:Q", title="SLO"))
    return chart


def time_bars(
    frame: pl.DataFrame,
    value: str,
    *,
    zone: ZoneInfo,
    span: tuple[datetime, datetime],
    bucket_s: int,
    series: str,
    colors: dict[str, str],
    unit: str,
    height: int = HEIGHT,
) -> alt.Chart:
    """Bars of a count over time, stacked in the order of `colors`."""
    drawn = wall(
        frame.with_columns((pl.col("at") + pl.duration(seconds=bucket_s)).alias("until")), zone, "at", "until"
    )
    present = set(drawn[series])
    names = [n for n in colors if n in present] + sorted(n for n in present if n not in colors)
    place = {name: i for i, name in enumerate(names)}
    drawn = (
        drawn.with_columns(
            pl.col(series).replace_strict(place, return_dtype=pl.Int32).alias("place"),
            pl.col(value).fill_null(0),
        )
        .sort("at", "place")
        .with_columns(pl.col(value).cum_sum().over("at").alias("top"))
        .with_columns((pl.col("top") - pl.col(value)).alias("foot"))
    )
    drawn = to_the_ends(drawn, zone, span, flat=("foot", "top"))
    chart: alt.Chart = (
        alt.Chart(drawn)
        .mark_rect(stroke=None)
        .encode(
            x=time_axis("at"),
            x2="until:T",
            y=alt.Y("foot:Q", title=unit, axis=alt.Axis(tickCount=5)),
            y2="top:Q",
            color=alt.Color(
                f"{series}:N",
                scale=alt.Scale(domain=names, range=[colors.get(n, OTHER_COLOR) for n in names]),
                sort=None,
            ),
            tooltip=[
                alt.Tooltip("at:T", title="from", timeUnit="utcyearmonthdatehoursminutesseconds"),
                alt.Tooltip(f"{series}:N"),
                alt.Tooltip(f"{value}:Q", format=",.4~g", title=unit),
            ],
        )
        .properties(height=height)
    )
    return chart


def _broken(frame: pl.DataFrame, keys: list[str], bucket_s: int) -> pl.DataFrame:
    """Puts a NULL after each point that has no neighbour to the right, so that the line breaks there."""
    step = pl.duration(seconds=bucket_s)
    ahead = pl.col("at").shift(-1)
    ordered = frame.sort(*keys, "at")
    gap = (ahead.over(keys) if keys else ahead) > pl.col("at") + step
    breaks = ordered.filter(gap).with_columns(
        pl.col("at") + step,
        pl.lit(None, dtype=pl.Float64).alias("y"),
        pl.lit(None, dtype=pl.String).alias("said"),
    )
    return pl.concat([ordered, breaks]).sort(*keys, "at")


def to_the_ends(
    frame: pl.DataFrame, zone: ZoneInfo, span: tuple[datetime, datetime], *, flat: tuple[str, str]
) -> pl.DataFrame:
    """Adds a rectangle of no size at each end of the selection, so that the axis reaches there.

    A domain would say it better, but Vega-Lite complains of one on a mark that has x and x2.
    """
    kind, (low, high) = frame.schema["at"], flat
    ends = wall(pl.DataFrame({"end": list(span)}), zone, "end")["end"].cast(kind)
    corner = pl.concat([frame.head(1)] * 2).with_columns(
        ends.alias("at"), ends.alias("until"), pl.col(low).alias(high)
    )
    return pl.concat([frame, corner])


def _wall_moment(at: datetime, zone: ZoneInfo) -> alt.DateTime:
    """An instant as `wall` writes it, for the ends of an axis."""
    local = at.astimezone(zone)
    return alt.DateTime(
        year=local.year,
        month=local.month,
        date=local.day,
        hours=local.hour,
        minutes=local.minute,
        seconds=local.second,
        utc=True,
    )


def stacked(
    frame: pl.DataFrame, *, colors: dict[str, str], series: str = "outcome", unit: str = "streams"
) -> alt.Chart:
    """Horizontal bars of `n` by `name`, the largest first, stacked by a series with colours of its own."""
    present = [c for c in colors if c in set(frame[series])]
    names = (
        frame.group_by("name")
        .agg(pl.col("n").sum())
        .sort("n", "name", descending=[True, False])["name"]
        .to_list()
    )
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadius=2)
        .encode(
            y=alt.Y(
                "name:N",
                sort=names,
                title=None,
                axis=alt.Axis(labelLimit=200, labelOverlap=False, grid=False),
            ),
            x=alt.X("n:Q", title=unit, axis=alt.Axis(tickMinStep=1, tickCount=5)),
            color=alt.Color(
                f"{series}:N", scale=alt.Scale(domain=present, range=[colors[c] for c in present]), sort=None
            ),
            tooltip=["name:N", f"{series}:N", alt.Tooltip("n:Q", title=unit)],
        )
        .properties(height=24 * len(names) + 125)
    )
    return chart


def dots(
    frame: pl.DataFrame, *, series: str, value: str, order: Sequence[str]
) -> alt.LayerChart | alt.FacetChart:
    """One row per `name`, a dot per series, joined by a line: how far apart the dots are is the point."""
    divisor, unit = unit_of(frame, value)
    drawn = frame.with_columns(
        (pl.col(value) / divisor).alias("x"),
        pl.col(value).map_elements(units.duration, return_dtype=pl.String).alias("said"),
    )
    names = drawn["name"].unique(maintain_order=True).to_list()
    base = alt.Chart(drawn).encode(
        y=alt.Y(
            "name:N", sort=names, title=None, axis=alt.Axis(labelLimit=200, labelOverlap=False, grid=False)
        ),
        x=alt.X("x:Q", title=unit, scale=alt.Scale(zero=True)),
    )
    line = base.mark_line(color="#8d99a3", opacity=0.5, strokeWidth=1.5).encode(detail="name:N")
    points = base.mark_point(filled=True, size=70, opacity=0.95).encode(
        color=alt.Color(f"{series}:N", sort=list(order), scale=alt.Scale(domain=list(order))),
        shape=alt.Shape(f"{series}:N", sort=list(order), scale=alt.Scale(domain=list(order))),
        tooltip=["name:N", f"{series}:N", alt.Tooltip("said:N", title="value")],
    )
    return alt.layer(line, points).properties(height=28 * len(names) + 125)

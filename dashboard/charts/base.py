"""The one house style of all charts: Altair in, nothing of it set anywhere else.

- Colours come from `palette`. Series are named once, by `legend`, above all the charts that share them: so a chart's height is
  its plot's, and a refresh moves nothing.
- Times are drawn as wall clock of the reader's zone, which the page names; Vega is told they are UTC so that it adds nothing.
- Durations arrive in ns and are drawn in the unit that suits the largest of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from html import escape
from zoneinfo import ZoneInfo

import altair as alt
import polars as pl
import streamlit as st
from altair.utils import schemapi

from dashboard import formatting, palette

HEIGHT = 200
SECONDS_UNTIL = timedelta(minutes=6)
HOURS_UNTIL = timedelta(hours=26)
"""Up to these lengths an axis of time is labelled with seconds, and without dates."""
LABEL_PX = 180
"""Names beside bars are cut at this width; the tooltip has them whole."""


def house_style() -> alt.Config:
    """What all charts have in common."""
    return alt.Config(
        axis=alt.AxisConfig(
            gridOpacity=0.35, domain=False, ticks=False, labelPadding=6, titleFontWeight="normal"
        ),
        legend=alt.LegendConfig(orient="bottom", title=None, labelLimit=160, symbolSize=80),
        view=alt.ViewConfig(strokeWidth=0),
        point=alt.MarkConfig(size=22, filled=True),
        line=alt.LineConfig(strokeWidth=1.8),
    )


Drawing = alt.Chart | alt.LayerChart | alt.FacetChart


def draw(chart: Drawing, alt_text: str, *, key: str | None = None) -> None:
    """Put a chart on the page, in the house style. `alt_text` is what a screen reader says.

    Altair holds every chart against Vega-Lite's schema, which is most of the work of a page. The tests want that; a served
    dashboard has it off (`launch`), and then it is off here, too.
    """
    chart.config = house_style()
    if not schemapi.DEBUG_MODE:
        object.__setattr__(chart, "to_dict", partial(chart.to_dict, validate=False))
    st.altair_chart(chart, width="stretch", key=key, alt=alt_text)


def empty() -> None:
    """The place of a chart that has nothing to draw, of the same height."""
    with st.container(
        height=HEIGHT, border=False, vertical_alignment="center", horizontal_alignment="center"
    ):
        st.caption("nothing known here for these streams")


def legend(colors: Mapping[str, str]) -> None:
    """Names and colours in one line, for all charts below it."""
    entries = "".join(
        '<span style="display:inline-flex;align-items:center;max-width:22em;overflow:hidden" '
        f'title="{escape(name, quote=True)}">'
        f'<span style="flex:none;width:.75em;height:.75em;border-radius:2px;margin-right:.4em;background:{color}"></span>'
        f'<span style="overflow:hidden;text-overflow:ellipsis;white-space:nowrap">{escape(name)}</span></span>'
        for name, color in colors.items()
    )
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:.15em 1.2em;font-size:.87rem">{entries}</div>')


def color_of(field: str, colors: Mapping[str, str]) -> alt.Color:
    """A colour scale whose names `legend` tells."""
    return alt.Color(
        f"{field}:N",
        legend=None,
        scale=alt.Scale(domain=list(colors), range=list(colors.values())),
        sort=None,
    )


def present(colors: Mapping[str, str], frame: pl.DataFrame, series: str) -> dict[str, str]:
    """Those of the colours that the frame has a use for, in their order; what has no colour is grey, at the end."""
    found = set(frame[series].drop_nulls())
    rest = dict.fromkeys(sorted(found - set(colors)), palette.REST)
    return {n: c for n, c in colors.items() if n in found} | rest


def names_axis() -> alt.Axis:
    """The axis of names beside bars."""
    return alt.Axis(labelLimit=LABEL_PX, labelOverlap=False, grid=False)


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


def time_axis(span: tuple[datetime, datetime], domain: Sequence[alt.DateTime] | None = None) -> alt.X:
    """A time axis over a range, by a clock of 24 hours; as long as its data when no domain is given."""
    scale = alt.Scale(type="utc", domain=list(domain)) if domain else alt.Scale(type="utc", nice=False)
    length = span[1] - span[0]
    form = "%H:%M:%S" if length <= SECONDS_UNTIL else "%H:%M" if length <= HOURS_UNTIL else "%d %b %H:%M"
    axis = alt.Axis(grid=False, labelOverlap=True, labelFlush=True, format=form, tickCount=8)
    return alt.X("at:T", scale=scale, title=None, axis=axis)


def wall_moment(at: datetime, zone: ZoneInfo) -> alt.DateTime:
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


def said(column: str) -> pl.Expr:
    """A duration in ns in words."""
    return pl.col(column).map_elements(formatting.duration, return_dtype=pl.String)

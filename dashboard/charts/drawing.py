"""Draw charts on a page in one style. Legends are drawn outside the charts, so several charts can share one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape

import altair as alt
import streamlit as st
from altair.utils import schemapi

HEIGHT = 200

Drawing = alt.Chart | alt.LayerChart | alt.FacetChart


def _style() -> alt.Config:
    return alt.Config(
        axis=alt.AxisConfig(
            gridOpacity=0.35, domain=False, ticks=False, labelPadding=6, titleFontWeight="normal"
        ),
        legend=alt.LegendConfig(orient="bottom", title=None, labelLimit=160, symbolSize=80),
        view=alt.ViewConfig(strokeWidth=0),
        point=alt.MarkConfig(size=22, filled=True),
        line=alt.LineConfig(strokeWidth=1.8),
    )


def draw(chart: Drawing, alt_text: str, *, key: str | None = None) -> None:
    """Put a chart on the page. `alt_text` is for screen readers."""
    chart.config = _style()
    # Validation against Vega-Lite's schema takes most of a page's time. `launch` switches it off; tests keep it.
    if not schemapi.DEBUG_MODE:
        object.__setattr__(chart, "to_dict", partial(chart.to_dict, validate=False))
    st.altair_chart(chart, width="stretch", key=key, alt=alt_text)


def draw_placeholder() -> None:
    """A note of the same height in place of a chart without data."""
    with st.container(
        height=HEIGHT, border=False, vertical_alignment="center", horizontal_alignment="center"
    ):
        st.caption("No data for these streams")


def draw_legend(colors: Mapping[str, str]) -> None:
    """Names and colours in one line, for the charts below it."""
    entries = "".join(
        '<span style="display:inline-flex;align-items:center;max-width:22em;overflow:hidden" '
        f'title="{escape(name, quote=True)}">'
        f'<span style="flex:none;width:.75em;height:.75em;border-radius:2px;margin-right:.4em;background:{color}"></span>'
        f'<span style="overflow:hidden;text-overflow:ellipsis;white-space:nowrap">{escape(name)}</span></span>'
        for name, color in colors.items()
    )
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:.15em 1.2em;font-size:.87rem">{entries}</div>')

"""Draw charts on a page in one style. Legends are drawn outside the charts, so several charts can share one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from html import escape
from typing import Any

import altair as alt
import streamlit as st
from altair.utils import schemapi

from streamgauge.analytics.reports import formatting

HEIGHT = 200
STEP_PX = 20
"""Step of the heights that a page reserves for its charts."""

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


OVER_TIME: dict[str, Any] = {"embedOptions": {"renderer": "svg"}}
"""`usermeta` of a chart over the time range of its page, which `time_pointer` links with the others. It finds the plot in the SVG."""


CLICKED = "clicked"
"""Name of the selection of a chart whose marks the reader can click."""


def draw(
    chart: Drawing,
    alt_text: str,
    *,
    key: str,
    on_click: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Put a chart on the page. `alt_text` is for screen readers. `on_click` gets the fields of the selection `CLICKED`.

    A container has the height of the chart before Vega draws it (see `css`).
    """
    chart.config = _style()
    # Validation against Vega-Lite's schema takes most of a page's time. `launch` switches it off; tests keep it.
    if not schemapi.DEBUG_MODE:
        object.__setattr__(chart, "to_dict", partial(chart.to_dict, validate=False))
    height = getattr(chart, "height", None)
    reserved = height // STEP_PX * STEP_PX if isinstance(height, int) else 0
    # Only containers have their key as a class.
    with st.container(
        key=f"{'over-time' if chart.usermeta == OVER_TIME else 'chart'}-height-{reserved}-{key}"
    ):
        if on_click is None:
            st.altair_chart(chart, width="stretch", key=key, alt=alt_text)
            return
        handle = on_click

        def selected() -> None:
            if points := st.session_state[key].selection.get(CLICKED):
                handle(points[0])

        st.altair_chart(
            chart, width="stretch", key=key, alt=alt_text, on_select=selected, selection_mode=CLICKED
        )


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


def choose_series(colors: Mapping[str, str], highlighted: Collection[str] = ()) -> Collection[str]:
    """Draw the legend of the charts below it as buttons. Returns the series that the charts highlight.

    A click isolates a series, another one restores all. The URL has the series. Without one, `highlighted` are the series.
    """
    names = list(colors)
    if st.session_state.get("series") not in names:
        st.session_state.pop("series", None)
    with st.container(key="legend"):
        chosen = st.pills(
            "Series", names, key="series", bind="query-params", format_func=formatting.markdown, label_visibility="collapsed"
        )  # fmt: skip
        shown = {chosen} if chosen in names else {name for name in names if name in highlighted}
        swatches = "".join(
            f".st-key-legend button:nth-of-type({i})::before{{background:{color};opacity:{1 if not shown or name in shown else 0.3}}}"
            for i, (name, color) in enumerate(colors.items(), 1)
        )
        st.html(f"<style>{swatches}</style>")
    return shown

"""What stands in several pages: a chart in its box, with its title, its help text, and words in its place when there is nothing
to draw; colours of series; a row of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl
import streamlit as st

from dashboard import palette
from dashboard.charts import base


def panel(
    title: str,
    frame: pl.DataFrame,
    make: Callable[[pl.DataFrame], base.Drawing],
    *,
    help_text: str | None = None,
    value: str | None = None,
    note: str | None = None,
    legend: Mapping[str, str] | None = None,
) -> None:
    """`make(frame)` in a box; without rows (or without any known `value`) a line that says so, of the same height.

    `legend`: names and colours of this box alone; what several boxes share stands above them.
    """
    with st.container(border=True, height="stretch"):
        st.markdown(f"**{title}**", help=help_text)
        if legend:
            base.legend(legend)
        if frame.is_empty() or (value is not None and frame[value].drop_nulls().is_empty()):
            base.empty()
            return
        base.draw(make(frame), title, key=f"chart-{title}")
        if note:
            st.caption(note)


def colors_of(frame: pl.DataFrame, order: Sequence[str] = ()) -> dict[str, str]:
    """A colour for each name of the series, in an order that does not depend on the data of the moment; "others" last."""
    found = set(frame["name"].drop_nulls())
    names = [n for n in order if n in found] or sorted(found - {palette.OTHERS})
    return palette.of_series([*names, *([palette.OTHERS] if palette.OTHERS in found else [])])


def choice(label: str, options: Sequence[str], usual: str, *, key: str, labelled: bool = True) -> str:
    """A row of options of which one is chosen; part of the address under `key`. A screen reader always hears the label."""
    chosen: str = st.segmented_control(
        label, options, default=usual, required=True, key=key, bind="query-params",
        label_visibility="visible" if labelled else "collapsed",
    )  # fmt: skip
    return chosen

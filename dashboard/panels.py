"""A chart in its box, with its title, its help text, and words in its place when there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt
import polars as pl
import streamlit as st

from dashboard import charts


def panel(
    title: str,
    frame: pl.DataFrame,
    make: Callable[[pl.DataFrame], alt.TopLevelMixin],
    *,
    help_text: str | None = None,
    value: str | None = None,
    note: str | None = None,
) -> None:
    """`make(frame)` in a box; without rows (or without any known `value`) a line that says so, of the same height."""
    with st.container(border=True):
        st.markdown(f"**{title}**", help=help_text)
        if frame.is_empty() or (value is not None and frame[value].drop_nulls().is_empty()):
            charts.empty("nothing known here for these streams")
            return
        charts.draw(make(frame), title, key=f"chart-{title}")
        if note:
            st.caption(note)


def names_of(frame: pl.DataFrame, column: str = "name") -> list[str]:
    """The names of the series, in an order that does not depend on the data of the moment."""
    return sorted(set(frame[column].drop_nulls()))

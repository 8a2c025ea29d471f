"""Columns and expressions that several tables share."""

from __future__ import annotations

from functools import partial
from zoneinfo import ZoneInfo

import polars as pl
import streamlit as st

from dashboard import formatting

text, link, progress = (
    st.column_config.TextColumn,
    st.column_config.LinkColumn,
    st.column_config.ProgressColumn,
)
instant = st.column_config.DatetimeColumn
number = st.column_config.NumberColumn
count = partial(number, format="%d")
percent = partial(number, format="%.1f %%")
ms = partial(number, format="%.0f ms")
seconds = partial(number, format="%.1f s")
tokens_per_s = partial(number, format="%.1f tok/s")

NS_TO_MS, NS_TO_S, TO_PERCENT = 1e-6, 1e-9, 100

show = partial(st.dataframe, hide_index=True, placeholder=formatting.UNKNOWN)


def local_time(name: str, zone: ZoneInfo) -> pl.Expr:
    """A column of instants as the wall clock of a time zone."""
    return pl.col(name).dt.convert_time_zone(zone.key).dt.replace_time_zone(None)


def scaled(factor: float, *names: str) -> list[pl.Expr]:
    """Columns times a factor, for example ns as ms."""
    return [pl.col(name) * factor for name in names]


def short_client() -> pl.Expr:
    """The column `name` with client hashes shortened to 10 of their 32 digits."""
    return pl.col("name").str.replace(r"^([0-9a-f]{10})[0-9a-f]{22}$", "$1…")

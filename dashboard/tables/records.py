"""Rows of the store as a table, with headings made of the column names."""

from __future__ import annotations

import polars as pl

from streamgauge.dashboard import filters
from streamgauge.dashboard.tables import html_table
from streamgauge.dashboard.tables.html_table import Column

LONG = 40
"""Characters per line of long texts, such as JSON."""


def show_records(frame: pl.DataFrame, *, label: str) -> None:
    """Draw all columns. Instants are in the reader's time zone, which their headings name; numbers have grouped digits."""
    columns = [_column(name, frame[name]) for name in frame.columns]
    html_table.show_table(columns, frame, label=label, stacks=True)


def _column(name: str, values: pl.Series) -> Column:
    dtype, heading = values.dtype, name.replace("_", " ").capitalize()
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        zone = filters.time_zone()
        return html_table.instant(name, f"{heading} ({zone.key})", zone, form="%Y-%m-%d %H:%M:%S.%f")
    if dtype.is_integer():
        return html_table.number(name, heading)
    if dtype.is_float():
        return html_table.number(name, heading, digits=3)
    longest = values.cast(pl.String, strict=False).str.len_chars().max() or 0
    return Column(name=name, heading=heading, min_characters=LONG if longest > LONG else html_table.WORD)  # type: ignore[operator]

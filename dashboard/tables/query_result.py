"""Any query result as a table."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import streamlit as st

from dashboard import filters, formatting
from dashboard.tables import columns


def show_result(
    frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto", readable: bool = False
) -> None:
    """A result with instants in the reader's time zone, which their headings name.

    `readable` turns column names into headings, groups digits, and shows NULL as unknown.
    """
    zone = filters.time_zone()
    config: dict[str, Any] = {}
    instants = []
    for name, dtype in frame.schema.items():
        heading = name.replace("_", " ").capitalize() if readable else name
        if isinstance(dtype, pl.Datetime) and dtype.time_zone:
            instants.append(columns.local_time(name, zone))
            config[name] = columns.instant(f"{heading} ({zone.key})", format="YYYY-MM-DD HH:mm:ss.SSS")
        elif readable and dtype.is_integer():
            config[name] = columns.number(heading, format="localized")
        else:
            config[name] = heading
    st.dataframe(
        frame.with_columns(instants),
        hide_index=True,
        key=key,
        placeholder=formatting.UNKNOWN if readable else "NULL",
        height=height,
        column_config=config,
    )

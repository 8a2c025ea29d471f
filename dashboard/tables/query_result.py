"""Any query result as a table."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import streamlit as st

from streamgauge.dashboard import filters


def show_result(frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto") -> None:
    """A result with instants in the reader's time zone, which their headings name."""
    zone = filters.time_zone()
    config: dict[str, Any] = {}
    instants = []
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Datetime) and dtype.time_zone:
            instants.append(pl.col(name).dt.convert_time_zone(zone.key).dt.replace_time_zone(None))
            config[name] = st.column_config.DatetimeColumn(
                f"{name} ({zone.key})", format="YYYY-MM-DD HH:mm:ss.SSS"
            )
    st.dataframe(
        frame.with_columns(instants),
        hide_index=True,
        key=key,
        placeholder="NULL",
        height=height,
        column_config=config,
    )

"""Names instead of client ids in the rows of a query."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from streamgauge.analytics.schema.clients import MAX_CLIENTS

QUERY = f"SELECT client_id, name FROM clients LIMIT {MAX_CLIENTS}"
_SHOWN_IN = ("name", "client")


def with_client_names(rows: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """The rows with names instead of client ids in the columns `name` and `client`. The column `client_id` is unchanged."""
    columns = [column for column in _SHOWN_IN if names and rows.schema.get(column) == pl.String]
    return rows.with_columns(pl.col(columns).replace(names)) if columns else rows

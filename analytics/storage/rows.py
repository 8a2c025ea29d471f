"""Rows of small answers."""

from __future__ import annotations

from typing import Any

import duckdb


def first_row(result: duckdb.DuckDBPyConnection) -> tuple[Any, ...] | None:
    """The first row, of a result that is then read to its end.

    One that is not (`fetchone`) keeps its transaction open until the connection's next statement, and with it everything
    that was committed since: no checkpoint succeeds, and the `.wal` grows.
    """
    rows = result.fetchall()
    return rows[0] if rows else None

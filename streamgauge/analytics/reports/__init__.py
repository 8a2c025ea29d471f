"""The questions that all readers answer: the dashboard, `top`, MCP, alerts and notebooks show what these modules return.

One module per question owns its SQL over the public tables, its result with units, and its vocabulary.

- Functions take `query` (runs SQL, returns a polars frame) and a `Selection`. Their docstrings name the columns of the result.
- Values are literals in the SQL, because readers run single statements without parameters. `sql_quoting.literal` quotes them.
- The database aggregates. A result has only the rows that are shown, and the SQL limits their number.
- Unknown values stay NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `formatting` is imported where no query runs
    import polars as pl

Query = Callable[[str], "pl.DataFrame"]
"""Runs one read-only statement. Raises `streamgauge.analytics.query.query_errors.QueryError` with a one-line message."""


def number_of(query: Query, expression: str, source: str) -> int:
    """The number that an expression of SQL has over tables with a condition."""
    return int(query(f"SELECT {expression} AS n FROM {source}").item() or 0)


def has_rows(query: Query, table: str, where: str = "TRUE") -> bool:
    """Whether any row of the table meets the SQL condition."""
    return bool(query(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {where}) AS found")["found"][0])

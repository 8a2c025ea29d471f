"""All SQL of the dashboard, over the public tables. One module per page, or per concept that pages share.

- Functions take `query` (runs SQL, returns a polars frame) and a `Selection`. Their docstrings name the columns of the result.
- Values are literals in the SQL, because readers run single statements without parameters. `sql_quoting.literal` quotes them.
- The database aggregates. A result has only the rows that are drawn, and the SQL limits their number.
- Unknown values stay NULL.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

Query = Callable[[str], pl.DataFrame]
"""Runs one read-only statement. Raises `streamgauge.analytics.query.errors.QueryError` with a one-line message."""

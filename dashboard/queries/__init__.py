"""All SQL of the dashboard, over the public tables only.

- Each function takes `ask` (SQL in, polars frame out) and a `Selection`, and answers a frame whose columns its docstring names.
- SQL is plain SELECT with the values written into it as literals, escaped in one place (`selection.literal`): the read side
  takes one statement and no parameters.
- Work is done in the database: a frame holds what is drawn, never what it is made of. Limits are written into the SQL.
- NULL stays NULL.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

Ask = Callable[[str], pl.DataFrame]
"""Runs one read-only statement. Raises `analytics.query.errors.QueryError` with a message of one line."""

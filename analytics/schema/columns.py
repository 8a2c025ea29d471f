"""Columns of the tables in schema.sql and open_streams.sql. Requires neither DuckDB nor polars."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources


@cache
def sql_columns(table: str) -> dict[str, str]:
    """SQL types by column, in order. Raises KeyError for an unknown table."""
    here = resources.files("streamgauge.analytics.schema")
    found = {}
    for file in ("schema.sql", "open_streams.sql"):
        text = re.sub(r"--.*", "", (here / file).read_text())
        for name, body in re.findall(r"CREATE TABLE IF NOT EXISTS ([\w.]+) \((.*?)\);", text, re.DOTALL):
            found[name] = dict(column.split()[:2] for column in body.split(","))
    return found[table]

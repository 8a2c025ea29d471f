"""Prices for tests, and the table of them."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import duckdb

from streamgauge.analytics.schema.prices import COLUMNS, DEFAULTS, Price


def price(model: str, cost: float, output: float, **given: Any) -> Price:
    """A price with the defaults that a file has."""
    values = {"input": cost, "output": output, "web_search": 0.0, "currency": "USD", **given}
    for name, instead in DEFAULTS.items():
        values.setdefault(name, values[instead])
    return Price(model=model, **values)


def set_prices(con: duckdb.DuckDBPyConnection, *prices: Price) -> None:
    """Replace the table of a connection."""
    con.execute("DELETE FROM prices")
    for number, row in enumerate(prices):
        con.execute(
            f"INSERT INTO prices (priority, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})",
            [number, *astuple(row)],
        )

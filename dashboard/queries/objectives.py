"""SQL for the objectives that streams are judged by."""

from __future__ import annotations

from streamgauge.analytics.schema.objectives import COLUMNS, DEFAULT, Objective
from streamgauge.dashboard.queries import Query

_NAMES = {"name": "objective", "client": "client_glob"}
"""Readers replace client ids in columns with the original names."""


def objectives(query: Query, default: Objective) -> tuple[Objective, ...]:
    """The objectives of the settings that analytics started with, by priority, then `default`. Raises QueryError."""
    columns = ", ".join(f"{name} AS {_NAMES.get(name, name)}" for name in COLUMNS)
    rows = query(f"SELECT {columns} FROM objectives WHERE name <> '{DEFAULT.name}' ORDER BY priority")
    found = (
        Objective(*(row[_NAMES.get(name, name)] for name in COLUMNS)) for row in rows.iter_rows(named=True)
    )
    return (*found, default)

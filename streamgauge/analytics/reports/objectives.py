"""The objectives that streams are judged by, and their error budgets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import polars as pl

from streamgauge.analytics.reports import Query, formatting
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.objectives import BURN_WINDOWS, COLUMNS, DEFAULT, Objective


def stored_objectives(query: Query) -> tuple[Objective, ...]:
    """The objectives of the settings that analytics started with, by priority. The last one applies to all other streams.

    `DEFAULT` before analytics has stored any. Raises QueryError.
    """
    # Pages replace client ids in columns that are called `name` or `client`; these are names and globs of objectives.
    columns = ", ".join(f"{name} AS own_{name}" for name in COLUMNS)
    rows = query(f"SELECT {columns} FROM objectives ORDER BY priority")
    return tuple(Objective(*row) for row in rows.iter_rows()) or (DEFAULT,)


# Error budgets


def burning(query: Query, selection: Selection, *, most: int = 5) -> pl.DataFrame:
    """Objectives that burn too fast now, regardless of the time range, the worst first: the row with the highest burn rate.

    `objective, indicator, severity, gateway, model, burn_1h, burn_6h, burn_3d, sources` (gateways and models that burn),
    `spent` (share of the error budget of the objective), `data_s` (seconds since the first stored data).
    """
    by_column = (("gateway", selection.gateways), ("model", selection.models))
    filters = [is_one_of(column, values) for column, values in by_column if values]
    return query(f"""
        SELECT worst.*, spent, (SELECT epoch(now() - min(first_at)) FROM stream_minutes) AS data_s FROM (
            SELECT objective, indicator, severity, gateway, model, burn_1h, burn_6h, burn_3d,
                count(*) OVER (PARTITION BY objective, indicator) AS sources
            FROM burn_rates WHERE severity IS NOT NULL AND {" AND ".join(filters) or "TRUE"}
            QUALIFY row_number() OVER (
                PARTITION BY objective, indicator ORDER BY severity = 'page' DESC, burn_1h DESC NULLS LAST, burn_3d DESC) = 1
        ) AS worst LEFT JOIN error_budgets USING (objective, indicator)
        ORDER BY severity = 'page' DESC, burn_1h DESC NULLS LAST, objective, indicator LIMIT {most:d}""")


def burn_text(row: Mapping[str, Any]) -> str:
    """The burn rates of a row of `burning`: `16× (1 h), 14× (2 h of data instead of 6 h and 3 d)`."""
    parts, data_s = [], float(row["data_s"])
    windows = [(name, 60 * BURN_WINDOWS[name]) for name in ("1h", "6h", "3d")]
    for name, length_s in windows:
        if length_s <= data_s:
            parts.append(f"{formatting.factor(row[f'burn_{name}'])} ({_span(length_s)})")
    if longer := [(name, length_s) for name, length_s in windows if length_s > data_s]:
        *others, last = (_span(length_s) for _, length_s in longer)
        instead = f"{', '.join(others)} and {last}" if others else last
        rate = formatting.factor(row[f"burn_{longer[0][0]}"])
        parts.append(f"{rate} ({_span(data_s)} of data instead of {instead})")
    return ", ".join(parts)


def _span(length_s: float) -> str:
    return formatting.span(timedelta(seconds=length_s))

"""The objectives that streams are judged by, and their error budgets."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.analytics.schema.objectives import COLUMNS, DEFAULT, Objective


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
    `spent` (share of the error budget of the objective).
    """
    by_column = (("gateway", selection.gateways), ("model", selection.models))
    filters = [is_one_of(column, values) for column, values in by_column if values]
    return query(f"""
        SELECT worst.*, spent FROM (
            SELECT objective, indicator, severity, gateway, model, burn_1h, burn_6h, burn_3d,
                count(*) OVER (PARTITION BY objective, indicator) AS sources
            FROM burn_rates WHERE severity IS NOT NULL AND {" AND ".join(filters) or "TRUE"}
            QUALIFY row_number() OVER (
                PARTITION BY objective, indicator ORDER BY severity = 'page' DESC, burn_1h DESC NULLS LAST, burn_3d DESC) = 1
        ) AS worst LEFT JOIN error_budgets USING (objective, indicator)
        ORDER BY severity = 'page' DESC, burn_1h DESC NULLS LAST, objective, indicator LIMIT {most:d}""")

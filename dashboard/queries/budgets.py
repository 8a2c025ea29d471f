"""SQL for error budgets of objectives: which burn too fast."""

from __future__ import annotations

import polars as pl

from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.dashboard.queries import Query
from streamgauge.dashboard.queries.selection import Selection


def burning(query: Query, selection: Selection, *, most: int = 5) -> pl.DataFrame:
    """Objectives that burn too fast now, regardless of the time range, the worst first: the row with the highest burn rate.

    `objective, indicator, severity, gateway, model, burn_1h, burn_6h, burn_3d, sources` (gateways and models that burn),
    `spent` (share of the error budget of the objective).
    """
    filters = [
        f"{column} IN ({', '.join(map(literal, values))})"
        for column, values in (("gateway", selection.gateways), ("model", selection.models))
        if values
    ]
    return query(f"""
        SELECT worst.*, spent FROM (
            SELECT objective, indicator, severity, gateway, model, burn_1h, burn_6h, burn_3d,
                count(*) OVER (PARTITION BY objective, indicator) AS sources
            FROM burn_rates WHERE severity IS NOT NULL AND {" AND ".join(filters) or "TRUE"}
            QUALIFY row_number() OVER (
                PARTITION BY objective, indicator ORDER BY severity = 'page' DESC, burn_1h DESC NULLS LAST, burn_3d DESC) = 1
        ) AS worst LEFT JOIN error_budgets USING (objective, indicator)
        ORDER BY severity = 'page' DESC, burn_1h DESC NULLS LAST, objective, indicator LIMIT {most:d}""")

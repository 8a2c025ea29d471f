"""Gauges of burn rates, error budgets, budgets and rate limits, read from the views `burn_rates`, `error_budgets` and `budget_spend`. The
rate limits come from the evaluation of alerts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import duckdb
import polars as pl
from opentelemetry.metrics import CallbackOptions, Observation

from streamgauge.analytics.schema.budgets import SPEND_WINDOWS
from streamgauge.analytics.schema.objectives import BURN_COLUMNS, BURN_WINDOWS
from streamgauge.analytics.telemetry.semconv import NAMESPACE, Names

READ_EVERY_S = 60.0
VALID_S = 5 * READ_EVERY_S
MAX_SOURCES = 200
"""Combinations of objective, indicator, gateway and model."""
_BURN = (
    f"SELECT objective, indicator, gateway, model, {BURN_COLUMNS} FROM burn_rates "
    f"ORDER BY burn_1h DESC NULLS LAST, burn_3d DESC NULLS LAST, objective, indicator, gateway, model LIMIT {MAX_SOURCES}"
)
_SPENT = "SELECT objective, indicator, spent FROM error_budgets ORDER BY ALL"
_SPEND = f"""
SELECT name, {", ".join(f"burn_{window}" for window in SPEND_WINDOWS)}, spent / amount, forecast_low / amount, forecast / amount,
    forecast_high / amount
FROM budget_spend"""
SPEND_EVERY_S = 300.0
"""The view reads the streams of a month."""
GAUGES = (
    "objective.burn_rate",
    "objective.budget_spent",
    "budget.burn_rate",
    "budget.spent",
    "budget.forecast",
    "rate_limit.limit",
    "rate_limit.remaining",
    "rate_limit.reset",
    "rate_limit.forecast",
)

Series = tuple[float, dict[str, Any]]


# One thread reads the views, the exporters' threads observe. Only the `MAX_SOURCES` rows that burn fastest are series, because every
# series costs the metrics backend money. In a shared store only the process elected for the alerts reads: the values of a process that
# lost the election would stay forever, so they expire after `VALID_S`.
class ObjectiveGauges:
    """Values and attributes of the last readings."""

    def __init__(self, names: Names, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._names, self._clock_s = names, clock_s
        self._read: dict[str, tuple[float, list[Series]]] = {}
        """(time of reading, series) by gauge. Entries are replaced as a whole."""

    def read(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Read the views. Raises duckdb.Error."""
        burn: list[Series] = []
        for objective, indicator, gateway, model, *rates in cursor.execute(_BURN).fetchall():
            source = {**_budget(objective, indicator), NAMESPACE + "gateway": gateway or "unknown"}
            if model is not None:
                source[self._names.request_model] = model
            burn += _series(source, "window", BURN_WINDOWS, rates)
        spent: list[Series] = [
            (share, _budget(objective, indicator))
            for objective, indicator, share in cursor.execute(_SPENT).fetchall()
            if share is not None
        ]
        now_s = self._clock_s()
        self._read |= {"objective.burn_rate": (now_s, burn), "objective.budget_spent": (now_s, spent)}
        if now_s - self._read.get("budget.spent", (float("-inf"),))[0] >= SPEND_EVERY_S:
            self._read_budgets(cursor, now_s)

    def update_limits(self, rows: pl.DataFrame, now: datetime) -> None:
        """Replace the rate limits: rows of `streamgauge.analytics.reports.rate_limits.table` as of `now`."""
        found: dict[str, list[Series]] = {"limit": [], "remaining": [], "reset": [], "forecast": []}
        now_s = self._clock_s()
        for row in rows.to_dicts():
            source = {NAMESPACE + name: row[name] for name in ("gateway", "client")} | {
                self._names.request_model: row["model"],
                NAMESPACE + "limit": row["quota"] or row["kind"],
            }
            reset_s = None if row["reset_at"] is None else max((row["reset_at"] - now).total_seconds(), 0.0)
            values = row["limit"], row["remaining"], reset_s, row["forecast_s"]
            for series, value in zip(found.values(), values, strict=True):
                series += [] if value is None else [(value, source)]
        self._read |= {f"rate_limit.{name}": (now_s, series) for name, series in found.items()}

    def _read_budgets(self, cursor: duckdb.DuckDBPyConnection, now_s: float) -> None:
        burn, spent, forecast = list[Series](), list[Series](), list[Series]()
        known = cursor.execute("FROM budgets LIMIT 1").fetchone() is not None
        for name, *values in cursor.execute(_SPEND).fetchall() if known else ():
            source = {NAMESPACE + "budget": name}
            burn += _series(source, "window", SPEND_WINDOWS, values)
            share, *ends = values[len(SPEND_WINDOWS) :]
            spent.append((share, source))
            forecast += _series(source, "bound", ("low", "middle", "high"), ends)
        self._read |= {
            "budget.burn_rate": (now_s, burn),
            "budget.spent": (now_s, spent),
            "budget.forecast": (now_s, forecast),
        }

    def observe(self, gauge: str, _: CallbackOptions) -> list[Observation]:
        """One of `GAUGES`."""
        read_s, series = self._read.get(gauge, (float("-inf"), []))
        valid_s = VALID_S + SPEND_EVERY_S * gauge.startswith("budget.")
        if self._clock_s() - read_s > valid_s:
            return []
        return [Observation(value, attributes) for value, attributes in series]


def _budget(objective: str, indicator: str) -> dict[str, Any]:
    return {NAMESPACE + "objective": objective, NAMESPACE + "indicator": indicator}


def _series(
    source: Mapping[str, Any], key: str, names: Iterable[str], values: Iterable[float | None]
) -> list[Series]:
    """A series for each known value."""
    return [
        (value, {**source, NAMESPACE + key: name})
        for name, value in zip(names, values, strict=False)
        if value is not None
    ]

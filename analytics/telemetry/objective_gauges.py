"""Gauges of burn rates and error budgets, read from the views `burn_rates` and `error_budgets`.

One thread reads the views, the exporters' threads observe. The number of series is bounded: the `MAX_SOURCES` rows that burn
fastest. In a shared store only the process elected for upkeep reads, so values expire after `VALID_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import duckdb
from opentelemetry.metrics import CallbackOptions, Observation

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

Series = tuple[float, dict[str, Any]]


class ObjectiveGauges:
    """Values and attributes of the last reading."""

    def __init__(self, names: Names, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._names, self._clock_s = names, clock_s
        self._read: tuple[float, list[Series], list[Series]] = (float("-inf"), [], [])
        """(time of reading, burn rates, spent budgets). Replaced as a whole."""

    def read(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Read both views. Raises duckdb.Error."""
        burn: list[Series] = []
        for objective, indicator, gateway, model, *rates in cursor.execute(_BURN).fetchall():
            source = {**_budget(objective, indicator), NAMESPACE + "gateway": gateway or "unknown"}
            if model is not None:
                source[self._names.request_model] = model
            burn += [
                (rate, {**source, NAMESPACE + "window": window})
                for window, rate in zip(BURN_WINDOWS, rates, strict=True)
                if rate is not None
            ]
        spent: list[Series] = [
            (share, _budget(objective, indicator))
            for objective, indicator, share in cursor.execute(_SPENT).fetchall()
            if share is not None
        ]
        self._read = self._clock_s(), burn, spent

    def observe_burn(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._observations(1)

    def observe_spent(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._observations(2)

    def _observations(self, element: int) -> list[Observation]:
        read = self._read
        if self._clock_s() - read[0] > VALID_S:
            return []
        series: list[Series] = read[element]  # type: ignore[assignment]
        return [Observation(value, attributes) for value, attributes in series]


def _budget(objective: str, indicator: str) -> dict[str, Any]:
    return {NAMESPACE + "objective": objective, NAMESPACE + "indicator": indicator}

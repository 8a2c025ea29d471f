"""Burn rates and error budgets as gauges: values, attributes, bounds, and expiry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import pytest
from opentelemetry.sdk.resources import Resource

from streamgauge.analytics.telemetry import analytics_metrics
from streamgauge.analytics.telemetry.analytics_metrics import VALID_S, Metrics, ObjectiveGauges
from streamgauge.analytics.telemetry.semconv import names_of
from tests.analytics.stores import plain_tables


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        con.execute(
            "INSERT INTO objectives BY NAME SELECT 0 AS priority, 'fast' AS name, '*' AS model, '*' AS gateway, '*' AS client, "
            "'page' AS severity, "
            "0.1 AS error_rate"
        )
        con.execute(
            "INSERT INTO client_minutes BY NAME SELECT date_trunc('minute', now()) AS minute, 'gw' AS gateway, model, "
            "'fast' AS objective, false AS settled, 10 AS streams, 10 AS counted, errors, 0 AS meeting_objective "
            "FROM (VALUES ('m', 5), ('n', 1)) AS v(model, errors)"
        )
        yield con


def values(metrics: Metrics, name: str) -> dict[tuple[Any, ...], float]:
    data = metrics.read()
    assert data is not None
    found: dict[tuple[Any, ...], float] = {}
    for scope in (scope for resource in data.resource_metrics for scope in resource.scope_metrics):
        for metric in scope.metrics:
            if metric.name == name:
                for point in metric.data.data_points:
                    attributes: Mapping[str, Any] = point.attributes or {}
                    found[tuple(attributes.values())] = point.value  # type: ignore[union-attr]
    return found


def test_gauges_have_the_values_of_the_views(con: duckdb.DuckDBPyConnection) -> None:
    metrics = Metrics(names_of("1.41"), Resource({}))
    try:
        assert values(metrics, "streamgauge.objective.burn_rate") == {}
        metrics.objectives.read(con)
        burn = values(metrics, "streamgauge.objective.burn_rate")
        assert burn["fast", "error_rate", "gw", "m", "5m"] == pytest.approx(5)
        assert burn["fast", "error_rate", "gw", "n", "3d"] == pytest.approx(1)
        assert len(burn) == 10
        spent = values(metrics, "streamgauge.objective.budget_spent")
        assert spent == {("fast", "error_rate"): pytest.approx(3)}
    finally:
        metrics.close()


def test_old_values_expire_and_the_fastest_sources_are_kept(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        analytics_metrics,
        "_BURN",
        analytics_metrics._BURN.replace(f"LIMIT {analytics_metrics.MAX_SOURCES}", "LIMIT 1"),
    )
    now_s = 0.0
    gauges = ObjectiveGauges(names_of("1.41"), lambda: now_s)
    gauges.read(con)
    options: Any = None
    assert {o.attributes["gen_ai.request.model"] for o in gauges.observe(1, options) if o.attributes} == {"m"}
    now_s = VALID_S + 1
    assert [*gauges.observe(1, options), *gauges.observe(2, options)] == []

"""Burn rates and error budgets as gauges: values, attributes, bounds, and expiry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import pytest
from opentelemetry.sdk.resources import Resource

from streamgauge.analytics.telemetry import objective_gauges
from streamgauge.analytics.telemetry.analytics_metrics import Metrics
from streamgauge.analytics.telemetry.objective_gauges import GAUGES, SPEND_EVERY_S, VALID_S, ObjectiveGauges
from streamgauge.analytics.telemetry.semconv import names_of
from tests.analytics.schema.prices import price, set_prices
from tests.analytics.stores import plain_tables


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        con.execute(
            "INSERT INTO objectives BY NAME SELECT 0 AS priority, 'fast' AS name, '*' AS model, '*' AS gateway, '*' AS client, "
            "'page' AS severity, '*' AS label, "
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


def test_budgets_have_their_share_burn_rates_and_forecast(con: duckdb.DuckDBPyConnection) -> None:
    set_prices(con, price("m", 0, 1))
    con.execute(
        "INSERT INTO budgets BY NAME SELECT 0 AS priority, 'all' AS name, '*' AS model, '*' AS gateway, '*' AS client, 'day' AS period, "
        "4 AS amount, 'USD' AS currency, 'UTC' AS time_zone, 'page' AS severity"
    )
    insert = (
        "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() - {} AS started_at, 'm' AS request_model, 'ok' AS outcome, "
        "1_000_000 AS output_tokens, 'usage' AS token_source, 1 AS ttft_ns, 0 AS input_tokens"
    )
    con.execute(insert.format("INTERVAL 0 SECOND"))
    now_s = 0.0
    gauges = ObjectiveGauges(names_of("1.41"), lambda: now_s)

    def values(gauge: str) -> dict[Any, float]:
        return {tuple((o.attributes or {}).values()): o.value for o in gauges.observe(gauge, None)}  # type: ignore[arg-type]

    gauges.read(con)
    assert values("budget.spent") == {("all",): 0.25}
    assert values("budget.burn_rate")["all", "1h"] == pytest.approx(6)
    assert values("budget.forecast") == {}
    con.execute(insert.format("INTERVAL 80 HOUR"))
    gauges.read(con)
    assert values("budget.forecast") == {}
    now_s = SPEND_EVERY_S
    gauges.read(con)
    found = values("budget.forecast")
    assert found["all", "low"] <= found["all", "middle"] <= found["all", "high"]
    now_s += VALID_S + SPEND_EVERY_S + 1
    assert values("budget.spent") == {}


def test_old_values_expire_and_the_fastest_sources_are_kept(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        objective_gauges,
        "_BURN",
        objective_gauges._BURN.replace(f"LIMIT {objective_gauges.MAX_SOURCES}", "LIMIT 1"),
    )
    now_s = 0.0
    gauges = ObjectiveGauges(names_of("1.41"), lambda: now_s)
    gauges.read(con)
    options: Any = None
    assert {
        o.attributes["gen_ai.request.model"]
        for o in gauges.observe("objective.burn_rate", options)
        if o.attributes
    } == {"m"}
    now_s = VALID_S + 1
    assert [one for gauge in GAUGES for one in gauges.observe(gauge, options)] == []

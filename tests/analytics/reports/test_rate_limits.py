"""The report of rate limits over stored streams, and what the alert, the gauges and `top` make of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.alerts.rules import StoreRules
from streamgauge.analytics.reports import rate_limits
from streamgauge.analytics.telemetry.objective_gauges import ObjectiveGauges
from streamgauge.analytics.telemetry.semconv import names_of
from tests.analytics.stores import plain_tables


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        con.execute("SET TimeZone = 'UTC'")
        yield con


def add(
    con: duckdb.DuckDBPyConnection,
    client: str,
    *,
    per_s: float,
    share: float,
    start: float = 900_000,
    limit: int = 1_000_000,
    model: str = "m",
    now: datetime | None = None,
) -> None:
    """Ten minutes of answers of a client, one every 3 s, that see a bucket of tokens fall by `per_s`. `share`: the client's part of it."""
    now = now or datetime.now(UTC)
    con.execute(
        """INSERT INTO streams BY NAME SELECT uuid() AS stream_id, ?::TIMESTAMPTZ - to_seconds(s + 12) AS started_at, 'gw' AS gateway,
            ? AS request_model, ? AS client_id, 'ok' AS outcome, 1_000_000_000 AS headers_ns, ?::BIGINT AS tokens_limit,
            (? - (600 - s) * ?)::BIGINT AS tokens_remaining, 60_000_000_000 AS tokens_reset_ns, (? * ? * 3)::BIGINT AS input_tokens
        FROM (SELECT unnest(range(0, 600, 3)) AS s)""",
        [now, model, client, limit, start, per_s, per_s, share],
    )


def read(con: duckdb.DuckDBPyConnection, now: datetime | None = None) -> pl.DataFrame:
    return rate_limits.table(lambda sql: con.execute(sql).pl(), now or datetime.now(UTC))


def test_clients_that_see_the_same_remaining_share_a_limit_and_the_one_with_most_use_is_named(
    con: duckdb.DuckDBPyConnection,
) -> None:
    add(con, "batch", per_s=1000, share=0.8)
    add(con, "chat", per_s=1000, share=0.2)
    found = read(con)
    assert found["client"].to_list() == ["batch", "chat"]
    assert found["mostly"].to_list() == ["batch", "batch"]
    assert found["use_share"].to_list() == pytest.approx([0.8, 0.2], abs=0.01)
    # 300,000 tokens were left 11 s before, and 1,000 go each second.
    assert found["forecast_s"].to_list() == pytest.approx([300 - 11] * 2, abs=6)
    assert rate_limits.with_text(found, {"batch": "nightly"})["text"].to_list() == [
        "m at gw: 429 in about 5 minutes at this rate (30.0 % of the tokens left), mostly by client nightly",
        None,
    ]


def test_clients_with_accounts_of_their_own_have_forecasts_of_their_own(
    con: duckdb.DuckDBPyConnection,
) -> None:
    add(con, "batch", per_s=1000, share=1)
    add(con, "chat", per_s=0.0, share=0)
    found = {row["client"]: row for row in read(con).to_dicts()}
    assert found["batch"]["forecast_s"] is not None
    assert found["batch"]["use_share"] == 1
    assert found["chat"]["forecast_s"] is None
    assert found["chat"]["mostly"] is None


def test_clients_of_one_limit_may_report_no_reset(con: duckdb.DuckDBPyConnection) -> None:
    now = datetime.now(UTC)
    for client in ("a", "b"):
        add(con, client, per_s=1000, share=0.5, now=now)
    con.execute("UPDATE streams SET tokens_reset_ns = NULL WHERE client_id = 'a'")
    assert read(con, now).height == 2


def test_a_used_up_limit_is_no_forecast_but_a_fact(con: duckdb.DuckDBPyConnection) -> None:
    add(con, "batch", per_s=1500, share=1, start=900_000 - 4_500)
    con.execute("UPDATE streams SET tokens_remaining = greatest(tokens_remaining, 0)")
    assert read(con)["forecast_s"].to_list() == [0.0]
    assert rate_limits.with_text(read(con))["text"][0].startswith("m at gw: nothing is left of the tokens")


def test_the_alert_fires_within_15_minutes_of_the_429_and_names_the_client(
    con: duckdb.DuckDBPyConnection,
) -> None:
    add(con, "batch", per_s=1000, share=1)
    add(con, "calm", per_s=300, share=1, model="n")
    found = StoreRules(lambda: 0, {"batch": "nightly"}).conditions(con)
    [(key, condition)] = found.items()
    assert (key.rule, key.gateway, key.model, key.metric) == ("rate_limit", "gw", "m", "tokens")
    assert condition.client_id == "batch"
    assert "mostly by client nightly" in condition.message


def test_gauges_have_limit_remaining_reset_and_forecast(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(con, "batch", per_s=1000, share=1)
    gauges = ObjectiveGauges(names_of("1.41"), lambda: 0.0)
    table, asked = rate_limits.table, list[pl.DataFrame]()

    def counted(*arguments: Any) -> pl.DataFrame:
        asked.append(table(*arguments))
        return asked[-1]

    monkeypatch.setattr(rate_limits, "table", counted)
    StoreRules(lambda: 0, publish_limits=gauges.update_limits).conditions(con)
    gauges.read(con)
    assert len(asked) == 1, "alert and gauges share one query"

    def value(name: str) -> float:
        [one] = gauges.observe(f"rate_limit.{name}", None)  # type: ignore[arg-type]
        assert set((one.attributes or {}).values()) == {"gw", "batch", "m", "tokens"}
        return float(one.value)

    assert value("limit") == 1_000_000
    assert value("remaining") == pytest.approx(303_000, abs=20_000)
    assert 0 < value("reset") <= 60
    assert value("forecast") == pytest.approx(289, abs=30)


def test_nothing_is_reported_of_streams_without_limits(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "INSERT INTO streams BY NAME SELECT uuid() AS stream_id, now() AS started_at, 'ok' AS outcome"
    )
    found = read(con, datetime.now(UTC) + timedelta(seconds=20))
    assert found.is_empty()
    assert found.schema == pl.Schema(rate_limits.SCHEMA)

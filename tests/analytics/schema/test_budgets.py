"""The view `budget_spend` against the same figures computed in Python: spend, burn rates, forecast, and what needs attention."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import sqrt
from statistics import mean, variance
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pytest

from streamgauge.analytics.schema.budgets import Budget
from tests.analytics.schema.prices import price, set_prices
from tests.analytics.schema.test_wasted_tokens import fill

Spent = tuple[datetime, float]
BUDGET = {"period": "month", "name": "b", "amount": 100.0, "currency": "USD"}


@pytest.fixture
def con(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    for table in ("budgets", "clients"):
        con.execute(f"DELETE FROM {table}")
    # A million output tokens cost 1.
    set_prices(con, price("eur*", 0, 1, currency="EUR"), price("m*", 0, 1))
    return con


@pytest.fixture
def now(con: duckdb.DuckDBPyConnection) -> Iterator[datetime]:
    """The time of all statements of the test's transaction."""
    con.execute("BEGIN")
    [(at_us,)] = con.execute("SELECT epoch_us(now())").fetchall()
    yield datetime.fromtimestamp(at_us / 1e6, UTC)
    con.execute("ROLLBACK")


def request(at: datetime, cost: float, **more: Any) -> dict[str, Any]:
    tokens = {"input_tokens": 0, "output_tokens": round(cost * 1e6), "token_source": "usage"}
    return {"started_at": round(at.timestamp() * 1e6), **tokens, **more}


def budgets(con: duckdb.DuckDBPyConnection, *given: dict[str, Any]) -> list[dict[str, Any]]:
    for number, values in enumerate(given):
        budget = Budget(**{**BUDGET, **values})
        row = {"priority": number, **{name: getattr(budget, name) for name in Budget.__slots__}}
        con.execute(
            f"INSERT INTO budgets ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()]
        )
    found = con.execute(
        "SELECT * REPLACE (epoch_us(began_at) AS began_at, epoch_us(ends_at) AS ends_at) FROM budget_spend"
    )
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def period_of(now: datetime, period: str, zone: str) -> tuple[datetime, datetime]:
    local = now.astimezone(ZoneInfo(zone)).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        ends = local + timedelta(days=1)
    elif period == "week":
        local -= timedelta(days=local.weekday())
        ends = local + timedelta(days=7)
    else:
        local = local.replace(day=1)
        ends = (local + timedelta(days=32)).replace(day=1)
    return local.astimezone(UTC), ends.astimezone(UTC)


def forecast(spent: Sequence[Spent], now: datetime, ends: datetime, days: int) -> tuple[float, float]:
    """The cost of the rest of the period, and the half of its range."""
    last = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0)
    rest = ends - now
    hours = timedelta(seconds=rest.total_seconds() % 86_400)
    whole, part = [0.0] * days, [0.0] * days
    for at, cost in spent:
        at = at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0)
        for day in range(days):
            begin = last - timedelta(days=day + 1)
            whole[day] += cost if begin <= at < begin + timedelta(days=1) else 0
            part[day] += cost if begin <= at < begin + hours else 0
    more, n = rest.days, days
    margin = sqrt(variance(part) * (1 + 1 / n) + variance(whole) * (more + more**2 / n))
    return mean(part) + more * mean(whole), (1.645 + 1.524 / (n - 1) + 1.42 / (n - 1) ** 2) * margin


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_spend_burn_rates_and_forecast_of_each_period(
    con: duckdb.DuckDBPyConnection, now: datetime, zone: str
) -> None:
    rng = random.Random(zone)
    spent = [(now - timedelta(days=rng.uniform(0, 25.5)), rng.uniform(0.1, 2)) for _ in range(300)]
    spent += [
        (now - timedelta(days=25.9), 1.0),
        (now - timedelta(minutes=2), 4.0),
        (now - timedelta(hours=3), 5.0),
    ]
    fill(con, *(request(at, cost) for at, cost in spent))
    found = budgets(con, *({"name": p, "period": p, "time_zone": zone} for p in ("day", "week", "month")))
    for row in found:
        began, ends = period_of(now, row["period"], zone)
        assert (row["began_at"], row["ends_at"]) == (began.timestamp() * 1e6, ends.timestamp() * 1e6)
        so_far = sum(cost for at, cost in spent if at >= began)
        assert row["spent"] == pytest.approx(so_far)
        mean_per_s = 100 / (ends - began).total_seconds()
        for window, length in (("5m", 300), ("1h", 3600), ("6h", 21_600)):
            recent = sum(cost for at, cost in spent if now - at < timedelta(seconds=length))
            assert row[f"burn_{window}"] == pytest.approx(recent / length / mean_per_s)
        rest, margin = forecast(spent, now, ends, 21)  # whole weeks
        assert row["forecast"] == pytest.approx(so_far + rest)
        assert row["forecast_low"] == pytest.approx(so_far + max(0, rest - margin))
        assert row["forecast_high"] == pytest.approx(so_far + rest + margin)


def test_budget_counts_the_requests_that_its_globs_match_in_its_currency(
    con: duckdb.DuckDBPyConnection, now: datetime
) -> None:
    con.execute("INSERT INTO clients VALUES ('id1', 'search-web')")
    estimated = {"output_tokens": None, "output_event_count": 50, "text_chars": 4_000_000}
    fill(
        con,
        request(now, 1, client_id="id1", request_model="m1", gateway="a"),
        request(
            now, 2, client_id="id2", request_model="m2", gateway="b", labels={"team": "ads", "user": "search"}
        ),
        request(now, 4, client_id=None, request_model="m2", gateway="a", labels={"team": "search-web"}),
        request(now, 8, client_id="id1", request_model="eur1"),
        request(now, 16, client_id="id1", request_model="unpriced"),
        {**request(now, 0, client_id="id3", request_model="m3"), **estimated},
    )
    globs: tuple[tuple[dict[str, str], float, int], ...] = (
        ({"client": "search-*"}, 1, 2),
        ({"client": "id1"}, 1, 2),
        ({"client": "id?", "model": "m2"}, 2, 0),
        ({"gateway": "a"}, 5, 0),
        ({"currency": "EUR"}, 8, 5),
        ({"model": "m*"}, 8, 0),
        ({"label": "team=search*"}, 4, 0),
        ({"label": "team=*", "gateway": "b"}, 2, 0),
        ({"label": "tenant=*"}, 0, 0),
        ({"model": "other"}, 0, 0),
    )
    found = budgets(con, *({"name": str(n), **given} for n, (given, _, _) in enumerate(globs)))
    for row, (_, cost, not_counted) in zip(found, globs, strict=True):
        assert (row["spent"], row["not_counted"]) == (pytest.approx(cost), not_counted)
    assert found[5]["estimated_share"] == pytest.approx(1 / 8)
    assert found[5]["spent_low"] == pytest.approx(7.6)
    assert found[5]["spent_high"] == pytest.approx(11)


def test_forecast_needs_three_days_of_data(con: duckdb.DuckDBPyConnection, now: datetime) -> None:
    fill(con, request(now - timedelta(days=2.9), 1))
    [row] = budgets(con, {})
    assert (row["forecast"], row["forecast_low"], row["forecast_high"]) == (None, None, None)
    con.execute("UPDATE streams SET started_at = now() - INTERVAL 74 HOUR")
    [row] = budgets(con)
    assert row["forecast_low"] <= row["forecast"] <= row["forecast_high"]


@pytest.mark.parametrize(
    ("amount", "severity", "reasons", "found"),
    [
        (50, "page", [], None),
        (30, "page", ["forecast"], "ticket"),
        (30, "none", ["forecast"], None),
        (45, "page", ["burn"], "page"),
        (45, "ticket", ["burn"], "ticket"),
        (10, "page", ["spent"], "page"),
    ],
)
def test_budget_needs_attention_when_it_is_spent_burns_or_will_be_exceeded(
    con: duckdb.DuckDBPyConnection,
    now: datetime,
    amount: float,
    severity: str,
    reasons: list[str],
    found: str | None,
) -> None:
    # Where it is noon: 20 of 40 are spent. A zone `Etc/GMT+1` is an hour behind.
    budget = {
        "period": "day",
        "time_zone": f"Etc/GMT{now.hour - 12:+d}",
        "amount": amount,
        "severity": severity,
    }
    if reasons == ["burn"]:
        fill(con, request(now - timedelta(minutes=1), 28))
    else:
        fill(con, *(request(now - timedelta(hours=3 + 6 * n), 10) for n in range(40)))
    [row] = budgets(con, budget)
    assert (row["reasons"], row["severity"]) == (reasons, found)

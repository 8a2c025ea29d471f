"""The report's queries over real tables, and its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from streamgauge.analytics.diagnosis.diagnosis import Cause, Diagnosis, Effect, Measured
from streamgauge.analytics.diagnosis.report import Report, as_json, read_report
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.objectives import DEFAULT, Objectives
from streamgauge.analytics.schema.tables import OPEN_STREAMS_SQL
from tests.analytics.stores import plain_tables
from tests.dashboard.generated_store import insert

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RANGE = Selection(since=NOON - timedelta(minutes=15), until=NOON)
CLIENT = "a1" * 16
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "watch-in-terminal.md"
CAUSE = Cause(
    kind="step",
    where={"model": "m", "gateway": "[red]g", "client": CLIENT},
    main=Effect(metric="http_error", value=0.7, before=0.0, unit="share"),
    evidence=("HTTP 429",),
    onset=NOON - timedelta(minutes=4),
    unaffected=("eu",),
    unaffected_dimension="gateway",
    streams=10,
    affected=7,
)
ERRORS = Measured(name="error_rate", value=0.07, limit=0.05, unit="share")
TTFT = Measured(name="ttft", value=9e8, limit=2e9, unit="ns")
GROUP = {
    "model": "m", "gateway": "[red]g", "in_flight": 2, "waiting": 1, "silent_ns": 1_500_000_000, "requests": 10,
    "requests_per_s": 0.5, "error_rate": 0.7, "ttft_p50_ns": 1e8, "ttft_p95_ns": 9e8, "itl_p50_ns": None, "tokens_per_s": 41.25,
}  # fmt: skip
OFFENDER = {
    "dimension": "client", "name": "billing", "requests": 10, "bad": 7, "bad_share": 0.7, "of_all_bad": 1.0, "of_all": 0.4,
    "error_rate": 0.7, "ttft_p95_ns": 9e8, "itl_p95_ns": None,
}  # fmt: skip


def report(**changed: Any) -> Report:
    diagnosis = Diagnosis(
        state="incident", since=RANGE.since, until=NOON, causes=(CAUSE,), measured=(ERRORS, TTFT), streams=20
    )
    parts: dict[str, Any] = {
        "selection": RANGE, "diagnosis": diagnosis, "objectives": Objectives(), "names": {CLIENT: "billing"}, "groups": [GROUP],
        "offenders": [OFFENDER], "offenders_by": "Failed",
    }  # fmt: skip
    return Report(**(parts | changed))


@pytest.fixture
def store() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as connection:
        connection.execute(OPEN_STREAMS_SQL)
        yield connection


def put(connection: duckdb.DuckDBPyConnection, table: str, count: int, **columns: Any) -> None:
    [(stored,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    row = {"started_at": NOON - timedelta(minutes=1), "request_model": "m", "gateway": "g"} | columns
    insert(connection, table, [{"stream_id": UUID(int=stored + i), **row} for i in range(count)])


def read(connection: duckdb.DuckDBPyConnection, **filters: Any) -> Report:
    chosen = Selection(since=RANGE.since, until=RANGE.until, **filters)
    return read_report(lambda sql: connection.execute(sql).pl(), chosen)


def test_groups_have_finished_streams_and_streams_in_flight(store: duckdb.DuckDBPyConnection) -> None:
    put(
        store,
        "streams",
        6,
        outcome="ok",
        ttft_ns=100,
        output_tokens=30,
        meets_objective=True,
        client_id=CLIENT,
    )
    put(store, "streams", 2, outcome="http_error", meets_objective=False, client_id=CLIENT)
    put(store, "streams", 1, outcome="client_abort")
    put(store, "streams", 5, outcome="refused")
    put(store, "streams", 3, outcome="ok", started_at=NOON - timedelta(hours=1))
    put(store, "open_streams", 1, updated_at=NOON, ttft_ns=9, last_output_ns=59_000_000_000)
    put(store, "open_streams", 2, updated_at=NOON, started_at=NOON - timedelta(hours=1), gateway="h")
    found = read(store)
    assert [(g["model"], g["gateway"], g["in_flight"], g["waiting"], g["requests"]) for g in found.groups] == [
        ("m", "g", 1, 0, 9), ("m", "h", 2, 2, 0),
    ]  # fmt: skip
    busy, silent = found.groups
    assert (busy["error_rate"], busy["ttft_p95_ns"], busy["itl_p50_ns"]) == (0.25, 100, None)
    assert (busy["silent_ns"], silent["silent_ns"]) == (1_000_000_000, 3_600_000_000_000)
    assert busy["requests_per_s"] == pytest.approx(10 / 900)
    assert (busy["tokens_per_s"], silent["tokens_per_s"]) == (pytest.approx(180 / 900), None)
    assert found.in_flight == 3
    assert [g["gateway"] for g in read(store, gateways=("h",)).groups] == ["h"]


def test_rates_count_from_the_first_data(store: duckdb.DuckDBPyConnection) -> None:
    put(store, "streams", 12, outcome="ok")
    minute = {
        "minute": NOON - timedelta(minutes=2), "dialect": "d", "operation": "o", "outcome": "ok", "settled": True,
        "first_at": NOON, "last_at": NOON,
    }  # fmt: skip
    columns = store.execute(
        "SELECT column_name FROM duckdb_columns() WHERE table_name = 'stream_minutes' AND NOT is_nullable"
    )
    zeros = dict.fromkeys((name for (name,) in columns.fetchall()), 0)
    insert(store, "stream_minutes", [zeros | minute])
    assert read(store).groups[0]["requests_per_s"] == pytest.approx(12 / 120)


def test_offenders_have_the_names_of_clients(store: duckdb.DuckDBPyConnection) -> None:
    store.execute(f"INSERT INTO clients VALUES ('{CLIENT}', 'billing')")
    put(store, "streams", 6, outcome="http_error", meets_objective=False, client_id=CLIENT)
    put(store, "streams", 60, outcome="ok", meets_objective=True, client_id="b2" * 16)
    found = read(store, clients=())
    assert ("client", "billing") in [(row["dimension"], row["name"]) for row in found.offenders]
    assert sum(g["requests"] for g in read(store, clients=("billing",)).groups) == 6


def test_json_has_seconds_names_and_only_documented_keys() -> None:
    found = json.loads(json.dumps(as_json(report(note="late")), allow_nan=False))
    assert found["groups"][0] | {"silent_s": 1.5, "ttft_p95_s": 0.9, "itl_p50_s": None} == found["groups"][0]
    assert found["causes"][0]["where"] == {"model": "m", "gateway": "[red]g", "client": "billing"}
    assert (found["causes"][0]["value"], found["causes"][0]["onset"]) == (0.7, "2026-03-01T11:56:00Z")
    assert found["objectives"][1] == {
        "name": "ttft",
        "objective": "default",
        "missed": False,
        "value": 0.9,
        "limit": 2.0,
        "unit": "s",
    }
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    lists = [found, *(found[name][0] for name in ("causes", "objectives", "groups", "offenders"))]
    assert {key for part in lists for key in part} <= documented


def test_rows_are_judged_by_the_stored_objective_of_their_place(store: duckdb.DuckDBPyConnection) -> None:
    insert(store, "objectives", [
        {"priority": 0, "name": "one client", "model": "*", "gateway": "*", "client": CLIENT, "error_rate": 0.9, "severity": "page",
         "label": "*"},
        {"priority": 1, "name": "batch", "model": "*", "gateway": "batch-*", "client": "*", "ttft_ns": 7, "severity": "page", "label": "*"},
        {"priority": 2, "name": "default", "model": "*", "gateway": "*", "client": "*", "ttft_ns": 1, "severity": "page", "label": "*"},
    ])  # fmt: skip
    put(store, "streams", 6, outcome="ok", ttft_ns=100, gateway="batch-1", objective="batch")
    put(store, "streams", 6, outcome="ok", ttft_ns=100)
    found = read(store)
    assert {g["gateway"]: found.objective(g).name for g in found.groups} == {
        "batch-1": "batch",
        "g": "default",
    }
    missed = [(m.objective, m.name, m.limit) for m in found.diagnosis.measured if m.missed]
    assert missed == [("batch", "ttft", 7), ("default", "ttft", 1)]


def test_a_store_without_objectives_is_judged_by_the_default(store: duckdb.DuckDBPyConnection) -> None:
    put(store, "streams", 6, outcome="ok", ttft_ns=100)
    found = read(store)
    assert found.objective(found.groups[0]) == DEFAULT
    assert {m.limit for m in found.diagnosis.measured} == {
        DEFAULT.error_rate,
        DEFAULT.ttft_ns,
        DEFAULT.itl_ns,
    }

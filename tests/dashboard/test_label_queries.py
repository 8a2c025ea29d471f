"""Labels as filters and groupings of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import duckdb
import pytest

from streamgauge.analytics.reports import errors, hops, latency, overview, spend, stream_lists, throughput
from streamgauge.analytics.schema.tables import OPEN_STREAMS_SQL
from streamgauge.dashboard import filters
from tests.analytics.schema.prices import price, set_prices
from tests.analytics.stores import plain_tables
from tests.dashboard.generated_store import insert, roll_up
from tests.dashboard.test_queries import HOUR, NOON, query_of

TEAMS = ("search", "o'brien & {co}", None)
MINUTES = "SELECT value, sum(streams) FROM label_minutes GROUP BY ALL ORDER BY ALL"


@pytest.fixture
def store() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as connection:
        connection.execute(OPEN_STREAMS_SQL)
        rows = [
            {
                "stream_id": UUID(int=i + 1), "started_at": NOON, "request_model": "m", "gateway": "g", "operation": "chat",
                "outcome": "client_abort" if team == "search" and i % 5 == 0 else "ok", "ttft_ns": 1000 + i, "input_tokens": 10,
                "output_tokens": 10, "token_source": "usage",
                "labels": {"team": team, "user": f"u{i % 2}"} if team else None,
            }
            for team, count in zip(TEAMS, (20, 10, 5), strict=True)
            for i in range(count)
        ]  # fmt: skip
        for number, row in enumerate(rows):
            row["stream_id"] = UUID(int=number + 1)
        insert(connection, "streams", rows)
        insert(connection, "open_streams", [
            {"stream_id": UUID(int=n), "started_at": NOON, "updated_at": NOON, "labels": {"team": "search"} if n else None}
            for n in range(3)
        ])  # fmt: skip
        connection.execute(
            "INSERT INTO labels VALUES ('user', 'body:user', false, false), ('team', 'header:x-team', true, true)"
        )
        set_prices(connection, price("m", 1, 2))
        roll_up(connection)
        yield connection


def count(store: duckdb.DuckDBPyConnection, *labels: str, table: str = "streams") -> int:
    chosen = replace(HOUR, labels=labels)
    return store.execute(f"SELECT count(*) FROM {table} WHERE {chosen.where()}").fetchone()[0]  # type: ignore[index]


def test_filter_has_one_of_the_values_of_each_label(store: duckdb.DuckDBPyConnection) -> None:
    assert count(store, "team=search") == 20
    assert count(store, "team=search", f"team={TEAMS[1]}") == 30
    assert count(store, "team=search", "user=u1") == 10
    assert count(store, "team=(none)") == 5
    assert count(store, "team=sea", "x") == count(store, "team") == count(store, "=") == 0
    assert count(store, "team=search", table="open_streams") == 2
    assert count(store, "team=search", table="spend") == 20


def test_values_to_choose_are_those_of_the_roll_ups(store: duckdb.DuckDBPyConnection) -> None:
    ask = query_of(store)
    assert overview.label_names(ask) == ["team", "user"]
    found = overview.filter_options(ask, HOUR)["label"]
    assert found == ["team=search", "user=u0", "user=u1", f"team={TEAMS[1]}"]
    assert store.execute(MINUTES).fetchall() == [(TEAMS[1], 10), ("search", 20), ("u0", 15), ("u1", 15)]


def test_pages_group_by_a_label(store: duckdb.DuckDBPyConnection) -> None:
    ask, expected = query_of(store), {"search": 20, TEAMS[1]: 10, "(none)": 5}
    assert dict(throughput.table(ask, HOUR, "team").select("name", "requests").iter_rows()) == expected
    found = spend.table(ask, HOUR, "team", "USD").drop_nulls("name")
    assert dict(found.select("name", "requests").iter_rows()) == expected
    assert errors.aborts(ask, HOUR, "team").select("name", "aborts").rows() == [("search", 4)]
    line = overview.timeline_by(ask, HOUR, "team")
    assert dict(line.select("name", "requests").iter_rows()) == expected | {"total": 35}
    source = latency.source_of(ask, HOUR, "ttft_ns", "team")
    assert source is not None
    assert dict(latency.table(ask, source, "ttft_ns").select("name", "n").iter_rows()) == expected


def test_label_with_more_than_its_share_of_bad_streams_is_an_offender(
    store: duckdb.DuckDBPyConnection,
) -> None:
    bad = "labels['team'] = 'search'"
    found = overview.top_contributors(query_of(store), HOUR, bad, labels=["team", "user"])
    assert found.select("dimension", "name", "bad", "requests").rows() == [("team", "search", 20, 20)]
    assert overview.top_contributors(query_of(store), HOUR, bad).is_empty()


def test_every_page_takes_the_filter(store: duckdb.DuckDBPyConnection) -> None:
    chosen, ask = replace(HOUR, labels=("team=search",)), query_of(store)
    assert overview.summary_now_and_before(ask, chosen)["now"]["requests"] == 20
    assert throughput.table(ask, chosen, "team")["name"].to_list() == ["search"]
    assert throughput.wasted(ask, chosen)["streams"].to_list() == [4]
    assert throughput.wasted(ask, replace(HOUR, labels=("team=ads",))).is_empty()
    assert stream_lists.count_open(ask, chosen) == (2, 0)
    assert hops.by_gateway(ask, chosen).is_empty()
    long = replace(chosen, since=chosen.until - 40 * 24 * chosen.length)
    source = latency.source_of(ask, long, "ttft_ns", "model")
    assert source is not None
    assert source.nth is None  # the roll-ups of durations have no labels


def test_link_of_a_group_selects_it_by_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "shared_parameters", list)

    def parameters(by: str, name: str) -> Any:
        address = filters.streams_address(by, name)
        return None if address is None else parse_qs(urlsplit(address).query)

    assert parameters("team", TEAMS[1] or "") == {"label": [f"team={TEAMS[1]}"]}
    assert parameters("model", "m") == {"model": ["m"]}
    assert parameters("everything", "all streams") == {}
    assert parameters("team", "_other") is parameters("team", "others") is None

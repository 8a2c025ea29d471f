"""Queries of the dashboard: quoting, periods, unknown values, peaks and sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.reports import (
    comparison,
    errors,
    latency,
    one_stream,
    overview,
    spend,
    stream_lists,
    table_columns,
    throughput,
    trace_tree,
    traces,
)
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.sql_quoting import literal
from tests.analytics.stores import plain_tables
from tests.dashboard.generated_store import empty_tables, insert
from tests.tables import tables

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OBJECTIVE = Objective("o", ttft_ns=1_000_000_000, itl_ns=50_000_000)
HOUR = Selection(since=NOON, until=NOON + timedelta(hours=1))
MS = 1_000_000


@pytest.fixture
def store() -> Iterator[duckdb.DuckDBPyConnection]:
    with empty_tables() as connection:
        yield connection


def test_columns_include_tables_views_and_streams_in_flight(streams_data: Path) -> None:
    found = table_columns.columns(tables(streams_data).query)
    assert {"streams", "events", "open_streams", "latency_by_minute"} <= set(found["table_name"])
    assert not [name for name in found["table_name"] if name.startswith(("ducklake_", "streamgauge_"))]


def query_of(connection: duckdb.DuckDBPyConnection) -> Any:
    return lambda sql: connection.execute(sql).pl()


def put(connection: duckdb.DuckDBPyConnection, *rows: dict[str, Any]) -> None:
    filled = [
        {"stream_id": UUID(int=i + 1), "started_at": NOON, "outcome": "ok", "request_model": "m", **row}
        for i, row in enumerate(rows)
    ]
    for row in filled:
        row["objective"] = OBJECTIVE.name
        row["meets_objective"] = OBJECTIVE.meets(row["outcome"], row.get("ttft_ns"), row.get("itl_ns"))
    insert(connection, "streams", filled)


@pytest.mark.parametrize("name", ["o'brien", "'; DROP TABLE streams; --", "a\\'b", "näme", "", "x\x00y"])
def test_any_name_is_quoted_as_a_value(name: str, store: duckdb.DuckDBPyConnection) -> None:
    row = store.execute(f"SELECT {literal(name)}").fetchone()
    assert row == (name.replace("\x00", ""),)
    chosen = Selection(
        since=NOON,
        until=NOON + timedelta(hours=1),
        models=(name,),
        gateways=(name,),
        clients=(name,),
        apps=(name,),
    )
    assert overview.in_flight_now_and_before(query_of(store), chosen, NOON) == (0, 0)


def test_client_filter_has_ids_and_names(store: duckdb.DuckDBPyConnection) -> None:
    ids = ("a1" * 16, "b2" * 16, "c3" * 16, None)
    put(store, *({"client_id": client_id} for client_id in ids))
    store.execute(f"INSERT INTO clients VALUES ('{ids[0]}', 'billing'), ('{ids[1]}', 'o''brien')")

    def count(*clients: str) -> int:
        chosen = replace(HOUR, clients=clients)
        return store.execute(f"SELECT count(*) FROM streams WHERE {chosen.where()}").fetchone()[0]  # type: ignore

    assert [count(*c) for c in (("billing",), ("o'brien", "(no key)"), (ids[0], ids[2]), ("x",))] == [
        1,
        2,
        2,
        0,
    ]


def test_app_is_a_filter_with_its_values_and_a_name_for_unknown_ones(
    store: duckdb.DuckDBPyConnection,
) -> None:
    put(store, *({"client_app": app} for app in ("curl/8", "curl/8", "a/1", None)))
    chosen = replace(HOUR, apps=("curl/8", "(unknown)"))
    assert store.execute(f"SELECT count(*) FROM streams WHERE {chosen.where()}").fetchone() == (3,)
    assert overview.filter_options(query_of(store), HOUR)["app"] == ["curl/8", "(unknown)", "a/1"]


def test_counted_prompt_uses_no_tokens(store: duckdb.DuckDBPyConnection) -> None:
    put(store, {"operation": "chat", "input_tokens": 5}, {"operation": "count_tokens", "input_tokens": 70})
    assert throughput.table(query_of(store), HOUR, "app")["input_tokens"].to_list() == [5]


def test_silence_lasts_until_the_last_heartbeat_of_the_tap(store: duckdb.DuckDBPyConnection) -> None:
    row = {"started_at": NOON, "updated_at": NOON + timedelta(seconds=3), "last_event_ns": 2000 * MS}
    taps = {"a": (20, False), "b": (1, False), "c": (20, True)}
    insert(
        store, "open_streams", [{"stream_id": UUID(int=i), "tap": tap, **row} for i, tap in enumerate("abcd")]
    )
    insert(store, "taps", [
        {"tap": tap, "tap_worker": 0, "incarnation": tap, "started_at": NOON, "counters": "{}", "stopped": stopped,
         "last_alive_at": NOON + timedelta(seconds=alive_s)}
        for tap, (alive_s, stopped) in taps.items()
    ])  # fmt: skip
    found = stream_lists.open_streams(query_of(store), HOUR)
    assert found["silent_ns"].to_list() == [18_000 * MS, 1000 * MS, 1000 * MS, 1000 * MS]


def test_stream_belongs_to_the_period_of_its_start(store: duckdb.DuckDBPyConnection) -> None:
    put(
        store,
        {"started_at": NOON - timedelta(hours=1, microseconds=1)},
        {"started_at": NOON - timedelta(hours=1)},
        {"started_at": NOON - timedelta(microseconds=1)},
        {"started_at": NOON},
        {"started_at": NOON + timedelta(hours=1) - timedelta(microseconds=1)},
        {"started_at": NOON + timedelta(hours=1)},
    )
    both = overview.summary_now_and_before(query_of(store), HOUR)
    assert (both["now"]["requests"], both["before"]["requests"]) == (2, 2)


def test_previous_period_has_same_length_and_ends_at_start() -> None:
    before = HOUR.before()
    assert (before.since, before.until) == (NOON - timedelta(hours=1), NOON)


def test_aborts_losses_and_refusals_are_not_in_the_error_rate(store: duckdb.DuckDBPyConnection) -> None:
    others = [{"outcome": outcome} for outcome in ("http_error", "client_abort", "tap_lost", "refused")]
    put(store, {}, {}, {}, *others)
    now = overview.summary_now_and_before(query_of(store), HOUR)["now"]
    assert (now["errors"], now["aborts"], now["lost"], now["error_rate"]) == (1, 1, 1, 0.25)


def test_violations_are_counted_by_place_and_rule(store: duckdb.DuckDBPyConnection) -> None:
    place: dict[str, Any] = {"gateway": "g", "dialect": "openai_chat", "server_address": "up"}
    both, one = ["missing_choices", "usage_not_last"], ["usage_not_last"]
    put(store, *({**place, "violations": rules} for rules in (both, one, [], [])), {"violations": None})
    found = errors.violations(query_of(store), HOUR).select("gateway", "upstream", "rule", "n", "share")
    assert found.rows() == [("g", "up", "usage_not_last", 2, 0.5), ("g", "up", "missing_choices", 1, 0.25)]
    assert errors.violations(query_of(store), HOUR, most=1).height == 1


def test_refused_requests_are_in_no_other_number(store: duckdb.DuckDBPyConnection) -> None:
    """Refusals change no count or share of requests. Only their own count shows them."""
    early, query, one = NOON - timedelta(minutes=30), query_of(store), HOUR
    some: dict[str, Any] = {
        "gateway": "g",
        "client_id": "c",
        "ttft_ns": 10 * MS,
        "itl_ns": 10.0 * MS,
        "output_tokens": 9,
    }
    put(
        store,
        *({**some, "started_at": early} for _ in range(6)),
        *(some for _ in range(6)),
        *({**some, "request_model": "other"} for _ in range(50)),
        *({**some, "outcome": "http_error"} for _ in range(6)),
        *({**some, "outcome": "client_abort"} for _ in range(2)),
    )

    def numbers() -> dict[str, Any]:
        summary = overview.summary_now_and_before(query, one)
        aborts = errors.abort_summary(query, one)
        frames = {
            "timeline_by": overview.timeline_by(query, one, "model", most=1),
            "changes": overview.largest_changes(query, one),
            "contributors": overview.top_contributors(query, one),
            "errors": errors.rate_timeline(query, one),
            "aborts": errors.aborts(query, one, "model"),
            "sample": comparison.ok_sample(query, one),
            "counts": pl.DataFrame([comparison.counts(query, one)]).drop("refused"),
            "speed": throughput.speed_timeline(query, one, "model", most=1),
            "tokens": throughput.table(query, one, "model"),
        }
        refused = (summary["now"].pop("refused"), summary["before"].pop("refused"), aborts.pop("refused"))
        return {
            "refused": refused,
            "summary": summary,
            "abort_summary": aborts,
            **{k: v.to_dicts() for k, v in frames.items()},
        }

    without = numbers()
    refusals = (
        {"outcome": "refused", "request_model": model} for model in ("m", "other", None) for _ in range(30)
    )
    put(
        store,
        *(
            {**row, "stream_id": UUID(int=1000 + 2 * i + k), "started_at": at}
            for i, row in enumerate(refusals)
            for k, at in enumerate((NOON, early))
        ),
    )
    found = numbers()
    assert (without.pop("refused"), found.pop("refused")) == ((0, 0, 0), (90, 90, 90))
    assert found == without
    assert all(without.values())


def test_error_rate_without_counted_streams_is_unknown(store: duckdb.DuckDBPyConnection) -> None:
    put(store, {"outcome": "client_abort"})
    assert overview.summary_now_and_before(query_of(store), HOUR)["now"]["error_rate"] is None


def test_goodput_counts_unknown_metric_as_miss(store: duckdb.DuckDBPyConnection) -> None:
    put(
        store,
        {"ttft_ns": 1000 * MS, "itl_ns": 50.0 * MS},
        {"ttft_ns": 1001 * MS, "itl_ns": 50.0 * MS},
        {"ttft_ns": 10 * MS, "itl_ns": 51.0 * MS},
        {"ttft_ns": 10 * MS, "itl_ns": None},
        {"ttft_ns": None, "itl_ns": 1.0},
    )
    assert overview.summary_now_and_before(query_of(store), HOUR)["now"]["good"] == 1


def test_all_but_the_busiest_models_are_others(store: duckdb.DuckDBPyConnection) -> None:
    put(store, *({"request_model": f"m{i}"} for i in range(5) for _ in range(5 - i)))
    found = overview.timeline_by(query_of(store), HOUR, "model", most=2)
    assert dict(found.select("name", "requests").iter_rows()) == {"m0": 5, "m1": 4, "others": 6, "total": 15}


def minutes(*numbers: int, model: str = "m", outcome: str = "ok") -> list[dict[str, Any]]:
    """Streams of the minutes of HOUR."""
    return [
        {"started_at": NOON + timedelta(minutes=n), "request_model": model, "outcome": outcome}
        for n in numbers
    ]


def put_open(connection: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]]) -> None:
    """Insert these streams as streams in flight."""
    names = ("started_at", "request_model")
    insert(connection, "open_streams", [
        {name: row[name] for name in names} | {"stream_id": UUID(int=900 + i), "updated_at": HOUR.until}
        for i, row in enumerate(rows)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "in_flight", "complete_minutes"),
    [
        (minutes(*range(60)), [], 60),
        # Failures are the first streams of a minute to end.
        (minutes(*range(58), outcome="ok") + minutes(58, 59, outcome="http_error"), minutes(*[58, 59] * 9), 58),
        # One stream in flight among 40 changes nothing, and neither does an old one.
        (minutes(*[*range(59)] * 2, *[59] * 40), minutes(59), 60),
        (minutes(*range(60)), minutes(20), 60),
        # Most streams have ended, but not those of one model.
        (minutes(*range(60), *[59] * 500) + minutes(*[59] * 15, model="slow"), minutes(*[59] * 15, model="slow"), 59),
        # Nothing is complete.
        (minutes(59, outcome="http_error"), minutes(*[59] * 5), 60),
    ],
)  # fmt: skip
def test_streams_are_judged_once_nearly_all_that_started_with_them_have_ended(
    ended: list[dict[str, Any]],
    in_flight: list[dict[str, Any]],
    complete_minutes: int,
    store: duckdb.DuckDBPyConnection,
) -> None:
    put(store, *ended)
    put_open(store, in_flight)
    later = HOUR.until + timedelta(minutes=1)
    found = overview.judged(query_of(store), HOUR, later)
    assert found == replace(HOUR, until=NOON + timedelta(minutes=complete_minutes))
    other = replace(HOUR, models=("other",))
    assert overview.judged(query_of(store), other, later) == other


def test_streams_of_the_last_seconds_are_not_judged(store: duckdb.DuckDBPyConnection) -> None:
    put(store, *minutes(0))
    until = overview.complete_until(query_of(store), HOUR, HOUR.until)
    assert until == HOUR.until - timedelta(seconds=2)
    assert overview.complete_until(query_of(store), HOUR, HOUR.since - timedelta(days=1)) == HOUR.since


def test_changes_need_streams_in_both_periods(store: duckdb.DuckDBPyConnection) -> None:
    early = NOON - timedelta(minutes=30)
    put(
        store,
        *({"request_model": "slower", "ttft_ns": 100 * MS, "started_at": early} for _ in range(5)),
        *({"request_model": "slower", "ttft_ns": 300 * MS} for _ in range(5)),
        *({"request_model": "new", "ttft_ns": 300 * MS} for _ in range(9)),
    )
    found = overview.largest_changes(query_of(store), HOUR).filter(pl.col("dimension") == "model")
    assert found["name"].to_list() == ["slower"]
    assert found["ttft_change"][0] == pytest.approx(2.0)


def test_first_hour_is_drawn_from_the_first_data_on_with_narrower_points() -> None:
    def began_before_the_end(length: timedelta) -> tuple[float, int]:
        chosen = replace(HOUR, began=HOUR.until - length)
        return (chosen.until - chosen.drawn_since).total_seconds(), chosen.bucket_s

    assert began_before_the_end(timedelta(minutes=2, seconds=3)) == (130, 5)
    assert began_before_the_end(timedelta(seconds=5)) == (60, 1)
    assert began_before_the_end(timedelta(days=2)) == (3600, 60)
    assert (HOUR.drawn_since, HOUR.bucket_s) == (HOUR.since, 60)


def test_changes_in_the_first_hour_compare_the_halves_of_its_data(store: duckdb.DuckDBPyConnection) -> None:
    began = HOUR.until - timedelta(minutes=4)
    put(
        store,
        *({"ttft_ns": 100 * MS, "started_at": began} for _ in range(5)),
        *({"ttft_ns": 300 * MS, "started_at": began + timedelta(minutes=3)} for _ in range(5)),
    )
    assert overview.largest_changes(query_of(store), HOUR).is_empty()
    compared = replace(HOUR, began=began).with_comparable_before()
    assert compared.length == timedelta(minutes=2)
    assert overview.largest_changes(query_of(store), compared)["ttft_change"].to_list() == pytest.approx(
        [2.0] * 2
    )
    assert replace(HOUR, began=HOUR.since - HOUR.length).with_comparable_before().length == HOUR.length


def test_stream_that_was_cut_names_who_closed_it_and_its_age_against_its_peers(
    store: duckdb.DuckDBPyConnection,
) -> None:
    cut = {"outcome": "upstream_reset", "gateway": "g", "end_ns": 20_000 * MS}
    put(
        store,
        *(cut | {"end_ns": (19_800 + 100 * n) * MS} for n in range(5)),
        cut | {"end_ns": 3_000 * MS},
        cut | {"gateway": "other"},
        cut | {"started_at": NOON - timedelta(hours=2)},
        *({"gateway": "g", "end_ns": 4_000 * MS} for _ in range(2)),
        {"outcome": "client_abort", "client_id": "c", "end_ns": 1_000 * MS},
        {"outcome": "http_error", "end_ns": 1_000 * MS},
    )

    def text(number: int) -> str | None:
        found = one_stream.find(query_of(store), UUID(int=number))
        assert found is not None
        return one_stream.closing(query_of(store), found[1])

    assert text(1) == (
        "The upstream closed the connection after 19.8 s. 4 of 5 others of the same gateway that ended so within an hour did at about "
        "this age: the sign of a time limit. The 2 ok streams of its model there took 4.00 s (p50), 4.00 s (p95)."
    )
    assert "0 of 5 others" in str(text(6))
    assert (
        text(11)
        == "The client closed the connection after 1.00 s. No other stream of the same client ended so within an hour."
    )
    assert (text(9), text(12)) == (None, None)


def test_stream_that_failed_without_output_is_not_billed(store: duckdb.DuckDBPyConnection) -> None:
    put(store, {"outcome": "http_error"}, {"outcome": "inband_error", "ttft_ns": MS}, {"outcome": "ok"})
    rows = query_of(store)("SELECT * FROM streams ORDER BY stream_id").to_dicts()
    assert [spend.why_no_cost(row) for row in rows] == ["not billed", "no price", "no price"]


def test_contributors_have_more_than_their_share_of_bad_streams(store: duckdb.DuckDBPyConnection) -> None:
    put(
        store,
        *({"request_model": "fine", "gateway": "g", "client_id": "c", "ttft_ns": MS} for _ in range(90)),
        *(
            {"request_model": "slow", "gateway": "g", "client_id": "c", "ttft_ns": 2000 * MS}
            for _ in range(10)
        ),
        *(
            {"request_model": "fine", "gateway": "g", "client_id": "c", "outcome": "http_error"}
            for _ in range(2)
        ),
        *(
            {"request_model": "rare", "gateway": "g", "client_id": "c", "outcome": "truncated"}
            for _ in range(4)
        ),
    )
    found = overview.top_contributors(query_of(store), HOUR).to_dicts()
    assert [(r["dimension"], r["name"], r["requests"], r["bad"]) for r in found] == [
        ("model", "slow", 10, 10)
    ]
    assert found[0]["of_all_bad"] == pytest.approx(10 / 16)
    store.execute("UPDATE streams SET client_app = if(request_model = 'slow', 'curl/8', 'a/1')")
    both = overview.top_contributors(query_of(store), HOUR)
    assert {*both.select("dimension", "name").rows()} == {("model", "slow"), ("app", "curl/8")}
    assert found[0]["of_all"] == pytest.approx(10 / 106)


def test_no_contributors_without_bad_streams(store: duckdb.DuckDBPyConnection) -> None:
    put(store, *({"ttft_ns": MS} for _ in range(20)))
    assert overview.top_contributors(query_of(store), HOUR).is_empty()
    assert overview.top_contributors(query_of(store), HOUR.before()).is_empty()


def test_contributors_have_enough_bad_streams_of_the_kind_that_is_asked_for(
    store: duckdb.DuckDBPyConnection,
) -> None:
    fine = [{"request_model": "fine", "client_id": "c", "ttft_ns": MS} for _ in range(90)]
    failed = {"client_id": "d", "outcome": "http_error"}
    put(store, *fine, *(failed | {"request_model": "few"} for _ in range(3)))
    assert overview.top_contributors(query_of(store), HOUR).is_empty()  # no ranking of three failures
    put(
        store,
        *(failed | {"request_model": "many"} for _ in range(5)),
        *({"request_model": "slow", "client_id": "c", "ttft_ns": 2000 * MS} for _ in range(20)),
    )

    def models(**bad: str) -> list[str]:
        found = overview.top_contributors(query_of(store), HOUR, **bad)
        return found.filter(pl.col("dimension") == "model")["name"].to_list()

    assert models() == ["slow", "many"]
    assert models(bad="outcome = 'http_error'") == ["many"]


def test_unknown_app_with_all_bad_streams_is_no_offender(store: duckdb.DuckDBPyConnection) -> None:
    def apps(bad_of_a: int) -> list[str]:
        store.execute("DELETE FROM streams")
        put(
            store,
            *({"client_app": "a"} for _ in range(90)),
            *({"client_app": "a", "outcome": "http_error"} for _ in range(bad_of_a)),
            *({"outcome": "http_error"} for _ in range(20)),
            *({} for _ in range(10)),
        )
        found = overview.top_contributors(query_of(store), HOUR, "outcome = 'http_error'")
        return found.filter(pl.col("dimension") == "app")["name"].to_list()

    assert (apps(0), apps(4)) == ([], ["(unknown)"])


def test_points_at_the_ends_of_a_range_are_partly_covered() -> None:
    selection = Selection(since=NOON + timedelta(seconds=45), until=NOON + timedelta(minutes=60, seconds=30))
    assert selection.bucket_s == 60
    line = pl.DataFrame({"at": [NOON + timedelta(minutes=n) for n in range(61)]})
    covered = line.select(selection.covered_s().alias("s"))["s"].to_list()
    assert (covered[0], covered[1], covered[-1]) == (15.0, 60.0, 30.0)
    selection = replace(selection, began=NOON + timedelta(seconds=80))
    since_data = line.select(selection.covered_s().alias("s"))["s"].to_list()
    assert (since_data[0], since_data[1], since_data[2]) == (0.001, 40.0, 60.0)


def test_tokens_per_second_of_a_group_count_from_the_first_data(store: duckdb.DuckDBPyConnection) -> None:
    put(store, *({"output_tokens": 300} for _ in range(2)))
    by_began = {
        began: throughput.table(query_of(store), replace(HOUR, began=began), "model")["output_per_s"][0]
        for began in (None, HOUR.since - timedelta(days=1), HOUR.until - timedelta(minutes=10))
    }
    assert list(by_began.values()) == [pytest.approx(600 / s) for s in (3600, 3600, 600)]


def test_active_streams_started_before_and_ended_after_the_instant(
    store: duckdb.DuckDBPyConnection,
) -> None:
    put(
        store,
        {"started_at": NOON - timedelta(seconds=10), "end_ns": 11_000 * MS},
        {"started_at": NOON - timedelta(seconds=10), "end_ns": 10_000 * MS},
        {"started_at": NOON, "end_ns": 1 * MS},
        {"started_at": NOON + timedelta(microseconds=1), "end_ns": 1 * MS},
        {"started_at": NOON - timedelta(seconds=10), "end_ns": None},
    )
    assert overview.in_flight_now_and_before(query_of(store), HOUR, NOON + HOUR.length) == (0, 2)


@pytest.mark.parametrize("most_listed", [0, 1000])
def test_sampled_minutes_are_the_same_whether_they_are_listed_or_not(
    store: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, most_listed: int
) -> None:
    monkeypatch.setattr(latency, "MAX_MINUTES_LISTED", most_listed)
    since = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    where = latency.Source(
        selection=Selection(since=since, until=since + timedelta(minutes=14, seconds=30)),
        group="model",
        nth=7,
    ).where()
    minutes = f"generate_series(TIMESTAMPTZ '{since:%Y-%m-%d} 11:00:00+00', TIMESTAMPTZ '{since:%Y-%m-%d} 13:00:00+00', INTERVAL 1 MINUTE)"
    found = store.sql(
        f"SELECT epoch(minute)::BIGINT FROM {minutes} AS t(minute) WHERE {where} ORDER BY minute"
    ).fetchall()
    assert [at // 60 % 7 for (at,) in found] == [0, 0]


def test_speed_has_the_median_output_and_the_share_of_a_measure_of_answers(
    store: duckdb.DuckDBPyConnection,
) -> None:
    answer = {"outcome": "ok", "operation": "chat", "finish_reason": "stop", "output_tokens": 30}
    cut = {**answer, "finish_reason": "max_tokens", "output_tokens": 10}
    failed = {**answer, "outcome": "truncated", "finish_reason": None, "output_tokens": 1}
    put(store, answer, cut, cut, failed, {**answer, "finish_reason": None})
    (point,) = throughput.speed_timeline(query_of(store), HOUR, "model", share_of="length").to_dicts()
    assert point["answer_tokens"] == 20
    assert point["share"] == pytest.approx(2 / 3)
    (point,) = throughput.speed_timeline(query_of(store), HOUR, "model", share_of="tool_arguments").to_dicts()
    assert point["share"] is None


def test_ttft_is_compared_by_the_cached_share_of_each_prompt(store: duckdb.DuckDBPyConnection) -> None:
    prompt = {"input_tokens": 100, "cached_input_tokens": 95, "ttft_ns": 10 * MS}
    put(
        store,
        prompt,
        {**prompt, "ttft_ns": 20 * MS},
        {**prompt, "cached_input_tokens": 0, "ttft_ns": 100 * MS},
        {**prompt, "cached_input_tokens": None},
        {**prompt, "cached_input_tokens": 0, "input_tokens": 0},
        {**prompt, "cached_input_tokens": 200, "ttft_ns": 30 * MS},  # more than the prompt: absurd, but a hit
    )
    assert throughput.ttft_by_cache_hit(query_of(store), HOUR).rows() == [
        ("no hit", 1, "p50", 100 * MS),
        ("no hit", 1, "p95", 100 * MS),
        ("90 – 100 %", 3, "p50", 20 * MS),
        ("90 – 100 %", 3, "p95", pytest.approx(29 * MS)),
    ]


def test_waste_is_by_model_and_reason_of_the_selected_streams() -> None:
    left = {"outcome": "client_abort", "output_tokens": 100, "response_bytes": 10, "delivered_bytes": 5}
    clients = ("c", "c", "d")
    failed = {"request_model": "n", "outcome": "truncated", "ttft_ns": 1}
    with plain_tables() as connection:
        put(connection, *({**left, "client_id": client} for client in clients), failed, {})
        found = throughput.wasted(query_of(connection), HOUR)
        of_client = throughput.wasted(query_of(connection), replace(HOUR, clients=("c",), models=("m",)))
    assert found.select("model", "reason", "streams", "output_tokens", "cost").rows() == [
        ("m", "client_left", 3, 150, None),
        ("n", "error_after_output", 1, None, None),
    ]
    assert of_client["output_tokens"].to_list() == [100]


def test_concurrency_is_the_maximum_of_each_point(store: duckdb.DuckDBPyConnection) -> None:
    minute = timedelta(minutes=1)
    put(
        store,
        {"started_at": NOON - minute, "end_ns": 150_000 * MS},  # -1:00 … 1:30
        {"started_at": NOON + timedelta(seconds=30), "end_ns": 40_000 * MS},  # 0:30 … 1:10
        {"started_at": NOON + timedelta(seconds=70), "end_ns": 1_000 * MS},  # starts when the second ends
        {"started_at": NOON - 2 * minute, "end_ns": 1_000 * MS},
        {
            "started_at": NOON + 2 * minute,
            "end_ns": 210_000 * MS,
        },  # 2:00 … 5:30: its last minute has only an end
    )
    found = throughput.concurrency(query_of(store), HOUR)
    assert dict(found.with_columns((pl.col("at") - NOON).dt.total_seconds()).iter_rows()) == {
        0: 2,
        60: 3,
        120: 1,
        300: 1,
    }


def test_distribution_adds_up_to_one(store: duckdb.DuckDBPyConnection) -> None:
    put(store, *({"ttft_ns": i * MS} for i in range(1, 101)), {"ttft_ns": None})
    found = latency.distribution(query_of(store), latency.Source(selection=HOUR, group="model"), "ttft_ns")
    assert found["n"].sum() == 100
    assert found["share"].sum() == pytest.approx(1)
    assert found["cumulated"].to_list() == sorted(found["cumulated"])
    assert found["cumulated"][-1] == 1
    below = found.filter(pl.col("high_ns") <= 50 * MS)["cumulated"].max()
    assert below == pytest.approx(0.5, abs=0.12)


def test_sampled_stream_keeps_sums_and_stalls(store: duckdb.DuckDBPyConnection) -> None:
    stream_id = UUID(int=5)
    store.execute(f"""
        INSERT INTO events BY NAME SELECT '{stream_id}'::UUID AS stream_id, i AS seq, i AS read_seq,
            i * {MS} + CASE WHEN i > 7777 THEN {900 * MS} ELSE 0 END AS at_ns, 'text' AS kind, 0 AS choice, 2 AS chars,
            10 AS bytes FROM range(100000) AS t(i)""")
    found, total = one_stream.events(query_of(store), stream_id, most=1000)
    assert total == 100_000
    assert 1000 <= found.height <= 2000
    assert found["chars_sum"].max() == 2 * (found["seq"].max() + 1)  # type: ignore[operator]
    assert found["seq"].max() >= 99_900  # type: ignore[operator]
    assert found["gap_ns"].max() == 901 * MS
    assert found["tokens_sum"].max() == 0


def test_gap_is_between_outputs_of_one_choice(store: duckdb.DuckDBPyConnection) -> None:
    own = {"stream_id": UUID(int=1), "bytes": 1}
    kinds = [
        ("start", None, 1),
        ("text", 0, 10),
        ("text", 1, 12),
        ("ping", None, 15),
        ("text", 0, 20),
        ("text", 1, 40),
    ]
    insert(store, "events", [
        {**own, "seq": i, "read_seq": i, "at_ns": at * MS, "kind": kind, "choice": choice}
        for i, (kind, choice, at) in enumerate(kinds)
    ])  # fmt: skip
    found, _ = one_stream.events(query_of(store), UUID(int=1))
    assert found["gap_ns"].to_list() == [None, None, None, None, 10 * MS, 28 * MS]


def test_undelivered_tokens_are_the_undelivered_share_of_the_bytes(store: duckdb.DuckDBPyConnection) -> None:
    put(
        store,
        {
            "outcome": "client_abort",
            "response_bytes": 900,
            "delivered_bytes": 500,
            "output_tokens": 7,
            "ttft_ns": 1,
        },
        {"outcome": "client_abort", "response_bytes": None, "delivered_bytes": None},
        {"response_bytes": 900, "delivered_bytes": 100},
    )
    left = errors.abort_summary(query_of(store), HOUR)
    assert left["aborts_with_tokens"] == 1
    assert left["undelivered_tokens"] == pytest.approx(7 * 400 / 900)
    assert errors.aborts(query_of(store), HOUR, "model")["undelivered_tokens"].to_list() == [
        pytest.approx(7 * 400 / 900)
    ]
    assert (left["aborts"], left["undelivered_bytes"], left["output_tokens"], left["before_output"]) == (
        2,
        400,
        7,
        1,
    )


def put_traces(store: duckdb.DuckDBPyConnection) -> None:
    """Trace a: three spans of "app", two of them failed, and a failed stream. Trace b: one span of "worker" and an `ok` stream."""
    rows = [(trace_of("a"), i, i, "error" if i else "ok", "app") for i in range(3)] + [
        (trace_of("b"), 9, 40, "unset", "worker")
    ]
    insert(store, "spans", [
        {"trace_id": trace, "span_id": f"{i:016x}", "parent_span_id": f"{0:016x}" if i else None, "name": f"s{i}",
         "kind": "internal", "started_at": NOON + timedelta(milliseconds=at), "start_ns": at * MS, "duration_ns": 5 * MS,
         "status": status, "attributes": f'{{"service.name": "{service}"}}'}
        for trace, i, at, status, service in rows
    ])  # fmt: skip
    put(
        store,
        {
            "trace_id": trace_of("a"),
            "outcome": "http_error",
            "http_status": 429,
            "error_type": "rate",
            "request_model": "m1",
            "gateway": "g1",
        },
        {"trace_id": trace_of("a"), "request_model": "m1", "gateway": "g1"},
        {"trace_id": trace_of("b"), "request_model": "m2", "gateway": "g2"},
    )


def trace_of(digit: str) -> str:
    return digit * 32


def test_spans_of_a_trace_are_found_ignoring_case(store: duckdb.DuckDBPyConnection) -> None:
    put_traces(store)
    found, total = trace_tree.spans(query_of(store), trace_of("A"))
    at_us = int(NOON.timestamp() * 1e6)
    assert sorted(found["at_ns"]) == [(at_us + 1000 * i) * 1000 for i in range(3)]
    assert total == 3


def test_above_the_limit_failed_spans_are_read_first(store: duckdb.DuckDBPyConnection) -> None:
    put_traces(store)
    found, total = trace_tree.spans(query_of(store), trace_of("a"), most=2)
    assert (set(found["name"]), total) == ({"s1", "s2"}, 3)


def test_list_of_traces_has_the_failed_stream_and_all_spans(store: duckdb.DuckDBPyConnection) -> None:
    put_traces(store)
    found = traces.latest(query_of(store), HOUR, traces.Search(text="S1")).to_dicts()
    assert len(found) == 1
    began_at = found[0].pop("began_at")
    assert began_at == NOON
    assert found[0] == {
        "trace_id": trace_of("a"), "duration_ns": 7 * MS, "spans": 3, "errors": 2, "services": "app", "root": "s0", "streams": 2,
        "outcome": "http_error", "http_status": 429, "error_type": "rate", "model": "m1", "gateway": "g1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({}, "ab"),
        ({"text": "nothing"}, ""),
        ({"text": "BBBB"}, "b"),
        ({"text": "a'b"}, ""),
        ({"service": "worker"}, "b"),
        ({"service": "worker", "text": "s1"}, ""),
        ({"errors": True}, "a"),
        ({"min_ns": 6 * MS}, "a"),
        ({"max_ns": 6 * MS}, "b"),
        ({"min_ns": 5 * MS, "max_ns": 7 * MS}, "ab"),
        ({"outcomes": ["http_error"]}, "a"),
        ({"outcomes": ["truncated", "ok"]}, "ab"),
        ({"outcomes": ["trunc'ated"]}, ""),
    ],
)
def test_search_finds_traces(search: dict[str, Any], found: str, store: duckdb.DuckDBPyConnection) -> None:
    put_traces(store)
    listed = traces.latest(query_of(store), HOUR, traces.Search(**search))
    assert "".join(sorted(trace[0] for trace in listed["trace_id"])) == found


def test_filters_of_the_page_select_traces_by_their_streams(store: duckdb.DuckDBPyConnection) -> None:
    put_traces(store)
    insert(store, "spans", [
        {"trace_id": trace_of("c"), "span_id": "1" * 16, "name": "no stream", "kind": "server", "started_at": NOON, "start_ns": 0,
         "duration_ns": MS, "status": "unset"}
    ])  # fmt: skip
    for chosen, found in (
        (replace(HOUR, models=("m2",)), "b"),
        (replace(HOUR, gateways=("g1",)), "a"),
        (HOUR, "abc"),
    ):
        listed = traces.latest(query_of(store), chosen)
        assert "".join(sorted(trace[0] for trace in listed["trace_id"])) == found


def test_services_are_offered_by_name(store: duckdb.DuckDBPyConnection) -> None:
    put_traces(store)
    assert traces.services(query_of(store), HOUR) == ["app", "worker"]


def test_own_span_is_kept_of_spans_with_the_same_id(store: duckdb.DuckDBPyConnection) -> None:
    trace = "cd" * 16
    insert(store, "spans", [
        {"trace_id": trace, "span_id": "1" * 16, "stream_id": stream_id, "name": name, "kind": "client", "started_at": NOON,
         "start_ns": 0, "duration_ns": MS, "status": "unset", "attributes": f'{{"service.name": "{name}"}}'}
        for name, stream_id in (("forged", None), ("ours", "0" * 31 + "1"), ("sent again", None))
    ])  # fmt: skip
    assert trace_tree.spans(query_of(store), trace)[0]["name"].to_list() == ["ours"]
    assert traces.latest(query_of(store), HOUR, traces.Search(text=trace))["services"].to_list() == [
        "forged, ours, sent again"
    ]


@pytest.mark.parametrize(("length", "bucket_s"), [(60, 1), (3600, 60), (86_400, 1800), (30 * 86_400, 43_200)])
def test_time_series_has_about_sixty_points(length: int, bucket_s: int) -> None:
    assert Selection(since=NOON, until=NOON + timedelta(seconds=length)).bucket_s == bucket_s


def test_causes_and_matrix_of_errors_count_each_error_once(store: duckdb.DuckDBPyConnection) -> None:
    put(store, {}, {"outcome": "client_abort"}, {"outcome": "http_error", "http_status": 429})
    summary = overview.summary_now_and_before(query_of(store), HOUR)["now"]
    causes = errors.causes(query_of(store), HOUR)
    matrix = errors.matrix(query_of(store), HOUR)
    assert causes["n"].sum() == matrix["errors"].sum() == summary["errors"] == 1
    assert causes["http_status"].to_list() == [429]
    assert (causes["share"].to_list(), causes["clients"].to_list()) == ([1.0], [1])
    assert causes["first_at"].to_list() == causes["last_at"].to_list()


def test_first_seen_is_the_end_of_the_first_failed_stream_and_errors_before_the_onset_are_counted(
    store: duckdb.DuckDBPyConnection,
) -> None:
    began = HOUR.since + timedelta(minutes=10)
    failed = {"outcome": "http_error", "http_status": 429, "end_ns": 60_000 * MS}
    put(store, *(failed | {"started_at": began + timedelta(minutes=m)} for m in (0, 5, 6, 7)))
    onset = began + timedelta(minutes=6)
    [row] = errors.causes(query_of(store), HOUR, onset).to_dicts()
    assert (row["first_at"], row["n"], row["before_onset"]) == (began + timedelta(minutes=1), 4, 1)
    assert errors.causes(query_of(store), HOUR)["before_onset"].to_list() == [None]


@pytest.mark.parametrize(("per_s", "bucket_s"), [(10.0, 15), (0.5, 60), (0.01, 60), (0.0, 15)])
def test_points_are_widened_to_twenty_samples_but_stay_a_line(per_s: float, bucket_s: int) -> None:
    quarter = Selection(since=NOON, until=NOON + timedelta(minutes=15))
    assert quarter.widened(per_s).bucket_s == bucket_s


def test_errors_over_time_by_cause_and_of_the_worst_pairs(store: duckdb.DuckDBPyConnection) -> None:
    failed = {"outcome": "http_error", "http_status": 429, "request_model": "a", "gateway": "g"}
    put(
        store,
        *(failed for _ in range(3)),
        *({"outcome": "ok", "request_model": "a", "gateway": "g"} for _ in range(1)),
        *({"outcome": "ok", "request_model": "b", "gateway": "g"} for _ in range(5)),
        {"outcome": "truncated", "request_model": "b", "gateway": "g"},
        {"outcome": "client_abort", "request_model": "b", "gateway": "g"},
    )
    causes = errors.causes_timeline(query_of(store), HOUR, most=1)
    assert dict(causes.select("cause", "n").iter_rows()) == {"HTTP 429": 3, "others": 1}
    worst = errors.worst_pairs(query_of(store), HOUR)
    columns = ("model", "gateway", "error_rate", "n", "errors", "total_errors", "total_n")
    assert worst.select(columns).row(0) == ("a", "g", 0.75, 4, 3, 3, 4)
    assert worst["model"].to_list() == ["a", "b"]

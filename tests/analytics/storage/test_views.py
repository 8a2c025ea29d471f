"""The public views compute the numbers in their comments, over streams with known numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from streamgauge.analytics.schema.histogram_buckets import ZERO_BUCKET
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from tests.analytics.measures.buckets import RELATIVE_ERROR, bucket_value
from tests.analytics.stores import new_store

MS = 1_000_000
NOW_US = time.time_ns() // 1000
MINUTE_US = NOW_US // 60_000_000 * 60_000_000 - 120_000_000


def sid(number: int) -> str:
    return f"0198b2d0-0000-7000-8000-{number:012d}"


def row(number: int, **columns: Any) -> dict[str, Any]:
    return {
        "stream_id": sid(number), "started_at": MINUTE_US + number, "gateway": "gw", "provider": "openai",
        "request_model": "asked", "response_model": None, "outcome": "ok", "ttft_ns": None, "itl_ns": None,
        "output_tokens": None, "stall_count": None, "icl_p50_ns": None, "error_phase": None, "http_status": 200, **columns,
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = new_store(tmp_path, stall=StallLimit(500 * MS, 5.0))
    yield store
    store.close()


def fill(store: Store, rows: list[dict[str, Any]], events: list[tuple[int, int, str, int, int]] = ()) -> None:  # type: ignore[assignment]
    kinds: dict[str, type[pl.DataType]] = dict.fromkeys(("ttft_ns", "output_tokens", "stall_count"), pl.Int64)
    kinds |= dict.fromkeys(("itl_ns", "icl_p50_ns"), pl.Float64)
    kinds |= dict.fromkeys(("response_model", "error_phase"), pl.String)
    streams = pl.DataFrame(rows, schema_overrides=kinds, infer_schema_length=None).with_columns(
        pl.col("started_at").cast(pl.Datetime("us", "UTC"))
    )
    frames = pl.DataFrame(
        [(sid(n), seq, seq, at, kind, choice) for n, seq, kind, choice, at in events],
        schema={
            "stream_id": pl.String, "seq": pl.Int32, "read_seq": pl.Int32, "at_ns": pl.Int64,
            "kind": pl.String, "choice": pl.Int16,
        },
        orient="row",
    )  # fmt: skip
    store.commit(Commit("log", tables={"streams": streams, "events": frames}))


def ask(store: Store, sql: str) -> list[dict[str, Any]]:
    return store.cursor().execute(sql).pl().to_dicts()


def test_latency_quantiles_are_over_requests_and_ignore_null(store: Store) -> None:
    fill(store, [row(n, ttft_ns=n * MS, itl_ns=float(n)) for n in range(1, 102)] + [row(200)])
    [minute] = ask(store, "FROM latency_by_minute")
    assert (minute["streams"], minute["streams_with_output"]) == (102, 101)
    found = minute["ttft_p50_ns"], minute["ttft_p95_ns"], minute["itl_p50_ns"]
    assert found == pytest.approx((51 * MS, 96 * MS, 51), rel=0.01)
    assert minute["ttfb_p50_ns"] is None
    assert minute["model"] == "asked"


def test_error_rate_excludes_client_aborts_lost_streams_and_refused_requests(store: Store) -> None:
    outcomes = ["ok"] * 6 + ["http_error", "truncated", "client_abort", "client_abort", "tap_lost", "refused"]
    fill(
        store,
        [row(n, outcome=o, http_status=429 if o == "http_error" else 200) for n, o in enumerate(outcomes)],
    )
    [minute] = ask(store, "FROM errors_by_minute")
    assert (minute["streams"], minute["ok"], minute["errors"]) == (12, 6, 2)
    assert (minute["client_abort"], minute["tap_lost"], minute["http_error"], minute["rate_limited"]) == (
        2,
        1,
        1,
        1,
    )
    assert (minute["refused"], minute["error_rate"]) == (1, 2 / 8)


def test_error_rate_of_only_aborted_streams_is_null(store: Store) -> None:
    fill(store, [row(1, outcome="client_abort")])
    assert ask(store, "FROM errors_by_minute")[0]["error_rate"] is None


def test_every_outcome_has_a_column(store: Store) -> None:
    kinds = (
        "http_error",
        "connect_error",
        "inband_error",
        "truncated",
        "upstream_reset",
        "idle_timeout",
        "malformed",
    )
    fill(store, [row(n, outcome=o) for n, o in enumerate(kinds)])
    [minute] = ask(store, "FROM errors_by_minute")
    assert {o: minute[o] for o in kinds} == dict.fromkeys(kinds, 1)
    assert minute["error_rate"] == 1.0


def test_throughput_is_null_if_no_stream_reported_tokens(store: Store) -> None:
    fill(store, [row(1, output_tokens=60), row(2, output_tokens=120), row(3), row(4, request_model="other")])
    known, unknown = ask(store, "FROM throughput_by_minute ORDER BY output_tokens NULLS LAST")
    assert (known["output_tokens"], known["output_tokens_per_s"], known["streams_with_output_tokens"]) == (
        180,
        3.0,
        2,
    )
    assert (unknown["model"], unknown["output_tokens"], unknown["output_tokens_per_s"]) == (
        "other",
        None,
        None,
    )


def test_cache_hit_share_is_over_streams_that_report_cached_tokens(store: Store) -> None:
    fill(store, [row(1, input_tokens=100, cached_input_tokens=75), row(2, input_tokens=100)])
    [minute] = ask(store, "FROM throughput_by_minute")
    assert (minute["cache_hit_share"], minute["input_tokens_with_cache_known"], minute["input_tokens"]) == (
        0.75,
        100,
        200,
    )


def test_stalls_are_gaps_within_a_choice_above_floor_and_factor(store: Store) -> None:
    events = [
        (1, 0, "text", 0, 100 * MS), (1, 1, "text", 1, 150 * MS),
        (1, 2, "ping", 0, 300 * MS),  # no output: does not end a gap
        (1, 3, "text", 0, 700 * MS),  # 600 ms after the last of its choice
        (1, 4, "text", 1, 500 * MS),  # 350 ms
        (2, 0, "text", 0, 0), (2, 1, "text", 0, 900 * MS),  # below five times its median
        (3, 0, "text", 0, 0), (3, 1, "text", 0, 900 * MS),  # its row has no stall
    ]  # fmt: skip
    fill(
        store,
        [
            row(1, stall_count=1, icl_p50_ns=50.0 * MS),
            row(2, stall_count=1, icl_p50_ns=200.0 * MS),
            row(3, stall_count=0, icl_p50_ns=50.0 * MS),
        ],
        events,
    )
    assert ask(store, "SELECT stream_id::VARCHAR AS id, seq, choice, at_ns, gap_ns FROM stalls") == [
        {"id": sid(1), "seq": 3, "choice": 0, "at_ns": 100 * MS, "gap_ns": 600 * MS}
    ]


def test_slow_streams_are_above_the_95th_percentile_of_their_gateway_and_model(store: Store) -> None:
    usual = [row(n, ttft_ns=100 * MS, itl_ns=10.0 * MS) for n in range(99)]
    other = [row(n, gateway=None, ttft_ns=9000 * MS) for n in range(200, 210)]  # all equally slow
    fill(store, [*usual, row(100, ttft_ns=900 * MS, itl_ns=10.0 * MS), *other])
    assert ask(
        store, "SELECT stream_id::VARCHAR AS id, slow_start, slow_flow, usual_ttft_ns FROM slow_streams"
    ) == [{"id": sid(100), "slow_start": True, "slow_flow": False, "usual_ttft_ns": 100 * MS}]


def test_bucket_value_is_the_geometric_middle_of_its_bounds(store: Store) -> None:
    given = [0, 1, 7, 300 * MS, 2**46]
    fill(store, [row(n, ttft_ns=value) for n, value in enumerate(given)])
    found = ask(store, "FROM histogram_buckets WHERE metric = 'ttft_ns' ORDER BY bucket")
    assert [bucket["n"] for bucket in found] == [1] * len(given)
    for value, bucket in zip(given, found, strict=True):
        assert bucket["value"] == pytest.approx(bucket_value(bucket["bucket"]), rel=1e-12)
        assert bucket["value"] == pytest.approx(value, rel=RELATIVE_ERROR)
        assert bucket["low"] <= value * (1 + 1e-12)
        assert value <= bucket["high"]
    assert (found[0]["bucket"], found[0]["low"], found[0]["high"]) == (ZERO_BUCKET, 0, 0)


def test_violations_have_clients_and_their_share_of_the_checked_streams_of_a_place(store: Store) -> None:
    broken = {"dialect": "openai_responses", "violations": ["missing_usage", "no_such_rule"]}
    whole = {"dialect": "openai_responses", "violations": []}
    other = {"dialect": "openai_responses", "violations": ["missing_usage"], "gateway": None}
    unknown = {"dialect": "openai_responses", "violations": None}
    rows = [row(n, **kind) for n, kind in enumerate((broken, whole, whole, broken, other, unknown))]
    fill(store, [{**one, "server_address": "up"} for one in rows])
    found = {each["gateway"]: each for each in ask(store, "FROM violations")}
    assert {name: (each["streams"], each["checked"], each["share"]) for name, each in found.items()} == {
        "gw": (2, 4, 0.5),
        None: (1, 1, 1.0),
    }
    at = found["gw"]
    assert (at["upstream"], at["model"], at["rule"]) == ("up", "asked", "missing_usage")
    assert at["clients"] == ["codex"]
    assert (at["last_seen_at"] - at["first_seen_at"]).microseconds == 3
    assert str(at["example_stream_id"]) == sid(3)

"""A store filled with generated streams, for the tests of the pages.

Deterministic for a seed. The values are consistent (last_output ≥ ttft, itl from tokens and times, errors without tokens), so
the pages look like those of real traffic. The store is closed before the pages read it, because Python's SQLite and DuckDB's
SQLite must not open the catalog in the same process.
"""

# ruff: noqa: E501 - one line per row

from __future__ import annotations

import contextlib
import json
import math
import random
import uuid
from collections.abc import Iterator
from dataclasses import asdict, astuple
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from streamgauge.analytics.alerts.alert_states import Change, Condition, Key
from streamgauge.analytics.alerts.evaluator import alert_rules, event_rows
from streamgauge.analytics.alerts.incident_rule import DIAGNOSIS
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.schema.budgets import Budget
from streamgauge.analytics.schema.frames import polars_types
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.tables import OPEN_STREAMS, OPEN_STREAMS_SQL, schema_sql
from streamgauge.analytics.storage.location import SQLITE, TABLES_FOLDER, locate
from streamgauge.analytics.storage.open_streams_file import ENDING, FOLDER
from streamgauge.analytics.storage.store import Store
from tests.analytics.schema.prices import price, set_prices
from tests.dashboard.generated_hops import OUTER_GATEWAY, Inner, inner_streams
from tests.options import alert_options

MODELS: dict[str, tuple[float, float, str, str]] = {
    # median TTFT s, median ITL s, dialect, provider
    "gpt-4o-mini": (0.35, 0.012, "openai_chat", "openai"),
    "claude-sonnet-4-5": (0.9, 0.018, "anthropic", "anthropic"),
    "qwen3-32b": (0.2, 0.025, "openai_chat", "vllm"),
    "deepseek-r1": (1.6, 0.03, "openai_chat", "deepseek"),
    "llama-3.3-70b": (0.45, 0.02, "openai_chat", "fireworks"),
}
PRICES = (
    price("gpt-*", 0.15, 0.6, cached_input=0.075),
    price("claude-*", 3, 15, cached_input=0.3, cache_write_5m=3.75, cache_write_1h=6),
    price("deepseek-*", 0.5, 2, cached_input=0.05),
    price("qwen*", 0.2, 0.8, currency="EUR"),
)
"""One model has no price."""
BUDGETS = (
    Budget(name="all per month", period="month", amount=20, currency="USD"),
    Budget(name="Claude", model="claude-*", period="week", amount=1.5, currency="USD"),
    Budget(name="EUR", period="month", amount=50, currency="EUR", time_zone="Europe/Berlin"),
)
GATEWAYS = ("litellm", "edge-eu", "vllm-direct")
CLIENTS = ("c0ffee11", "5eed5eed", "0ddba115", "b16b00b5")
APPS = ("claude-cli/2.1.90", "OpenAI/Python/2.8.0")
TEAMS = ("search", "o'brien & co")
NAMED_CLIENT = "b16b00b5", "nightly evaluation"
FAULTS = (
    ("http_error", 429, "rate_limit_error", "pre_headers"),
    ("http_error", 500, "server_error", "pre_headers"),
    ("inband_error", 200, "overloaded_error", "mid_stream"),
    ("truncated", 200, "stream_truncated", "mid_stream"),
    ("upstream_reset", 200, "upstream_reset", "mid_stream"),
    ("connect_error", None, "ConnectionRefusedError", "pre_headers"),
)
S = 1_000_000_000
OBJECTIVES = (
    Objective("interactive", model="gpt-4o-mini", ttft_ns=S // 5, goodput=0.99),
    Objective("default", ttft_ns=2 * S, itl_ns=S // 10, error_rate=0.05, goodput=0.9),
)
"""The first burns its error budget: the median TTFT of its model is 350 ms."""


def one_stream(rng: random.Random, started_at: datetime) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row of `streams` and its rows of `events`."""
    model = rng.choices(list(MODELS), weights=(40, 25, 15, 8, 12))[0]
    ttft_s, itl_s, dialect, provider = MODELS[model]
    stream_id = uuid.UUID(int=rng.getrandbits(128), version=4)
    row: dict[str, Any] = {
        "stream_id": stream_id, "gateway": rng.choice(GATEWAYS), "tap": "tap-1", "client_id": rng.choice(CLIENTS),
        "provider": provider, "dialect": dialect, "operation": "chat", "method": "POST", "path": "/v1/chat/completions",
        "request_model": model, "response_model": f"{model}-2026-01-01", "started_at": started_at, "streamed": True,
        "trace_id": f"{rng.getrandbits(128):032x}", "span_id": f"{rng.getrandbits(64):016x}", "trace_flags": 1,
        "response_id": f"chatcmpl-{rng.getrandbits(40):010x}", "request_id": f"req_{rng.getrandbits(40):010x}",
        "client_start_ns": -int(rng.uniform(0.1, 2) * 1e6), "connected_ns": int(rng.uniform(0.2, 8) * 1e6),
        "input_tokens": int(rng.lognormvariate(6.5, 1.0)), "comment_count": 0, "malformed_events": 0, "lost_bytes": 0,
        "request_bytes": rng.randrange(300, 9000), "choice_count": 1, "tool_failure_count": 0, "tool_call_count": 0,
        "stall_count": None, "aborted_after_terminal": False, "unterminated_tail": False, "server_address": "10.1.2.3",
        "server_port": 443, "request_headers": '{"user-agent":"generated/1.0"}', "response_headers": '{"server":"generated"}',
    }  # fmt: skip
    row["client_app"] = APPS[CLIENTS.index(row["client_id"]) % 2]
    row["labels"] = {"team": TEAMS[CLIENTS.index(row["client_id"]) // 2]} if model != "deepseek-r1" else None
    row["request_sent_ns"] = row["connected_ns"] + int(rng.uniform(0.05, 0.4) * 1e6)
    fault = rng.choice(FAULTS) if rng.random() < 0.05 else None
    row |= {
        "tap_delay_ns": int(rng.uniform(0.05, 0.6) * 1e6),
        "waited_client_ns": int(rng.uniform(0.01, 0.4) * 1e6),
    }
    if fault and fault[3] == "pre_headers":
        end = row["request_sent_ns"] + int(rng.uniform(5, 90) * 1e6)
        row |= {"outcome": fault[0], "http_status": fault[1], "error_type": fault[2], "error_phase": fault[3], "end_ns": end,
                "error_message": "generated fault", "streamed": False, "input_tokens": None,
                "connected_ns": None if fault[0] == "connect_error" else row["connected_ns"],
                "headers_ns": None if fault[1] is None else end, "event_count": 0, "output_event_count": 0}  # fmt: skip
        row["waited_upstream_ns"] = end - row["tap_delay_ns"] - row["waited_client_ns"]
        return row, []
    tokens = max(3, int(rng.lognormvariate(4.6, 0.8)))
    if fault:
        tokens = max(2, tokens // 3)
    first = int(rng.lognormvariate(math.log(ttft_s), 0.45) * S)
    headers = int(first * 0.8)
    reasoning = model == "deepseek-r1"
    at, gaps, stalls, events = first, [], 0, []
    events.append({"kind": "start", "at_ns": headers + 200_000, "chars": None, "tokens": None, "bytes": 180})
    for i in range(tokens):
        if i:
            gap = int(rng.lognormvariate(math.log(itl_s), 0.4) * S)
            if rng.random() < 0.0015:
                gap += int(rng.uniform(0.6, 2.5) * S)
                stalls += 1
            gaps.append(gap)
            at += gap
        kind = "reasoning" if reasoning and i < tokens // 2 else "text"
        events.append({"kind": kind, "at_ns": at, "chars": rng.randrange(1, 9), "tokens": 1, "bytes": 210})
    last, gaps_sorted = at, sorted(gaps)
    row |= {
        "outcome": "ok", "http_status": 200, "finish_reason": rng.choices(["stop", "length", "tool_calls"], (70, 10, 20))[0],
        "headers_ns": headers, "ttfb_ns": headers + 100_000, "ttfc_ns": headers + 200_000, "ttft_ns": first,
        "ttfo_ns": first if not reasoning else events[1 + tokens // 2]["at_ns"], "ttst_ns": gaps[0] if gaps else None,
        "last_output_ns": last, "terminator_ns": last + 300_000, "end_ns": last + 900_000, "output_tokens": tokens,
        "reasoning_tokens": tokens // 2 if reasoning else 0, "cached_input_tokens": row["input_tokens"] // rng.choice((2, 3, 9)),
        "token_source": "usage", "itl_ns": (last - first) / (tokens - 1),
        "icl_p50_ns": float(gaps_sorted[len(gaps) // 2]), "icl_p95_ns": float(gaps_sorted[int(len(gaps) * 0.95)]),
        "icl_p99_ns": float(gaps_sorted[int(len(gaps) * 0.99)]), "icl_max_ns": gaps_sorted[-1],
        "stall_count": stalls, "stalled_ns": sum(g for g in gaps if g > S // 2), "tps_user": (tokens - 1) * S / (last - first),
        "tps_e2e": tokens * S / last, "burstiness": rng.uniform(0.01, 0.2), "event_count": tokens + 3, "output_event_count": tokens,
        "text_chars": tokens * 4, "reasoning_chars": tokens * 2 if reasoning else 0, "response_bytes": tokens * 210 + 400,
        "delivered_bytes": tokens * 210 + 400, "client_drain_ns": 100_000,
    }  # fmt: skip
    if row["dialect"] == "anthropic":
        row |= {
            "cache_write_tokens": row["input_tokens"] // 10,
            "cache_write_1h_tokens": row["input_tokens"] // 20,
        }
    if model == "deepseek-r1":
        row["reported_cost"] = (row["input_tokens"] * 0.55 + tokens * 2.19) / 1e6
    if row["dialect"] == "openai_chat":
        breaks = (row["gateway"], row["request_model"]) == ("edge-eu", "llama-3.3-70b")
        row["violations"] = ["missing_choices", "usage_not_last"] if breaks else []
    if rng.random() < 0.04:  # a client that reads slowly
        row["waited_client_ns"] = (last - first) // 3
    row["waited_upstream_ns"] = row["end_ns"] - row["tap_delay_ns"] - row["waited_client_ns"]
    if fault:
        row |= {"outcome": fault[0], "error_type": fault[2], "error_phase": fault[3], "finish_reason": None,
                "error_message": "generated fault in mid-stream", "terminator_ns": None}  # fmt: skip
        events.append({"kind": "error", "at_ns": last + 100_000, "chars": None, "tokens": None, "bytes": 90})
    elif rng.random() < 0.03:
        row |= {
            "outcome": "client_abort",
            "error_type": "client_abort",
            "error_phase": "mid_stream",
            "finish_reason": None,
            "delivered_bytes": tokens * 150,
        }
    else:
        events.append({"kind": "finish", "at_ns": last + 200_000, "chars": None, "tokens": None, "bytes": 160,
                       "finish_reason": row["finish_reason"]})  # fmt: skip
        events.append(
            {"kind": "terminal", "at_ns": last + 300_000, "chars": None, "tokens": None, "bytes": 14}
        )
    for seq, event in enumerate(events):
        event |= {
            "stream_id": stream_id,
            "seq": seq,
            "read_seq": seq,
            "choice": 0 if event["kind"] in ("text", "reasoning") else None,
        }
    return row, events


class Session:
    """Requests of one agent: turns, some of them with tool calls. The requests follow each other after a pause."""

    def __init__(self, rng: random.Random) -> None:
        self._id = f"{rng.getrandbits(128):032x}"
        self._client_id = rng.choice(CLIENTS)
        self._requests_left = rng.randint(2, 9)
        self._turn = 1
        self._next_at: datetime | None = None

    def of_request(self, rng: random.Random, row: dict[str, Any], until: datetime) -> Session:
        """Make half of the requests the next one of this session. Returns the session of the next request."""
        if rng.random() < 0.5:
            return self
        at = self._next_at or row["started_at"]
        if at > until - timedelta(minutes=2):
            return Session(rng)
        row |= {"session_id": self._id, "turn": self._turn, "client_id": self._client_id, "started_at": at}
        calls_tools = row.get("finish_reason") == "tool_calls"
        row["tool_call_count"] = int(calls_tools)
        pause_s = rng.uniform(0.5, 4) if calls_tools else rng.lognormvariate(3, 0.8)
        self._next_at = at + timedelta(seconds=row["end_ns"] / S + pause_s)
        self._turn += not calls_tools
        self._requests_left -= 1
        return self if self._requests_left else Session(rng)


def fill(
    connection: duckdb.DuckDBPyConnection, *, streams: int, until: datetime, hours: float, seed: int = 1
) -> None:
    """Insert streams that started in the hours before `until`."""
    if not streams:
        return
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    hops: list[Inner] = []
    session = Session(rng)
    while len(rows) < streams:
        row, stream_events = one_stream(rng, until - timedelta(seconds=rng.uniform(0, hours * 3600)))
        session = session.of_request(rng, row, until)
        rows.append(row)
        events += stream_events
        if row["gateway"] == OUTER_GATEWAY:
            inner = inner_streams(rng, row, stream_events)
            if len(rows) + len(inner.rows) <= streams:
                hops.append(inner)
                rows += inner.rows
                events += inner.events
    for row in rows:
        objective = next(o for o in OBJECTIVES if o.matches(row["request_model"], None, None))
        row["objective"] = objective.name
        row["meets_objective"] = objective.meets(row["outcome"], row.get("ttft_ns"), row.get("itl_ns"))
    insert(connection, "internal.counter_parts", [{"name": "hops_ambiguous", "value": 3}])
    connection.execute("DELETE FROM objectives")
    insert(connection, "objectives", [{"priority": i, **asdict(o)} for i, o in enumerate(OBJECTIVES)])
    connection.execute("INSERT INTO clients VALUES (?, ?)", NAMED_CLIENT)
    set_prices(connection, *PRICES)
    insert(connection, "budgets", [{"priority": i, **asdict(b)} for i, b in enumerate(BUDGETS)])
    connection.execute("INSERT INTO labels VALUES ('team', 'header:x-team', true, true)")
    insert(connection, "streams", rows)
    insert(connection, "events", events)
    insert(connection, "hops", [row for inner in hops for row in inner.hops])
    insert(connection, "hop_changes", [row for inner in hops for row in inner.changes])
    insert(connection, "gateway_stalls", [row for inner in hops for row in inner.stalls])
    roll_up(connection)
    connection.execute("""
        UPDATE output_stalls SET cause = if(waited_client_ns > 1e9, 'client', 'tap') FROM streams
        WHERE output_stalls.stream_id = streams.stream_id AND (waited_client_ns > 1e9 OR hash(streams.stream_id) % 20 = 0)""")
    insert(connection, "usage_reports", [
        {"stream_id": r["stream_id"], "seq": r["event_count"], "at_ns": r["terminator_ns"], "input_tokens": r["input_tokens"],
         "output_tokens": r["output_tokens"], "raw": json.dumps({"prompt_tokens": r["input_tokens"], "completion_tokens": r["output_tokens"]})}
        for r in rows if r.get("output_tokens")
    ])  # fmt: skip
    ok_rows = [r for r in rows if r["outcome"] == "ok" and "parent_span_id" not in r][:30]
    insert(connection, "spans", [span for r in ok_rows for span in _spans(rng, r)])
    insert(connection, "server_stats", [
        {"stream_id": r["stream_id"], "seq": 0, "source": "perf_metrics", "name": name, "value": value, "unit": unit, "raw": str(value)}
        for r in ok_rows
        for name, value, unit in (("server-time-to-first-token", r["ttft_ns"] * 0.97, "ns"), ("tokens_per_second", r["tps_user"], "tok/s"),
                                  ("queue-duration", 1.5e6, "ns"))
    ])  # fmt: skip
    insert(connection, "log_positions", [
        {"log_id": "0b0e", "partition": "w0", "high": 123_456, "low": 123_400, "open_stream_ids": [], "owner": "test", "version": 7,
         "updated_at": until}
    ])  # fmt: skip


def roll_up(connection: duckdb.DuckDBPyConnection) -> None:
    """Insert the roll-ups of all stored streams and events."""
    streams = connection.execute("SELECT * REPLACE (stream_id::VARCHAR AS stream_id) FROM streams").pl()
    events = connection.execute(
        "SELECT stream_id::VARCHAR AS stream_id, seq, choice, at_ns, kind FROM events ORDER BY ALL"
    ).pl()
    for table, made in rollups({"streams": streams, "events": events}).items():
        connection.register("incoming", made.to_arrow())
        connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        connection.unregister("incoming")


def _spans(rng: random.Random, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Spans of a client, the tap and the gateway for one stream."""
    client, gateway = (f"{rng.getrandbits(64):016x}" for _ in range(2))
    spans = (
        (client, None, "answer a question", "internal", "app", -3_000_000, row["end_ns"] + 5_000_000),
        (row["span_id"], client, f"chat {row['request_model']}", "client", "tap", 0, row["end_ns"]),
        (
            gateway,
            row["span_id"],
            "POST /v1/chat/completions",
            "server",
            "gateway",
            row["request_sent_ns"],
            row["end_ns"] - 500_000,
        ),
        (
            f"{rng.getrandbits(64):016x}",
            gateway,
            "llm_request",
            "internal",
            "gateway",
            row["headers_ns"],
            row["last_output_ns"],
        ),
    )
    return [
        {"trace_id": row["trace_id"], "span_id": span_id, "parent_span_id": parent, "stream_id": row["stream_id"] if service == "tap" else None, "name": name, "kind": kind,
         "started_at": row["started_at"] + timedelta(microseconds=start // 1000), "start_ns": start, "duration_ns": end - start, "status": "ok",
         "attributes": json.dumps({"service.name": service, "gen_ai.request.model": row["request_model"]}), "events": "[]"}
        for span_id, parent, name, kind, service, start, end in spans
    ]  # fmt: skip


@contextlib.contextmanager
def empty_tables() -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables without a store, in memory."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(schema_sql())
        connection.execute(OPEN_STREAMS_SQL)
        yield connection


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    columns = sorted({key for row in rows for key in row})
    plain = [{c: str(v) if isinstance(v := row.get(c), uuid.UUID) else v for c in columns} for row in rows]
    maps = {"labels": pl.Map(pl.String, pl.String)} if "labels" in columns else None
    frame = pl.DataFrame(plain, infer_schema_length=None, schema_overrides=maps)
    connection.register("incoming", frame.to_arrow())
    names = ", ".join(f'"{c}"' for c in columns)
    connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM incoming")
    connection.unregister("incoming")


def running_streams(until: datetime) -> list[dict[str, Any]]:
    """Four rows of `open_streams`. The youngest has no output yet."""
    rng = random.Random(1)
    return [
        {"stream_id": uuid.UUID(int=rng.getrandbits(128), version=4), "gateway": rng.choice(GATEWAYS), "tap": "tap-1",
         "client_id": rng.choice(CLIENTS), "dialect": "openai_chat", "operation": "chat", "path": "/v1/chat/completions",
         "request_model": rng.choice(list(MODELS)), "trace_id": f"{rng.getrandbits(128):032x}",
         "started_at": until - timedelta(seconds=2 + 7 * i), "http_status": 200, "ttft_ns": int(0.4 * S) if i else None,
         "last_event_ns": int((1 + 6.8 * i) * S), "last_output_ns": int((1 + 6.8 * i) * S) if i else None, "event_count": 40 * i,
         "output_event_count": 38 * i, "output_tokens": 40 * i or None, "response_bytes": 9000 * i, "waits_for_client": i == 3, "updated_at": until}
        for i in range(4)
    ]  # fmt: skip


def write_open_streams(data: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file of streams in flight."""
    file = data / TABLES_FOLDER / FOLDER / f"analytics{ENDING}"
    file.parent.mkdir(parents=True, exist_ok=True)
    plain = [
        {name: str(row[name]) if name == "stream_id" else row.get(name) for name in OPEN_STREAMS.types}
        for row in rows
    ]
    pl.DataFrame(plain, schema=polars_types(OPEN_STREAMS)).write_parquet(file)


def add_alerts(connection: duckdb.DuckDBPyConnection, until: datetime) -> None:
    """Insert an incident, an alert that it explains, one that resolved, the rules, and a silence."""
    model, gateway = "gpt-4o-mini", "litellm"
    until_ns = round(until.timestamp() * 1e9)
    message = f"TTFT p95 2.4 s (objective 2 s) since 12:00:00: {model} @ {gateway}, 510 ms → 2.1 s. Unaffected: vllm."
    evidence = ("510 ms → 2.1 s", "unaffected: vllm")
    incident = Condition(2.1, 0.51, message, until_ns - 300 * S, None, None, "page", evidence)
    silent = Condition(
        7.0, 5.0, f"no output from {model} at {gateway} for 7.0 s (limit 5 s), 1 stream", until_ns - 60 * S
    )
    cached = Condition(0.1, 0.4, f"{model} at {gateway}: prompt-cache hit rate 10 %", until_ns - 1800 * S)
    ids = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
    keys = [
        Key(DIAGNOSIS, gateway, model, "ttft"),
        Key("silent_stream", gateway, model),
        Key("cache_hit_rate", gateway, model),
    ]
    changes = [
        (Change(ids[0], keys[0], "firing", incident), until_ns - 240 * S, None),
        (Change(ids[1], keys[1], "firing", silent), until_ns - 50 * S, f"alert {ids[0]}"),
        (Change(ids[2], keys[2], "firing", cached), until_ns - 1700 * S, None),
        (Change(ids[2], keys[2], "resolved", cached), until_ns - 900 * S, None),
    ]
    connection.register("new_alerts", event_rows(changes, "analytics").to_arrow())
    connection.execute("INSERT INTO alert_events BY NAME FROM new_alerts")
    connection.unregister("new_alerts")
    for rule in alert_rules(alert_options()):
        connection.execute("INSERT INTO alert_rules VALUES (?, ?, ?)", [*astuple(rule)])
    silence = [until, until + timedelta(days=365), "*", "qwen*", "*", "load test"]
    connection.execute("INSERT INTO silences VALUES (?, ?, ?, ?, ?, ?)", silence)


@contextlib.contextmanager
def filling(data: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the store of a data folder, which is closed at the end of the block."""
    data.mkdir(parents=True, exist_ok=True)
    store = Store(locate(SQLITE, data))
    try:
        with store.cursor() as connection:
            yield connection
    finally:
        store.close()


def filled(data: Path, *, streams: int = 0, until: datetime | None = None, hours: float = 2.0) -> Path:
    """Create and close a store with this many streams, and four in flight if there are any.

    No stream started with those in flight, so pages judge all of them (`overview.complete_until`).
    """
    until = until or datetime.now(UTC)
    with filling(data) as connection:
        fill(connection, streams=streams, until=until - timedelta(minutes=2), hours=hours)
        if streams:
            add_alerts(connection, until)
    (data / "run").mkdir(exist_ok=True)
    if streams:
        write_open_streams(data, running_streams(until))
    return data

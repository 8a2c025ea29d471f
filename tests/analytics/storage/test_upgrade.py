"""A file of an older schema, full of rows, opened by this version: nothing is lost, and what is new is right.

The file is made from `schemas/N.sql`, which is never changed. What is new is held to what the old version's own views said
of the same rows before. The long run (`slow`) has ten million events and says what the upgrade takes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from analytics.storage import packed, schema
from analytics.storage.store import Store

ROOT = Path(__file__).parents[3]
SCHEMAS = Path(__file__).parent / "schemas"
STREAMS_AND_EVENTS = (ROOT / "bench" / "analytics" / "stored.sql").read_text()
EVENTS_A_STREAM = 100
AT_ONCE = 20_000
OTHERS = 1_000
"""Rows of every other table."""
FILLED = {"main.streams", "main.events", "internal.migrations", "internal.meta"}
ERROR = 0.02
"""Of a quantile from a roll-up of buckets, against the exact one."""

ANY = {
    "UUID": "md5((i // 10)::VARCHAR)::UUID",
    "VARCHAR": "'text ' || i",
    "TIMESTAMP WITH TIME ZONE": "make_timestamptz(1700000000000000 + i * 1000)",
    "DOUBLE": "i / 7.0",
    "BOOLEAN": "i % 2 = 0",
    "BLOB": "encode('blob ' || i)",
    "VARCHAR[]": "['one ' || i, 'two']",
    "SMALLINT[]": "[i, -i]::SMALLINT[]",
    "INTEGER[]": "[i, 7]::INTEGER[]",
}


def tables(connection: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[str, str]]]:
    """Columns with their types, by table."""
    found: dict[str, list[tuple[str, str]]] = {}
    for schema_name, table, column, kind in connection.execute(
        "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() "
        "SEMI JOIN (FROM duckdb_tables() WHERE NOT temporary) USING (schema_name, table_name) ORDER BY ALL"
    ).fetchall():
        found.setdefault(f"{schema_name}.{table}", []).append((column, kind))
    return found


def make(path: Path, streams: int, version: int = 1) -> None:
    """A file of that version with rows in every table."""
    with database(path, read_only=False) as connection:
        connection.execute((SCHEMAS / f"{version}.sql").read_text())
        connection.execute("INSERT INTO internal.meta VALUES ('note', '7')")
        connection.execute("SELECT setseed(0.5)")
        for first in range(0, streams, AT_ONCE):
            numbers = {
                "first": first,
                "end": min(streams, first + AT_ONCE),
                "now_ms": int(time.time() * 1000),
                "streams": streams,
            }
            text = STREAMS_AND_EVENTS
            for name, number in numbers.items():
                text = text.replace(f"{{{name}}}", str(number))
            connection.execute(text)
        for table, columns in tables(connection).items():
            if table in FILLED:
                continue
            values = ", ".join(f"{ANY.get(kind, f'i::{kind}')}" for _, kind in columns)
            names = ", ".join(f'"{name}"' for name, _ in columns)
            connection.execute(
                f"INSERT INTO {table} ({names}) SELECT {values} FROM range({OTHERS}) AS numbers (i)"
            )


@contextmanager
def database(path: Path, *, read_only: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(path), read_only=read_only) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def digests(path: Path, of: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
    """How many rows, and a sum over the hashes of all rows, by table; of these columns."""
    found = {}
    with database(path) as connection:
        for table, columns in of.items():
            names = ", ".join(f'"{name}"' for name, _ in columns)
            only = {
                "internal.meta": "WHERE key <> 'schema_version'",
                "internal.migrations": "WHERE what = 'first schema'",
            }
            found[table] = connection.execute(
                f"SELECT count(*), sum(hash({names})::HUGEINT) FROM {table} {only.get(table, '')}"
            ).fetchone()
    return found


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with database(path) as connection:
        return connection.execute(sql).pl().rows()


BY_MINUTE = ("minute", "gateway", "provider", "model")
LATENCIES = (
    "ttfb_p50_ns", "ttft_p50_ns", "ttft_p95_ns", "ttft_p99_ns", "ttfo_p50_ns", "itl_p50_ns", "itl_p95_ns", "itl_p99_ns",
    "end_p50_ns", "end_p95_ns", "tps_user_p50", "tps_e2e_p50",
)  # fmt: skip


def said(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What the views say whose numbers are exact in either version, by the minute."""
    errors = (
        "streams, ok, errors, http_error, connect_error, inband_error, truncated, upstream_reset, idle_timeout, "
        "malformed, client_abort, tap_lost, error_rate, rate_limited, errors_pre_headers, errors_pre_first_output, "
        "errors_mid_stream"
    )
    throughput = (
        "streams, streams_per_s, input_tokens, output_tokens, reasoning_tokens, cached_input_tokens, "
        "output_tokens_per_s, streams_with_output_tokens, events, output_events, response_bytes, delivered_bytes"
    )
    who = ", ".join(BY_MINUTE)
    return {
        "errors": ask(path, f"SELECT {who}, {errors} FROM errors_by_minute ORDER BY ALL"),
        "throughput": ask(path, f"SELECT {who}, {throughput} FROM throughput_by_minute ORDER BY ALL"),
        "latency": ask(
            path,
            f"SELECT {who}, streams, streams_with_output, icl_max_ns FROM latency_by_minute ORDER BY ALL",
        ),
        "stalls": ask(
            path,
            "SELECT stream_id::VARCHAR, started_at, gateway, provider, model, worker, seq, choice, from_ns, until_ns, gap_ns "
            "FROM stalls ORDER BY ALL",
        ),
    }


def latencies(path: Path) -> pl.DataFrame:
    """Exact in the first version, from buckets in this one. (`icl_p50_ns` is another number by now: of pooled gaps.)"""
    with database(path) as connection:
        columns = ", ".join((*BY_MINUTE, *LATENCIES))
        return connection.execute(
            f"SELECT {columns} FROM latency_by_minute ORDER BY {', '.join(BY_MINUTE)}"
        ).pl()


COUNTED_GAPS = "SELECT sum(n)::BIGINT FROM histogram_minutes WHERE metric = 'icl_ns'"
REAL_GAPS = """
SELECT count(before_ns) FROM (
    SELECT lag(at_ns) OVER (PARTITION BY stream_id, choice ORDER BY seq) AS before_ns FROM events
    WHERE kind IN ('text', 'reasoning', 'refusal', 'tool_call', 'audio')
)
"""


def upgraded_and_held_to_before(path: Path, before: dict[str, Any]) -> None:
    """The file at `path` says what it said before, in every old table, and in the views that are made of roll-ups now."""
    assert digests(path, before["tables"]) == before["digests"]
    for name, rows in said(path).items():
        assert rows, name
        assert rows == before["said"][name], name
    now, old = latencies(path), before["latencies"]
    assert now.select(BY_MINUTE).equals(old.select(BY_MINUTE))
    for name in LATENCIES:
        assert ((now[name] / old[name] - 1).abs() <= ERROR).all(), name
    assert ask(path, COUNTED_GAPS) == ask(path, REAL_GAPS)


def remembered(path: Path) -> dict[str, Any]:
    """What the old version says of its file."""
    with database(path) as connection:
        of = tables(connection)
    return {"tables": of, "digests": digests(path, of), "said": said(path), "latencies": latencies(path)}


def upgrade(path: Path) -> None:
    Store(path).close()


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A file of version 1 with 100,000 events."""
    path = tmp_path / "streamgauge.duckdb"
    make(path, 1_000)
    return path


def test_a_file_of_the_first_schema_keeps_every_row_and_gets_its_rollups(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = remembered(first)
    assert {rows for rows, _ in before["digests"].values()} == {1, 1_000, 1_000 * EVENTS_A_STREAM}
    monkeypatch.setattr(schema, "BACKFILL_STREAMS", 300)
    upgrade(first)
    upgraded_and_held_to_before(first, before)
    upgrade(first)  # opened once more, it is left as it is
    upgraded_and_held_to_before(first, before)


KILLED = """
import os, signal, sys
from pathlib import Path
from analytics.storage import packed, schema
from analytics.storage.store import Store

schema.BACKFILL_STREAMS, left, real = 300, 4, schema.rollups

def rollups(*arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

schema.rollups = rollups
Store(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("at", [1, 4])
def test_an_upgrade_that_is_killed_leaves_the_file_as_it_was_and_can_be_done_again(
    first: Path, at: int
) -> None:
    before = remembered(first)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(first)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    again = remembered(first)
    assert again.pop("latencies").equals(before["latencies"])
    assert again == {name: value for name, value in before.items() if name != "latencies"}
    upgrade(first)
    upgraded_and_held_to_before(first, before)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A file of version 2 with 100,000 events, some of which were deleted, some with all columns and some with none."""
    path = tmp_path / "streamgauge.duckdb"
    make(path, 1_000, version=2)
    with database(path, read_only=False) as connection:
        connection.execute(
            "UPDATE events SET event_name = 'delta', choice = seq % 3 - 1, tokens = 1, finish_reason = 'stop' WHERE seq % 7 = 0"
        )
        connection.execute("UPDATE events SET choice = NULL, chars = NULL, bytes = NULL WHERE seq % 7 = 1")
        connection.execute("DELETE FROM events WHERE seq % 11 = 10")
    return path


def columns_of_events(path: Path) -> list[tuple[Any, ...]]:
    with database(path) as connection:
        return connection.execute("DESCRIBE events").fetchall()


def test_a_file_of_the_second_schema_keeps_every_row_when_its_events_are_packed(
    second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(second) as connection:
        of = tables(connection)
    before, columns = digests(second, of), columns_of_events(second)
    monkeypatch.setattr(packed, "AT_ONCE", 30_000)
    for _ in range(2):  # opened once more, it is left as it is
        upgrade(second)
        assert digests(second, of) == before
        assert [found[:2] for found in columns_of_events(second)] == [column[:2] for column in columns]
        assert ask(second, "SELECT what FROM internal.migrations WHERE version = 3") == [("events packed",)]
        assert ask(second, "SELECT table_name FROM duckdb_tables() WHERE table_name = 'plain_events'") == []


KILLED_WHILE_PACKING = """
import os, signal, sys
from pathlib import Path
from analytics.storage import packed
from analytics.storage.store import Store

packed.AT_ONCE, left, real = 30_000, 3, packed.Packer.pack

def pack(*arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

packed.Packer.pack = pack
Store(Path(sys.argv[1]))
"""


def test_packing_that_is_killed_leaves_the_file_as_it_was_and_can_be_done_again(second: Path) -> None:
    with database(second) as connection:
        of = tables(connection)
    before = digests(second, of)
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_PACKING, str(second)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    with database(second) as connection:
        assert tables(connection) == of
    assert digests(second, of) == before
    upgrade(second)
    assert digests(second, of) == before


@pytest.mark.slow
def test_ten_million_events_of_the_first_schema_are_upgraded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "streamgauge.duckdb"
    make(path, 100_000)
    before = remembered(path)
    assert before["digests"]["main.events"][0] == 10_000_000
    began_s, began_cpu_s = time.perf_counter(), sum(os.times()[:2])
    upgrade(path)
    took_s, took_cpu_s = time.perf_counter() - began_s, sum(os.times()[:2]) - began_cpu_s
    with capsys.disabled():
        print(f"\n10,000,000 events upgraded in {took_s:.1f} s ({took_cpu_s:.1f} s of processor time)")
    upgraded_and_held_to_before(path, before)
    assert took_s < 60, "what the manual states (docs/operations.md)"

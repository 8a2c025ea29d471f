"""`streamgauge sql`: what it prints, whom it asks, and how it fails."""

from __future__ import annotations

import fcntl
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from analytics.serving import endpoint
from analytics.serving.endpoint import Endpoint
from analytics.serving.serve import Server
from analytics.storage.folder import own
from analytics.storage.store import FILE, Commit, Store
from streamgauge import reach as reaching
from streamgauge.sql import render, sql_command


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with three streams that nobody owns."""
    data = tmp_path_factory.mktemp("data")
    store = Store(data / FILE)
    rows = pl.DataFrame(
        {
            "stream_id": [f"0198b2d0-0000-7000-8000-{n:012d}" for n in range(3)],
            "outcome": ["ok", "ok", "truncated"],
            "ttft_ns": [200, None, 300],
            "started_at": [1_790_000_000_000_000 + n * 1_500_000 for n in range(3)],
        }
    ).with_columns(pl.col("started_at").cast(pl.Datetime("us", "UTC")))
    store.commit(Commit("log", tables={"streams": rows}))
    store.close()
    return data


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """A data folder whose analytics runs (in this process)."""
    with own(tmp_path):
        store = Store(tmp_path / FILE)
        server = Server(store.cursor(), port=0)
        endpoint.write(tmp_path, Endpoint(server.quack, server.token, 1))
        yield tmp_path
        server.close()
        store.close()


def sql(data: Path, *argv: str, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(sql_command, [*argv, "--data", str(data)], input=stdin)
    return result.exit_code, result.output


def test_json_is_one_array_of_objects(data: Path) -> None:
    code, out = sql(
        data, "SELECT stream_id, started_at, outcome, ttft_ns FROM streams ORDER BY 1", "--format", "json"
    )
    assert code == 0
    rows = json.loads(out)
    assert [row["stream_id"] for row in rows] == [f"0198b2d0-0000-7000-8000-{n:012d}" for n in range(3)]
    assert [row["started_at"][10:] for row in rows] == ["T14:13:20Z", "T14:13:21.500000Z", "T14:13:23Z"]
    assert [(row["outcome"], row["ttft_ns"]) for row in rows] == [
        ("ok", 200),
        ("ok", None),
        ("truncated", 300),
    ]


def test_an_empty_answer_is_an_empty_array(data: Path) -> None:
    assert sql(data, "FROM streams WHERE outcome = 'none'", "--format", "json") == (0, "[]\n")


def test_odd_types_have_a_json_form(data: Path) -> None:
    _, out = sql(
        data,
        "SELECT 'nan'::DOUBLE AS n, 'inf'::FLOAT AS i, 1000000000000000000000000000000::HUGEINT AS h, 1.5::DECIMAL(4,2) AS d, "
        "INTERVAL 90 SECOND AS t, [1, NULL] AS l, {'a': DATE '2026-01-02'} AS s, 'ab'::BLOB AS b, true AS y, NULL AS u",
        "--format",
        "json",
    )
    assert json.loads(out) == [
        {"n": None, "i": None, "h": 10**30, "d": 1.5, "t": "PT90S", "l": [1, None], "s": {"a": "2026-01-02"},
         "b": "6162", "y": True, "u": None}
    ]  # fmt: skip


def test_csv_and_table(data: Path) -> None:
    query = "SELECT outcome, count(*) AS n, min(started_at) AS first FROM streams GROUP BY 1 ORDER BY 1"
    code, out = sql(data, query, "--format", "csv")
    assert code == 0
    assert out.splitlines() == [
        "outcome,n,first",
        "ok,2,2026-09-21T14:13:20Z",
        "truncated,1,2026-09-21T14:13:23Z",
    ]
    _, out = sql(data, "SELECT outcome, ttft_ns FROM streams ORDER BY stream_id LIMIT 2")
    assert out.splitlines() == ["outcome  ttft_ns", "───────  ───────", "ok           200", "ok", "(2 rows)"]


def test_parquet_can_be_read_back(data: Path, tmp_path: Path) -> None:
    code, _ = sql(
        data,
        "FROM streams ORDER BY stream_id",
        "--format",
        "parquet",
        "--output",
        str(tmp_path / "x.parquet"),
    )
    assert code == 0
    assert pl.read_parquet(tmp_path / "x.parquet")["outcome"].to_list() == ["ok", "ok", "truncated"]
    assert pl.read_parquet(io.BytesIO(render(pl.DataFrame({"a": [1]}), "parquet"))).item() == 1


def test_the_query_may_come_from_stdin(data: Path) -> None:
    assert sql(data, "-", "--format", "csv", stdin="SELECT 40 + 2 AS x") == (0, "x\n42\n")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("selec 1", "syntax error"),
        ("SELECT no_such FROM streams", "no_such"),
        ("DROP TABLE streams", "read-only"),
        ("SELECT 1; SELECT 2", "exactly one"),
        ("FROM '/etc/passwd'", "no public table"),
        ("COPY streams TO 'x.csv'", "read-only"),
        ("FROM internal.taps", "no public table"),
    ],
)
def test_what_cannot_be_answered_is_one_line_whether_analytics_runs_or_not(
    data: Path, served: Path, query: str, says: str
) -> None:
    for folder in (data, served):
        code, out = sql(folder, query)
        assert code != 0
        assert says in out
        assert out.count("\n") == 1


def test_it_exits_with_2_as_a_command(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streamgauge", "sql", "selec 1", "--data", str(data)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_too_many_rows_is_an_error_and_not_a_shortened_answer(data: Path) -> None:
    code, out = sql(data, "FROM streams", "--max-rows", "2")
    assert code != 0
    assert "too many rows" in out


def test_a_runaway_query_on_the_file_is_ended(data: Path) -> None:
    code, out = sql(
        data, "SELECT count(*) FROM range(100000000000) a, range(100000000000) b", "--timeout", "0.3"
    )
    assert code != 0
    assert "too slow" in out


def test_the_running_analytics_is_asked(served: Path) -> None:
    assert sql(served, "SELECT count(*) AS n FROM streams", "--format", "csv") == (0, "n\n0\n")


def test_no_folder_and_no_tables_are_said(tmp_path: Path) -> None:
    code, out = sql(tmp_path / "none", "SELECT 1")
    assert code != 0
    assert "--data" in out
    code, out = sql(tmp_path, "SELECT 1")
    assert code != 0
    assert "no tables" in out


def test_a_dead_analytics_endpoint_leads_to_the_file(data: Path) -> None:
    endpoint.write(data, Endpoint("quack:localhost:9", "x" * 20, 999_999_999))
    try:
        assert sql(data, "SELECT count(*) AS n FROM streams", "--format", "csv") == (0, "n\n3\n")
    finally:
        (data / endpoint.FILE).unlink()


def test_while_analytics_restarts_the_file_is_left_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching.reach.__wrapped__, "__kwdefaults__", {"wait_s": 0.3})  # type: ignore[attr-defined]
    with (data / "up.lock").open("w") as supervisor:
        fcntl.flock(supervisor, fcntl.LOCK_EX)
        code, out = sql(data, "SELECT 1")
    assert code != 0
    assert "restarting" in out
    with own(data):
        code, out = sql(data, "SELECT 1")
    assert code != 0
    assert sql(data, "SELECT 1 AS x", "--format", "csv") == (0, "x\n1\n")


def test_an_owner_waits_for_a_reader_of_the_file(data: Path) -> None:
    with reaching.reach(data) as tables:
        owned = threading.Event()

        def become_owner() -> None:
            with own(data):
                owned.set()

        thread = threading.Thread(target=become_owner)
        thread.start()
        assert tables.query("SELECT count(*) FROM streams").item() == 3
        assert not owned.is_set()
    thread.join()
    assert owned.is_set()

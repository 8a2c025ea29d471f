"""`streamgauge sql`: output and errors, while analytics runs or not."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from streamgauge.analytics.query.query_errors import AnswerTooLarge
from streamgauge.analytics.query.render import render
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
from streamgauge.analytics.storage.location import CATALOG_FILE
from streamgauge.commands import sql as sql_module
from streamgauge.commands.sql import sql_command
from streamgauge.commands.status import status_command
from streamgauge.ingest.ready_file import write_ready_file
from tests.analytics.stores import new_store

COUNT = "SELECT count(*) AS n FROM streams"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with three streams; no process writes to it."""
    return three_streams(tmp_path_factory.mktemp("data"))


def three_streams(data: Path) -> Path:
    store = new_store(data)
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


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty store whose analytics runs (in this process)."""
    data = tmp_path_factory.mktemp("owned")
    with lock_data_folder(data):
        store = new_store(data)
        yield data
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


STOP_IN_A_COMMIT = """
import os, signal, sqlite3, sys
from pathlib import Path
from streamgauge.ingest.ready_file import write_ready_file
data = Path(sys.argv[1])
write_ready_file(data / "run" / "analyze.json", {})
os.utime(data / "run" / "analyze.json", (0, 0))
catalog = sqlite3.connect(data / "catalog.sqlite", isolation_level=None)
catalog.execute("BEGIN IMMEDIATE")
catalog.execute("DELETE FROM ducklake_snapshot")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_sql_and_status_answer_while_the_writer_is_stopped_in_a_commit(tmp_path: Path) -> None:
    three_streams(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", STOP_IN_A_COMMIT, str(tmp_path)])
    try:
        os.waitpid(writer.pid, os.WUNTRACED)
        code, out = sql(tmp_path, "SELECT count(*) AS n FROM streams", "--format", "json", "--timeout", "10")
        silent = f"analyze (pid {writer.pid}) does not respond since 1970-01-01 00:00:00 UTC"
        assert code == 0, out
        assert '"n": 3' in out
        assert silent in out
        status = CliRunner().invoke(status_command, ["--data", str(tmp_path)])
        assert silent in status.output
        assert "stored" in status.output
    finally:
        writer.kill()
        writer.wait()


def test_sql_and_status_load_no_database_library() -> None:
    commands = "streamgauge.commands.sql, streamgauge.commands.status"
    loaded = f"import sys, {commands}; print({{'duckdb', 'polars', 'pyarrow', 'numpy'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_running_analytics_answers_unless_another_store_is_meant(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def ask(folder: Path, *_: object, **__: object) -> bytes:
        asked.append(folder)
        return b"answer"

    monkeypatch.setattr(sql_module, "ask", ask)
    write_ready_file(tmp_path / "run" / "analyze.json", {"store": "sqlite"})
    assert sql(tmp_path, "SELECT 1") == (0, "answer")
    assert asked == [tmp_path]
    code, _ = sql(tmp_path, "SELECT 1", "--data", str(data))  # several stores
    assert (code, len(asked)) == (1, 1)
    code, _ = sql(tmp_path, "SELECT 1", "--store", "postgres:host=127.0.0.1 port=1")
    assert (code, len(asked)) == (1, 1)


def test_an_answer_that_is_too_large_for_the_socket_is_read_by_the_command(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> bytes:
        raise AnswerTooLarge("the answer is larger than 32 MiB.")

    monkeypatch.setattr(sql_module, "ask", ask)
    write_ready_file(data / "run" / "analyze.json", {"store": "sqlite"})
    try:
        assert sql(data, COUNT, "--format", "csv") == (0, "n\n3\n")
    finally:
        (data / "run" / "analyze.json").unlink()


def test_empty_result_is_an_empty_json_array(data: Path) -> None:
    assert sql(data, "FROM streams WHERE outcome = 'none'", "--format", "json") == (0, "[]\n")


def test_all_types_have_a_json_form(data: Path) -> None:
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


def test_query_is_read_from_stdin(data: Path) -> None:
    assert sql(data, "-", "--format", "csv", stdin="SELECT 40 + 2 AS x") == (0, "x\n42\n")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", "syntax error"),
        ("SELECT no_such FROM streams", "no_such"),
        ("DROP TABLE streams", "read-only"),
        ("SELECT 1; SELECT 2", "exactly one"),
        ("FROM '/etc/passwd'", "passwd"),
        ("COPY streams TO 'x.csv'", "read-only"),
        ("INSTALL spatial", "read-only"),
        ("FROM internal.taps", "taps"),
    ],
)
def test_query_errors_are_one_line(data: Path, query: str, message: str) -> None:
    code, out = sql(data, query)
    assert code != 0
    assert message in out
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("query", "message"), [("selec 1", "syntax error"), ("DROP TABLE streams", "read-only")]
)
def test_query_errors_are_one_line_while_analytics_runs(owned: Path, query: str, message: str) -> None:
    test_query_errors_are_one_line(owned, query, message)


def test_query_error_exits_with_2(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streamgauge", "sql", "selec 1", "--data", str(data)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_too_many_rows_are_an_error_not_a_truncated_result(data: Path) -> None:
    code, out = sql(data, "FROM streams", "--max-rows", "2")
    assert code != 0
    assert "more than 2 rows" in out


def test_long_query_is_stopped_at_its_time_limit(data: Path) -> None:
    code, out = sql(
        data, "SELECT count(*) FROM range(100000000000) a, range(100000000000) b", "--timeout", "0.3"
    )
    assert code != 0
    assert "query stopped after 0.3 s" in out


def test_rows_of_a_running_analytics_are_queryable(owned: Path) -> None:
    assert sql(owned, COUNT, "--format", "csv") == (0, "n\n0\n")


def test_streams_in_flight_are_queryable(data: Path) -> None:
    assert sql(data, "SELECT count(*) AS n FROM open_streams", "--format", "csv") == (0, "n\n0\n")


def test_plan_is_drawn_in_its_lines(data: Path, owned: Path) -> None:
    for folder in (data, owned):
        code, out = sql(folder, "EXPLAIN SELECT count(outcome) FROM streams")
        assert code == 0
        assert "│       Table: streams      │\n" in out
        assert "(1 row)" not in out
    plan = sql(data, "EXPLAIN FROM counters")[1]
    assert "Table: (internal) " in plan
    assert "counter_parts" not in plan


def test_missing_catalog_beside_files_names_rebuild(tmp_path: Path) -> None:
    file = tmp_path / "tables" / "main" / "streams" / "one.parquet"
    file.parent.mkdir(parents=True)
    file.touch()
    code, out = sql(tmp_path, "SELECT 1")
    assert code != 0
    assert "is missing, but" in out
    assert "Restore it with `streamgauge rebuild`" in out
    assert out.count("\n") == 1


def test_missing_folder_and_missing_tables_are_one_line(tmp_path: Path) -> None:
    for folder, text in (
        (tmp_path / "none", f"the folder {tmp_path / 'none'} does not exist. Pass the data folder"),
        (tmp_path, f"{tmp_path / CATALOG_FILE} has no tables yet. Start analytics"),
    ):
        code, out = sql(folder, "SELECT 1")
        assert code != 0
        assert text in out
        assert out.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # reading creates nothing


def test_missing_folder_names_another_data_folder_of_the_working_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data, tmp_path / "demo-data")
    monkeypatch.chdir(tmp_path)
    code, out = sql(tmp_path / "none", "SELECT 1")
    assert code != 0
    assert "with --data, such as --data demo-data, or start" in out


def test_moved_data_folder_is_queryable(data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "it's moved"
    shutil.copytree(data, tmp_path / "copy")
    (tmp_path / "copy").rename(moved)
    assert sql(moved, COUNT, "--format", "csv") == (0, "n\n3\n")


def test_data_folder_behind_a_symbolic_link_is_queryable(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    assert sql(tmp_path / "link", COUNT, "--format", "csv") == (0, "n\n3\n")


def test_catalog_behind_a_symbolic_link_is_queryable_or_one_line(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    (tmp_path / "copy" / CATALOG_FILE).rename(tmp_path / "elsewhere.sqlite")
    (tmp_path / "copy" / CATALOG_FILE).symlink_to(tmp_path / "elsewhere.sqlite")
    assert sql(tmp_path / "copy", COUNT, "--format", "csv") == (0, "n\n3\n")
    (tmp_path / "elsewhere.sqlite").unlink()
    code, out = sql(tmp_path / "copy", "SELECT 1")
    assert code != 0
    assert out.count("\n") == 1


def test_catalog_that_is_not_a_database_is_one_line(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    catalog = tmp_path / "copy" / CATALOG_FILE
    catalog.write_bytes(os.urandom(100_000))
    code, out = sql(tmp_path / "copy", COUNT)
    assert code != 0
    assert str(catalog) in out
    assert out.count("\n") == 1


def test_unknown_store_is_an_error(tmp_path: Path) -> None:
    code, out = sql(tmp_path, "SELECT 1", "--store", "duckdb")
    assert code == 2
    assert "--store must be sqlite or postgres:DSN" in out


def test_several_data_folders_are_queried_together(data: Path, tmp_path: Path) -> None:
    three_streams(tmp_path)
    code, out = sql(data, COUNT, "--format", "json", "--data", str(tmp_path))
    assert (code, json.loads(out)) == (0, [{"n": 6}])


def test_store_passed_twice_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    code, out = sql(data, COUNT, "--data", str(tmp_path / "link"))
    assert code == 1
    assert "twice: two --data name it. Pass each store once." in out
    code, out = sql(data, COUNT, "--store", "postgres:dbname=none", "--data", str(tmp_path))
    assert code == 1
    assert "cannot query postgres:dbname=none twice" in out

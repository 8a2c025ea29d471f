"""A real Quack server and real clients: hostile SQL changes nothing, and nothing runs for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest

from analytics.serving.ask import Asker, NotRunning, Refused, TooSlow
from analytics.serving.endpoint import Endpoint
from analytics.serving.serve import Bounds, Server
from analytics.serving.watch import resident_bytes
from analytics.storage.extensions import load
from analytics.storage.store import Commit, Store
from tests.analytics.serving.test_guard import REFUSED

RUNAWAY = "SELECT count(*) FROM range(100000000000) a, range(100000000000) b"
ROWS = 5_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("served") / "t.duckdb")
    rows = pl.DataFrame(
        {"stream_id": [f"0198b2d0-0000-7000-8000-{i:012d}" for i in range(ROWS)]}
    ).with_columns(
        started_at=pl.lit(1_790_000_000_000_000).cast(pl.Datetime("us", "UTC")),
        outcome=pl.lit("ok"),
        gateway=pl.lit("gw"),
        ttft_ns=pl.int_range(pl.len(), dtype=pl.Int64),
    )
    store.commit(Commit("log", tables={"streams": rows}, keep=[("w0", rows["stream_id"][0], b"kept-secret")]))
    yield store
    store.close()


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[Server]:
    server = Server(store.cursor(), port=0, bounds=Bounds(timeout_s=20, max_rows=10_000, concurrent=2))
    yield server
    server.close()


@pytest.fixture(scope="module")
def asker(server: Server) -> Iterator[Asker]:
    asker = Asker(Endpoint(server.quack, server.token))
    yield asker
    asker.close()


@pytest.fixture
def client(server: Server) -> Iterator[duckdb.DuckDBPyConnection]:
    """A stock DuckDB that has attached the server."""
    with duckdb.connect() as connection:
        load(connection, "httpfs", "quack")
        connection.execute(f"ATTACH '{server.quack}' AS remote (TOKEN '{server.token}')")
        yield connection


def state(store: Store) -> object:
    with store.cursor() as cursor:
        return cursor.execute(
            "SELECT (SELECT count(*) FROM streams), (SELECT sum(hash(streams)) FROM streams), "
            "(SELECT list(table_name ORDER BY 1) FROM duckdb_tables() WHERE database_name = current_database()), "
            "(SELECT list(sql ORDER BY 1) FROM duckdb_views() WHERE NOT internal), "
            "(SELECT list((name, value) ORDER BY name) FROM duckdb_settings() WHERE name NOT LIKE 'http%'), "
            "(SELECT list(database_name ORDER BY 1) FROM duckdb_databases())"
        ).fetchall()


def test_hostile_sql_changes_nothing_and_reads_nothing(store: Store, asker: Asker, tmp_path: Path) -> None:
    before = state(store)
    (tmp_path / "planted.csv").write_text("a\nplanted-secret\n")
    for sql in [*REFUSED, f"FROM '{tmp_path}/planted.csv'", f"COPY streams TO '{tmp_path}/out.csv'"]:
        with pytest.raises(Refused) as refused:
            asker.query(sql)
        assert "secret" not in str(refused.value).replace("duckdb_secrets", "").replace("which_secret", "")
    assert state(store) == before
    assert [path.name for path in tmp_path.iterdir()] == ["planted.csv"]
    assert asker.query("SELECT count(*) FROM streams").item() == ROWS


@pytest.mark.parametrize(
    "sql",
    ["FROM read_text('/etc/passwd')", "SET threads = 3", "ATTACH '/tmp/x' AS x", "LOAD 'x.duckdb_extension'"],
)
def test_the_database_is_locked_even_behind_the_door(server: Server, store: Store, sql: str) -> None:
    with store.cursor() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(sql).fetchall()


def test_hostile_sql_through_an_attached_catalog_changes_nothing(
    store: Store, client: duckdb.DuckDBPyConnection
) -> None:
    before = state(store)
    for sql in (
        "CREATE TABLE remote.x (a INT)",
        "DROP TABLE remote.streams",
        "DELETE FROM remote.streams",
        "INSERT INTO remote.losses (cause) VALUES ('x')",
        "FROM remote.query('DROP TABLE streams')",
        "FROM remote.query('SELECT 1; DROP TABLE streams')",
        "FROM remote.internal.open_stream_records",
        "FROM remote.query('FROM internal.open_stream_records')",
        "DROP SCHEMA remote.main CASCADE",
    ):
        with pytest.raises(duckdb.Error):
            client.execute(sql).fetchall()
    assert state(store) == before


def test_a_stock_client_attaches_and_reads_tables_and_views(client: duckdb.DuckDBPyConnection) -> None:
    assert client.execute("SELECT count(*) FROM remote.streams").fetchone() == (ROWS,)
    assert client.execute(
        "SELECT gateway, count(*) FROM remote.streams WHERE ttft_ns < 10 GROUP BY 1"
    ).fetchall() == [("gw", 10)]
    assert client.execute("SELECT streams FROM remote.gateway_comparison").fetchall() == []
    assert client.execute("SELECT sum(streams) FROM remote.latency_by_minute").fetchone() == (ROWS,)
    assert client.execute("FROM remote.query('SELECT max(ttft_ns) FROM streams')").fetchone() == (ROWS - 1,)


def test_a_wrong_token_gets_nothing(server: Server) -> None:
    stranger = Asker(Endpoint(server.quack, "not-the-token-at-all"))
    with pytest.raises(NotRunning):
        stranger.query("SELECT count(*) FROM streams")


@pytest.mark.parametrize(
    "sql", [RUNAWAY, "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"]
)
def test_a_runaway_query_is_ended(asker: Asker, sql: str) -> None:
    with pytest.raises(TooSlow, match=r"after 0\.5 s"):
        asker.query(sql, timeout_s=0.5)
    assert asker.query("SELECT 42").item() == 42


def test_a_query_that_gathers_more_than_the_process_may_have_is_ended(tmp_path: Path) -> None:
    store = Store(tmp_path / "t.duckdb", memory_limit_bytes=64 * 2**20)
    server = Server(store.cursor(), port=0)
    asker = Asker(Endpoint(server.quack, server.token))
    before = resident_bytes()
    most = []
    try:
        for aggregate in ("quantile_cont(range, 0.5)", "mode(range)", "approx_quantile(range, 0.5)"):
            group = " GROUP BY range" if "approx" in aggregate else ""
            with pytest.raises(Refused, match=r"too much memory|Out of Memory"):
                asker.query(f"SELECT {aggregate} FROM range(1000000000){group}")
            most.append(resident_bytes() - before)
        assert server.counters["too_large"] >= 2
        assert max(most) < 600 * 2**20
        store.commit(Commit("log", totals={"entries": 1}))
        assert asker.query("SELECT 42").item() == 42
    finally:
        asker.close()
        server.close()
        store.close()


def test_the_writer_writes_while_queries_run_away(store: Store, asker: Asker) -> None:
    answers: list[str] = []

    def run_away() -> None:
        try:
            asker.query(RUNAWAY, timeout_s=3)
        except TooSlow as e:
            answers.append(str(e))

    threads = [threading.Thread(target=run_away) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        store.commit(Commit("log", totals={"entries": 1}))
    assert not answers  # twenty commits went through before the first query was ended
    for thread in threads:
        thread.join()
    assert len(answers) == 2


def test_running_queries_can_be_ended_for_the_writers_sake(server: Server, asker: Asker) -> None:
    answers: list[str] = []

    def run_away() -> None:
        try:
            asker.query(RUNAWAY, timeout_s=15)
        except TooSlow as e:
            answers.append(str(e))

    thread = threading.Thread(target=run_away)
    thread.start()
    while thread.is_alive():  # one that has not begun to run is missed
        server.interrupt_queries()
        thread.join(0.01)
    assert "needed the memory" in answers[0]


def test_rows_are_bounded_for_good_and_by_request(asker: Asker) -> None:
    assert asker.query("FROM range(10000)").height == 10_000
    with pytest.raises(Refused, match="too many rows: more than 10000"):
        asker.query("FROM range(10001)")
    with pytest.raises(Refused, match="too many rows: more than 10;"):
        asker.query("FROM streams", max_rows=10)


def test_queries_beyond_the_turns_wait_no_longer_than_their_limit(asker: Asker) -> None:
    answers: list[str] = []

    def run_away() -> None:
        try:
            asker.query(RUNAWAY, timeout_s=1)
        except TooSlow as e:
            answers.append(str(e))

    threads = [threading.Thread(target=run_away) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6


def test_errors_say_what_is_wrong_in_one_line(asker: Asker) -> None:
    with pytest.raises(Refused, match="ttft"):
        asker.query("SELECT ttft FROM streams")
    with pytest.raises(Refused) as refused:
        asker.query("SELECT error('it''s\nboth')")
    assert "\n" not in str(refused.value)


def test_answers_are_dropped_after_they_were_read(server: Server, store: Store, asker: Asker) -> None:
    for _ in range(5):
        asker.query("FROM streams LIMIT 10")
    server._door._drop_old(older_than_s=0.0)
    with store.cursor() as cursor:
        assert cursor.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'answers'"
        ).fetchone() == (0,)
    assert asker.query("FROM streams LIMIT 10").height == 10


def test_types_arrive_as_they_should(asker: Asker) -> None:
    row = asker.query(
        "SELECT stream_id, started_at, 1::HUGEINT AS h, INTERVAL 90 SECOND AS i, [1, 2] AS l, NULL AS n, "
        "sum(ttft_ns) OVER () AS total FROM streams ORDER BY stream_id LIMIT 1"
    ).row(0, named=True)
    assert row["stream_id"] == "0198b2d0-0000-7000-8000-000000000000"
    assert row["started_at"].isoformat() == "2026-09-21T14:13:20+00:00"
    assert (row["h"], row["i"].total_seconds(), row["l"], row["n"]) == (1, 90.0, [1, 2], None)
    assert row["total"] == ROWS * (ROWS - 1) // 2


def test_a_port_in_use_and_a_short_token_are_said_in_one_line(server: Server) -> None:
    port = int(server.quack.rpartition(":")[2])
    with duckdb.connect() as other, pytest.raises(OSError, match=r"in use.*--quack-port"):
        Server(other, port=port)
    with duckdb.connect() as other, pytest.raises(ValueError, match="at least"):
        Server(other, port=0, token="short")

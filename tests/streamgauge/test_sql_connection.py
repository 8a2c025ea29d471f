"""`streamgauge.connect`: a running SQL server, else the store of the data folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pytest

import streamgauge as sg
from streamgauge.analytics.storage.location import locate
from tests.analytics.query.conftest import make_store
from tests.analytics.query.test_open_streams_view import write as write_open_streams
from tests.analytics.query.test_serve import serving

JOINED = "SELECT count(*) FROM streams JOIN events USING (stream_id)"


@pytest.fixture(scope="module")
def served(three_streams: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder whose SQL server runs. The store is elsewhere."""
    data = tmp_path_factory.mktemp("served")
    with serving(locate("sqlite", three_streams), data):
        yield data


@pytest.fixture(scope="module", params=["store", "server"])
def con(request: pytest.FixtureRequest, three_streams: Path) -> Iterator[sg.Connection]:
    data = three_streams if request.param == "store" else request.getfixturevalue("served")
    with sg.connect(data) as connection:
        yield connection


def test_it_shows_what_it_is_connected_to(three_streams: Path, served: Path) -> None:
    with sg.connect(three_streams) as con:
        assert repr(con) == f"<streamgauge.Connection to {three_streams}/catalog.sqlite>"
    with sg.connect(served) as con:
        assert con.source.startswith("quack:localhost:")


def test_statements_have_relations(con: sg.Connection) -> None:
    relation = con.sql("SELECT outcome, count(*) AS streams FROM streams GROUP BY 1")
    assert relation.columns == ["outcome", "streams"]
    assert relation.fetchall() == con.execute("SELECT 'ok', 3").fetchall() == [("ok", 3)]
    assert relation.pl().rows() == relation.df().to_records(index=False).tolist() == [("ok", 3)]
    assert con.sql(JOINED).fetchone() == (39,)
    assert con.sql("FROM open_streams").fetchall() == []
    assert "streams" in con.tables()
    assert con.context("x").columns[-3:] == ["part", "bytes", "tokens"]
    assert "gauge" not in con.tables()
    assert "Table: streams" in con.sql("EXPLAIN SELECT count(outcome) FROM streams").fetchall()[0][1]


@pytest.mark.parametrize("by_duckdb", [False, True])
def test_ended_streams_leave_open_streams(tmp_path: Path, by_duckdb: bool) -> None:
    location = make_store(tmp_path, rows=1)
    with sg.connect(tmp_path) as con:

        def ask() -> list[tuple[int]]:
            sql = "SELECT count(*) FROM open_streams"
            return con.duckdb.execute(sql).fetchall() if by_duckdb else con.sql(sql).fetchall()

        write_open_streams(Path(str(location.tables)), "one", ["0198b2d0-0000-7000-8000-000000000001"])
        assert ask() == [(1,)]
        (Path(str(location.tables)) / "open_streams" / "one.live").unlink()
        assert ask() == [(0,)]


def test_instants_are_in_utc(con: sg.Connection) -> None:
    ((instant,),) = con.sql("SELECT started_at FROM streams LIMIT 1").fetchall()
    assert isinstance(instant, datetime)
    assert instant.utcoffset() == timedelta(0)
    frame = con.sql("SELECT started_at FROM streams LIMIT 1").pl()
    assert frame.schema["started_at"].time_zone == "UTC"  # type: ignore[attr-defined]
    assert frame.item() == instant


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("DROP TABLE streams", "read-only"),
        ("SELECT 1; SELECT 2", "cannot run 2 statements"),
        ("EXPLAIN ANALYZE SELECT 1", "read-only"),
        ("EXPLAIN DROP TABLE streams", "read-only"),
        ("COPY (SELECT 1) TO '/tmp/copied.csv'", "read-only"),
        ("SELECT nope FROM streams", "nope"),
    ],
)
def test_other_statements_are_rejected(con: sg.Connection, sql: str, reason: str) -> None:
    with pytest.raises(sg.QueryRejected, match=reason):
        con.sql(sql)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        5,
        2.5,
        "it's $1 ?",
        "ä",
        date(2026, 1, 2),
        datetime(2026, 1, 2, tzinfo=UTC),
        Decimal("1.5"),
        [1, 2],
    ],
)
def test_parameters(con: sg.Connection, value: object) -> None:
    assert con.sql("SELECT ?, '?', 'ä' /* ? */", [value]).fetchall() == [(value, "?", "ä")]
    named = con.sql(
        "SELECT $b, $a, outcome FROM streams WHERE outcome = $c LIMIT 1", {"a": value, "b": 1, "c": "ok"}
    )
    assert named.fetchall() == [(1, value, "ok")]


def test_missing_parameter_is_named(con: sg.Connection) -> None:
    with pytest.raises(sg.QueryRejected, match="parameter"):
        con.sql("SELECT ?, ?", [1])


def test_statement_joins_a_data_frame_of_the_caller(con: sg.Connection) -> None:
    weights = pl.DataFrame({"outcome": ["ok"], "weight": [2]})  # noqa: F841 - named in the statement
    join = "SELECT sum(weight) FROM streams JOIN weights USING (outcome)"
    if con.source.startswith("quack:"):
        assert con.duckdb.sql(join).fetchall() == [(6,)]
    else:
        assert con.sql(join).fetchall() == [(6,)]


def test_threads_share_a_connection(con: sg.Connection) -> None:
    """On one cursor of DuckDB, statements of several threads wait for each other for ever."""
    with ThreadPoolExecutor(4) as pool:
        counts = pool.map(lambda _: [con.sql(JOINED).fetchone() for _ in range(20)], range(4))
        assert {count for found in counts for count in found} == {(39,)}


def test_relation_outlives_the_thread_that_made_it(con: sg.Connection) -> None:
    made: list[duckdb.DuckDBPyRelation] = []
    thread = threading.Thread(target=lambda: made.append(con.sql(JOINED)))
    thread.start()
    thread.join()
    assert made[0].fetchall() == [(39,)]


def test_closed_connection_says_so(three_streams: Path, served: Path) -> None:
    for data in (three_streams, served):
        con = sg.connect(data)
        con.close()
        for use in (lambda con=con: con.sql("SELECT 1"), lambda con=con: con.duckdb, con.tables):
            with pytest.raises(sg.StoreUnavailable, match="the connection is closed"):
                use()
        con.close()


def test_duckdbs_own_connection_reads_the_tables(con: sg.Connection) -> None:
    own = con.duckdb
    assert own is con.duckdb
    assert own.sql("SELECT count(*) FROM streams").fetchall() == [(3,)]
    if con.source.startswith("quack:"):
        assert own.sql(f"FROM on_server('{JOINED}')").fetchall() == [(39,)]
        assert "token=redacted" in str(own.sql("SELECT secret_string FROM duckdb_secrets()").fetchall())
    else:
        assert own.sql(JOINED).fetchall() == [(39,)]


def test_a_server_by_address(served: Path, three_streams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.connect(served) as local:
        address = local.source.removeprefix("quack:")
    with sg.connect(served, server=address) as con:
        assert con.sql(JOINED).fetchone() == (39,)
    with pytest.raises(sg.StoreUnavailable, match="the token is wrong"):
        sg.connect(three_streams, server=address, token="not-the-token-at-all")
    with pytest.raises(sg.StoreUnavailable, match="no token"):
        sg.connect(three_streams, server=address)


def test_what_cannot_be_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sg.StoreUnavailable, match=r"has no tables yet\. Start analytics"):
        sg.connect(tmp_path)
    with pytest.raises(sg.StoreUnavailable, match="Start the server with `streamgauge up --serve`"):
        sg.connect(server="localhost:9", token="x" * 20)
    monkeypatch.setenv("STREAMGAUGE_STORE", "nonsense")
    with pytest.raises(sg.StoreUnavailable, match="--store must be"):
        sg.connect(tmp_path)

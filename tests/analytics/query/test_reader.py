"""Queries in this process: rows, types, freshness, errors and the lock-down."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from streamgauge.analytics.query.query_errors import QueryRejected, QueryTimeout, StoreUnavailable
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import StoreLocation, locate
from tests.analytics.query.conftest import ROWS, RUNAWAY, add_stream, make_store
from tests.deadline import DEADLINE_S


@pytest.fixture(scope="module", params=[False, True], ids=["open", "locked"])
def reader(request: pytest.FixtureRequest, location: StoreLocation) -> Iterator[Reader]:
    reader = Reader(location, lock_down=request.param)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def locked(location: StoreLocation) -> Iterator[Reader]:
    reader = Reader(location, lock_down=True)
    yield reader
    reader.close()


def test_tables_views_and_the_list_of_tables_can_be_queried(reader: Reader) -> None:
    assert reader.query("SELECT count(*), sum(ttft_ns) FROM streams", 10, 5).row(0) == (
        ROWS,
        ROWS * (ROWS - 1) // 2,
    )
    assert reader.query("FROM by_outcome", 10, 5).rows() == [("ok", ROWS)]
    columns = reader.query(
        "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() "
        "WHERE schema_name = 'main' AND NOT internal AND database_name = current_database()",
        100,
        5,
    )
    assert ("streams", "ttft_ns", "BIGINT", "time to first token") in columns.rows()
    assert set(columns["table_name"]) == {"streams", "events", "by_outcome"}


def test_column_types_match_those_the_dashboard_expects(reader: Reader) -> None:
    row = reader.query(
        "SELECT stream_id, started_at, 1::HUGEINT AS h, INTERVAL 90 SECOND AS i, [1, 2] AS l, NULL AS n, "
        "sum(ttft_ns) OVER () AS total FROM streams ORDER BY stream_id LIMIT 1",
        10,
        5,
    ).row(0, named=True)
    assert row["stream_id"] == "0198b2d0-0000-7000-8000-000000000000"
    assert row["started_at"].isoformat() == "2026-09-21T14:13:20+00:00"
    assert (row["h"], row["i"].total_seconds(), row["l"], row["n"]) == (1, 90.0, [1, 2], None)
    assert row["total"] == ROWS * (ROWS - 1) // 2


def test_empty_answers_keep_their_columns(reader: Reader) -> None:
    found = reader.query("SELECT stream_id, ttft_ns FROM streams WHERE false;", 10, 5)
    assert (found.height, found.columns) == (0, ["stream_id", "ttft_ns"])


def test_more_rows_than_allowed_are_rejected(reader: Reader) -> None:
    assert reader.query("FROM streams LIMIT 10", 10, 5).height == 10
    with pytest.raises(QueryRejected, match="more than 10 rows"):
        reader.query("FROM streams LIMIT 11", 10, 5)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO streams VALUES (uuid(), now(), 'ok', 1)",
        "DELETE FROM streams",
        "DROP TABLE streams",
        "SELECT 1; SELECT 2",
        "SELECT 1) LIMIT 1; CREATE TABLE memory.main.x AS FROM (SELECT 1",
        "",
        "SET threads = 1",
        "ATTACH ':memory:' AS other",
        "SELECT error('it''s\nboth')",
        "SELECT no_such_column FROM streams",
    ],
)
def test_anything_but_one_valid_select_is_rejected_in_one_line(reader: Reader, sql: str) -> None:
    with pytest.raises(QueryRejected) as refused:
        reader.query(sql, 10, 5)
    assert str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_query_ends_at_its_deadline(reader: Reader) -> None:
    started_s = time.monotonic()
    with pytest.raises(QueryTimeout, match=r"0\.3 s"):
        reader.query(RUNAWAY, 10, 0.3)
    assert time.monotonic() - started_s < DEADLINE_S


def test_threads_may_share_a_reader(reader: Reader) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda n=n: answers.append(
                reader.query(f"SELECT count(*) + {n} FROM streams", 1, 10).item()
            )
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [ROWS + n for n in range(8)]


def test_a_cursor_serves_statements_until_one_fails(location: StoreLocation) -> None:
    class Counting(Reader):
        made = 0

        def cursor(self) -> duckdb.DuckDBPyConnection:
            self.made += 1
            return super().cursor()

    reader = Counting(location)
    for _ in range(3):
        reader.query("FROM open_streams", 10, 5)
    assert reader.made == 1
    with pytest.raises(QueryRejected):
        reader.query("SELECT no_column FROM open_streams", 10, 5)
    assert reader.query("SELECT count(*) FROM open_streams", 10, 5).item() == 0
    assert reader.made == 2
    reader.close()


def test_each_query_sees_the_newest_commit(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=3)
    reader = Reader(location, lock_down=True)
    try:
        assert reader.query("SELECT count(*) FROM streams", 1, 5).item() == 3
        add_stream(location)
        assert reader.query("SELECT count(*) FROM streams", 1, 5).item() == 4
    finally:
        reader.close()


def test_a_missing_store_is_unavailable_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="streamgauge up") as error:
        Reader(locate("sqlite", tmp_path), lock_down=False)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_invalid_catalog_file_is_unavailable(tmp_path: Path) -> None:
    location = locate("sqlite", tmp_path)
    assert location.catalog is not None
    location.catalog.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnavailable, match="cannot attach"):
        Reader(location, lock_down=False)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('/etc/hostname')",
        "FROM '/etc/passwd'",
        "FROM read_csv('{tmp}/planted.csv')",
        "FROM sqlite_scan('{tmp}/planted.sqlite', 'x')",
    ],
)
def test_a_locked_reader_opens_no_other_files(locked: Reader, tmp_path: Path, sql: str) -> None:
    (tmp_path / "planted.csv").write_text("a\nplanted-secret\n")
    with pytest.raises((QueryRejected, StoreUnavailable)) as error:
        locked.query(sql.format(tmp=tmp_path), 10, 5)
    assert "planted-secret" not in str(error.value)


def test_time_zones_need_no_pytz(reader: Reader) -> None:
    found = reader.query("SELECT TIMESTAMPTZ '2026-01-01 00:00:00+02' AS t", 1, 5)
    assert str(found.schema["t"]) == "Datetime(time_unit='us', time_zone='UTC')"


def test_dates_are_those_of_utc_whatever_the_machines_time_zone(reader: Reader) -> None:
    assert reader.query("SELECT current_setting('TimeZone') AS zone", 1, 5).item() == "UTC"

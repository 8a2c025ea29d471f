"""A store with its files in S3: a real S3 server, real PostgreSQL, credentials in the environment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.commit import Commit, StoreFailed
from streamgauge.analytics.storage.forget import Caller, forget
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep
from tests.analytics.storage.rows import commit_of, count_of, new_ids, streams
from tests.analytics.storage.test_open_streams_file import rows_of
from tests.analytics.stores import ask_as_reader
from tests.kafka import skip_without_java
from tests.postgres import Postgres
from tests.s3 import S3, s3_server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    skip_without_java()
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def signed_in(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def test_rows_are_written_merged_and_read_in_s3(
    signed_in: S3, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dsn = postgres.new_database()
    data = tmp_path_factory.mktemp("data")
    store = Store(locate(f"postgres:{dsn}", data, f"{signed_in.bucket('whole')}/lake"))
    try:
        store.acquire_partition("cluster/topic", "0")
        ids = new_ids(1200)
        for high in range(3):
            store.commit(commit_of("cluster/topic", "0", high, ids[high * 400 : high * 400 + 400]))
        written = signed_in.objects("whole")
        assert sum("/streams/" in key for key in written) == 3
        upkeep = Upkeep(store, events_s=3600, streams_s=3600)
        for task in ("flush_all", "compact_rollups", "merge", "merge_all", "expire", "orphans"):
            upkeep.tasks[task][1]()
        assert written <= signed_in.objects("whole")
        upkeep._call("ducklake_expire_snapshots", "older_than => now()")
        upkeep._call("ducklake_cleanup_old_files", "cleanup_all => true")
        merged = {key for key in signed_in.objects("whole") if "/streams/" in key}
        assert len(merged) == 1
        assert not merged & written
        assert count_of(store, ids) == 1200
        # A reader only has the catalog, which contains the path of the files. The keys are in its environment.
        location = StoreLocation(dsn=dsn)
        (one,) = new_ids(1)
        store.write_open_streams(rows_of(one))
        assert ask_as_reader(location, "SELECT count(*) FROM streams") == [(1200,)]
        assert ask_as_reader(location, "SELECT stream_id FROM open_streams") == [(one,)]
        store.write_open_streams(rows_of())
        assert ask_as_reader(location, "SELECT count(*) FROM open_streams") == [(0,)]
        reader = Reader(location, lock_down=True)
        with pytest.raises(QueryError):
            reader.query("SELECT * FROM read_parquet('s3://other/lake/main/streams/*.parquet')", 10, 10)
        reader.close()
        upkeep.retain(time.time())
        upkeep.close()
    finally:
        store.close()


def test_invalid_s3_keys_are_reported_but_not_shown(
    signed_in: S3,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not this one")
    location = locate(
        f"postgres:{postgres.new_database()}",
        tmp_path_factory.mktemp("data"),
        f"{signed_in.bucket('shut')}/lake",
    )
    store = Store(location)
    try:
        store.acquire_partition("cluster/topic", "0")
        with pytest.raises(StoreFailed, match=r"403.*Nothing was half-written") as refused:
            store.commit(commit_of("cluster/topic", "0", 1, new_ids(400)))
    finally:
        store.close()
    assert "not this one" not in str(refused.value)
    assert signed_in.objects("shut") == set()


@pytest.mark.slow
def test_objects_with_rows_of_a_forgotten_client_are_deleted(
    signed_in: S3, postgres: Postgres, tmp_path: Path
) -> None:
    dsn = postgres.new_database()
    with closing(Store(locate(f"postgres:{dsn}", tmp_path, f"{signed_in.bucket('forget')}/lake"))) as store:
        for clients in (("a", "b"), ("b",)):
            rows = [streams(*new_ids(300), client_id=client * 32) for client in clients]
            store.commit(Commit("", tables={"streams": pl.concat(rows)}))
    written = {key for key in signed_in.objects("forget") if "/streams/" in key}
    location = StoreLocation(dsn=dsn)
    forget(location, tmp_path, Caller("client", "a" * 32))
    kept = {key for key in signed_in.objects("forget") if "/streams/" in key}
    assert len(written) == len(kept) == 2
    assert len(written & kept) == 1
    assert ask_as_reader(location, "SELECT client_id, count(*) FROM streams GROUP BY 1") == [("b" * 32, 600)]

"""A lake whose files are in S3: a real server of that interface, real PostgreSQL; credentials as users give them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from analytics.lake.place import parse
from analytics.lake.store import LakeStore
from analytics.lake.upkeep import Upkeep
from analytics.serving.ask import LakeAsker, Refused
from analytics.storage.store import StoreFailed
from tests.analytics.lake.test_store import commit, new_ids, stored
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


def test_rows_are_written_kept_in_order_and_read_in_s3(signed_in: S3, postgres: Postgres) -> None:
    lake = parse(f"ducklake:postgres:{postgres.new_database()}", f"{signed_in.bucket('whole')}/lake")
    assert lake is not None
    store = LakeStore(lake)
    asker = None
    try:
        store.claim("cluster/topic", "0")
        ids = new_ids(1200)
        for high in range(3):
            store.commit(commit("cluster/topic", "0", high, *ids[high * 400 : high * 400 + 400]))
        written = signed_in.objects("whole")
        assert sum("/streams/" in key for key in written) == 3
        upkeep = Upkeep(store, events_s=3600, streams_s=3600)
        for task in ("tidy", "flush", "settle", "merge", "merge_all"):
            upkeep.tasks[task][1]()
        upkeep._call("ducklake_expire_snapshots", "older_than => now()")
        upkeep._call("ducklake_cleanup_old_files", "cleanup_all => true")
        merged = {key for key in signed_in.objects("whole") if "/streams/" in key}
        assert len(merged) == 1
        assert not merged & written
        assert stored(store, ids) == 1200
        # A reader names the catalog alone: where the files are it has from there, and is let in by its environment.
        reader = parse(lake.store)
        assert reader is not None
        asker = LakeAsker(reader)
        assert asker.query("SELECT count(*) AS n FROM streams")["n"].to_list() == [1200]
        with pytest.raises(Refused):
            asker.query("SELECT * FROM read_parquet('s3://whole/lake/main/streams/*.parquet')")
        upkeep.retain(time.time())
        upkeep.close()
    finally:
        if asker is not None:
            asker.close()
        store.close()


def test_wrong_keys_are_said_without_naming_them(
    signed_in: S3, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not this one")
    lake = parse(f"ducklake:postgres:{postgres.new_database()}", f"{signed_in.bucket('shut')}/lake")
    assert lake is not None
    store = LakeStore(lake)
    try:
        store.claim("cluster/topic", "0")
        with pytest.raises(StoreFailed, match=r"403.*nothing was half-written") as refused:
            store.commit(commit("cluster/topic", "0", 1, *new_ids(400)))
    finally:
        store.close()
    assert "not this one" not in str(refused.value)
    assert signed_in.objects("shut") == set()

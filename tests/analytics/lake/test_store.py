"""The lake as several consumers write it: nothing twice, nobody in the way of another, whoever was killed when."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pytest

from analytics.lake.place import Lake, parse
from analytics.lake.store import LakeStore
from analytics.lake.upkeep import Upkeep
from analytics.serving.ask import LakeAsker, NotRunning, Refused
from analytics.storage.store import Commit, Fenced, Position, StoredPosition, Tap
from tests.postgres import Postgres

Log = str


@pytest.fixture(scope="module")
def lake(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    found = parse(f"ducklake:postgres:{postgres.new_database()}", str(tmp_path_factory.mktemp("lake")))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def consumers(lake: Lake) -> Iterator[list[LakeStore]]:
    """Three consumers of one lake: attaching costs a second, so tests share them and use logs of their own."""
    stores = [LakeStore(lake, stall=(500_000_000, 5.0)) for _ in range(3)]
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def log_id() -> Log:
    return f"cluster/{uuid.uuid4()}"


def streams(*ids: str, text: str = "/v1/chat") -> pl.DataFrame:
    return pl.DataFrame(
        {"stream_id": [*ids], "started_at": [1_700_000_000_000_000] * len(ids), "outcome": ["ok"] * len(ids)}
    ).with_columns(pl.col("started_at").cast(pl.Datetime("us", "UTC")), path=pl.lit(text))


def new_ids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def commit(log_id: Log, partition: str, high: int, *ids: str, open_ids: tuple[str, ...] = ()) -> Commit:
    return Commit(
        log_id,
        positions={partition: StoredPosition(high, max(0, high - 1), open_ids)},
        tables={"streams": streams(*ids)},
        totals={"records": len(ids)},
    )


def stored(store: LakeStore, ids: Iterable[str], table: str = "streams") -> int:
    """How many rows there are of these streams."""
    return number(
        store, f"SELECT count(*) FROM {table} WHERE stream_id IN (SELECT unnest(?::UUID[]))", [*ids]
    )


def number(store: LakeStore, sql: str, *values: object) -> int:
    row = store.cursor().execute(sql, values).fetchone()
    assert row is not None
    return int(row[0] or 0)


def in_threads(work: Callable[[int], object], *numbers: int) -> None:
    threads = [threading.Thread(target=work, args=(n,)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def disturb_once(monkeypatch: pytest.MonkeyPatch, store: LakeStore, disturb: Callable[[], object]) -> None:
    """In the next transaction, after the owner was compared. (It takes no turn: as if it had waited for too long.)"""
    check = store._check_owner
    done: list[object] = []

    def check_and_be_disturbed(log_id: str, positions: Mapping[str, Position]) -> None:
        check(log_id, positions)
        if not done:
            done.append(disturb())

    monkeypatch.setattr(store, "_check_owner", check_and_be_disturbed)


def test_what_is_committed_is_there_for_the_next_owner(consumers: list[LakeStore], log_id: Log) -> None:
    first, second, _ = consumers
    before = second.totals().get("records", 0)
    assert first.claim(log_id, "0") is None
    done, open_id = new_ids(2)
    first.commit(commit(log_id, "0", 7, done, open_ids=(open_id,)))
    assert second.claim(log_id, "0") == StoredPosition(7, 6, (open_id,))
    assert stored(second, [done]) == 1
    assert second.totals()["records"] - before == 1
    assert second.lake_id == first.lake_id


def test_consumers_of_different_partitions_commit_at_once_and_no_commit_is_done_again(
    consumers: list[LakeStore], log_id: Log
) -> None:
    stores = consumers[:2]
    for partition, store in enumerate(stores):
        store.claim(log_id, str(partition))
    conflicts = [store.conflicts for store in stores]
    ids = new_ids(60)
    failures: list[BaseException] = []

    def work(partition: int) -> None:
        try:
            for high in range(10):
                at = partition * 30 + high * 3
                stores[partition].commit(commit(log_id, str(partition), high, *ids[at : at + 3]))
        except BaseException as e:
            failures.append(e)

    in_threads(work, 0, 1)
    assert not failures
    assert stored(stores[0], ids) == 60
    assert [store.conflicts for store in stores] == conflicts


def test_a_former_owner_is_fenced(consumers: list[LakeStore], log_id: Log) -> None:
    zombie, heir, _ = consumers
    ids = new_ids(3)
    zombie.claim(log_id, "0")
    zombie.commit(commit(log_id, "0", 1, ids[0]))
    heir.claim(log_id, "0")
    with pytest.raises(Fenced):
        zombie.commit(commit(log_id, "0", 2, ids[1]))
    heir.commit(commit(log_id, "0", 2, ids[2]))
    assert [stored(heir, [one]) for one in ids] == [1, 0, 1]


def test_a_former_owner_is_fenced_in_the_middle_of_its_commit(
    consumers: list[LakeStore], log_id: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction has compared before the partition is claimed, and sets after: only the conflict tells."""
    zombie, heir, _ = consumers
    ids = new_ids(2)
    zombie.claim(log_id, "0")
    zombie.commit(commit(log_id, "0", 1, ids[0]))
    conflicts = zombie.conflicts
    disturb_once(monkeypatch, zombie, lambda: heir._again(lambda: heir._claim(log_id, "0")))
    with pytest.raises(Fenced):
        zombie.commit(commit(log_id, "0", 2, ids[1]))
    assert zombie.conflicts == conflicts + 1
    assert stored(heir, ids) == 1


def test_a_commit_that_another_overtook_is_done_again_by_the_lake_and_counted(
    consumers: list[LakeStore], log_id: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, _ = consumers
    ids = new_ids(3)
    store.claim(log_id, "0")
    other.claim(log_id, "1")
    counted = (store.conflicts, store.overtaken)
    store.commit(commit(log_id, "0", 1, ids[0]))
    assert (store.conflicts, store.overtaken) == counted
    disturb_once(monkeypatch, store, lambda: other.commit(commit(log_id, "1", 1, ids[1])))
    store.commit(commit(log_id, "0", 2, ids[2]))
    assert (store.conflicts, store.overtaken) == (counted[0], counted[1] + 1)
    assert stored(store, ids) == 3


def test_a_claim_of_another_partition_is_a_conflict_that_is_done_again(
    consumers: list[LakeStore], log_id: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, _ = consumers
    ids = new_ids(2)
    store.claim(log_id, "0")
    other.claim(log_id, "1")
    conflicts = store.conflicts
    disturb_once(monkeypatch, store, lambda: other._again(lambda: other._claim(log_id, "1")))
    store.commit(commit(log_id, "0", 1, *ids))
    assert store.conflicts == conflicts + 1
    assert stored(store, ids) == 2


def test_claims_at_once_are_put_in_a_row(consumers: list[LakeStore], log_id: Log) -> None:
    in_threads(lambda n: consumers[n].claim(log_id, "0"), 0, 1, 2)
    ids = new_ids(3)
    fenced = 0
    for store, one in zip(consumers, ids, strict=True):
        try:
            store.commit(commit(log_id, "0", 1, one))
        except Fenced:
            fenced += 1
    assert fenced == 2
    assert stored(consumers[0], ids) == 1


def test_what_is_committed_stays_through_upkeep(consumers: list[LakeStore], log_id: Log, lake: Lake) -> None:
    store = consumers[0]
    store.claim(log_id, "0")
    kept, finished = new_ids(2)
    ids = new_ids(2000)
    tap = Tap("tap", 0, log_id, 10**18, 10**18, False, {"streams_opened": 1})
    for high in range(5):
        one = commit(log_id, "0", high, *ids[high * 400 : high * 400 + 400], open_ids=(kept,))
        one.keep = [("0", kept, b"\x00%d" % high), ("0", finished, b"gone")]
        one.taps = [tap]
        store.commit(one)
    upkeep = Upkeep(store, events_s=None, streams_s=None)
    totals = store.totals()
    files = {path.name for path in Path(str(lake.data_path)).rglob("*.parquet")}
    for task in ("tidy", "flush", "settle", "merge", "merge_all"):
        upkeep.tasks[task][1]()
    upkeep._call("ducklake_expire_snapshots", "older_than => now()")
    upkeep._call("ducklake_cleanup_old_files", "cleanup_all => true")
    upkeep.close()
    assert stored(store, ids) == 2000
    assert (
        number(
            store,
            "SELECT count(DISTINCT stream_id) FROM streams WHERE stream_id IN (SELECT unnest(?::UUID[]))",
            ids,
        )
        == 2000
    )
    assert number(store, "SELECT count(*) FROM internal.positions WHERE log_id = ?", log_id) == 1
    assert store.kept_records(log_id, "0") == {kept: [b"\x00%d" % high for high in range(5)]}
    assert stored(store, [finished], "internal.open_stream_records") == 0
    assert store.totals() == totals
    assert tap in store.taps()
    left = {path.name for path in Path(str(lake.data_path)).rglob("streams/*.parquet")}
    assert len(left) == 1
    assert not left & files
    store.commit(commit(log_id, "0", 6, *new_ids(1)))


def test_one_process_at_a_time_does_the_upkeep(consumers: list[LakeStore]) -> None:
    first, second = (Upkeep(store, events_s=None, streams_s=None) for store in consumers[:2])
    for upkeep in (first, second):
        upkeep.tasks = {"tidy": (0, upkeep.tidy)}
    with first._office.office() as mine:
        assert mine
        assert second.round() == []
    assert second.round() == []  # it is due once its interval is over for the first time
    assert second.round() == ["tidy"]
    first.close()
    second.close()


def test_old_rows_go_and_are_counted(consumers: list[LakeStore], log_id: Log) -> None:
    store = consumers[0]
    store.claim(log_id, "0")
    old, new = "01000000-0000-7000-8000-000000000000", "01000000-ffff-7000-8000-000000000000"
    one = commit(log_id, "0", 1, old, new)
    one.tables = {
        **one.tables,
        "events": pl.DataFrame(
            {
                "stream_id": [old, new],
                "seq": [0, 0],
                "read_seq": [0, 0],
                "at_ns": [1, 1],
                "kind": ["text"] * 2,
            }
        ),
    }
    store.commit(one)
    upkeep = Upkeep(store, events_s=10, streams_s=20)
    before = store.totals().get("expired_events_rows", 0)
    upkeep.retain(0x01000000FFFF / 1000 + 5)
    upkeep.close()
    assert [stored(store, [one], table) for table in ("streams", "events") for one in (old, new)] == [
        0,
        1,
        0,
        1,
    ]
    assert store.totals()["expired_events_rows"] - before == 1


def test_a_nul_in_a_text_does_not_stop_the_catalog(consumers: list[LakeStore], log_id: Log) -> None:
    store = consumers[0]
    store.claim(log_id, "0")
    (one,) = new_ids(1)
    told = {"streams": streams(one, text="a\x00b")}
    store.commit(Commit(log_id, positions={"0": StoredPosition(1, 1, ())}, tables=told))
    assert store.cursor().execute("SELECT path FROM streams WHERE stream_id = ?::UUID", [one]).fetchone() == (
        "a\ufffdb",
    )


def test_open_streams_are_those_of_the_partitions_present_owners(
    consumers: list[LakeStore], log_id: Log
) -> None:
    first, second, _ = consumers
    ids = new_ids(3)

    def show(store: LakeStore, high: int, *shown: str) -> None:
        one = commit(log_id, "0", high)
        one.open_streams = pl.DataFrame(
            {"stream_id": [*shown], "started_at": [1] * len(shown), "updated_at": [1] * len(shown)}
        ).with_columns(pl.col("started_at", "updated_at").cast(pl.Datetime("us", "UTC")))
        store.commit(one)

    first.claim(log_id, "0")
    show(first, 1, ids[0], ids[1])
    show(first, 2, ids[1])
    assert [stored(first, [one], "open_streams") for one in ids] == [0, 1, 0]
    first.commit(commit(log_id, "0", 3))
    assert [stored(first, [one], "open_streams") for one in ids] == [0, 1, 0]
    second.claim(log_id, "0")
    show(second, 4, ids[2])
    assert [stored(first, [one], "open_streams") for one in ids] == [0, 0, 1]


def test_readers_ask_the_lake_itself_and_can_change_nothing(
    consumers: list[LakeStore], log_id: Log, lake: Lake
) -> None:
    store = consumers[0]
    store.claim(log_id, "0")
    asker = LakeAsker(Lake(lake.dsn))

    def ask() -> list[int]:
        found = asker.query(
            f"SELECT count(*) AS n, max(high) AS high FROM streams, log_positions WHERE log_id = '{log_id}'"
        )
        return [found["n"][0], found["high"][0]]

    before = number(store, "SELECT count(*) FROM streams")
    store.commit(commit(log_id, "0", 1, *new_ids(500)))
    assert ask() == [before + 500, 1]
    store.commit(commit(log_id, "0", 2, *new_ids(1)))
    assert ask() == [before + 501, 2]
    assert asker.query("FROM errors_by_minute LIMIT 1").width > 5
    for refused in (
        "DELETE FROM streams",
        "SELECT * FROM postgres_query('__ducklake_metadata_lake', 'SELECT 1')",
        "SELECT * FROM __ducklake_metadata_lake.public.ducklake_snapshot",
        "SELECT * FROM internal.positions",
        "SELECT * FROM '/etc/passwd'",
        "CALL ducklake_expire_snapshots('lake')",
        "SELECT * FROM duckdb_databases()",
    ):
        with pytest.raises(Refused):
            asker.query(refused)
    asker.close()


def test_a_lake_that_is_not_there_is_said_without_its_password(postgres: Postgres) -> None:
    lake = parse(f"ducklake:postgres:host=127.0.0.1 port={postgres.port} user=x dbname=none password=geheim")
    assert lake is not None
    with pytest.raises(NotRunning) as raised:
        LakeAsker(lake)
    assert "geheim" not in str(raised.value)
    assert "geheim" not in repr(lake)
    with pytest.raises(OSError, match="lake") as failed:
        LakeStore(lake)
    assert "geheim" not in str(failed.value)


@pytest.mark.parametrize("store", ["ducklake:", "ducklake:postgres:", "sqlite:x", "ducklake:mysql:host=x"])
def test_what_is_no_lake_is_refused(store: str) -> None:
    with pytest.raises(ValueError, match="--store"):
        parse(store)


def test_the_data_path_belongs_to_a_lake() -> None:
    assert parse("duckdb") is None
    with pytest.raises(ValueError, match="--data-path"):
        parse("duckdb", "/x")
    with pytest.raises(ValueError, match="--data-path"):
        parse("ducklake:postgres:host=x", "gs://x")
    found = parse("ducklake:postgres:host=x", "s3://bucket/prefix")
    assert found == Lake("host=x", "s3://bucket/prefix")


def test_duckdb_is_the_version_whose_conflicts_are_known() -> None:
    """`is_conflict` reads DuckLake's words: they are looked at again when it changes."""
    assert duckdb.__version__ == "1.5.5"

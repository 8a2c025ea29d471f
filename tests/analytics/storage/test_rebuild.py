"""A damaged catalog is restored from its backup, or from the Parquet files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.storage import upkeep as upkeep_module
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.rebuild import Source, rebuild
from streamgauge.analytics.storage.rollup_compaction import ROLLUPS, compact_rollups
from streamgauge.analytics.storage.store import INLINED_ROWS, Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.generated_ids import smallest_uuid7
from streamgauge.ingest.records import Wait
from tests.analytics.log_entries import MS, stream
from tests.analytics.storage.rows import commit_of, count, new_ids, streams
from tests.analytics.stores import ask, new_store

LARGE = INLINED_ROWS + 1
TABLES = ("streams", "events", "usage_reports", "losses")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def filled(data: Path) -> Iterator[tuple[Store, Upkeep]]:
    """A store with inlined rows and files, some of them merged and not deleted yet."""
    store = new_store(data)
    upkeep = Upkeep(store, events_s=None, streams_s=None)
    store.acquire_partition("log", "0")
    for high in range(1, 4):
        store.commit(commit_of("log", "0", high, new_ids(LARGE), each=2))
    upkeep._call("ducklake_merge_adjacent_files")
    store.commit(commit_of("log", "0", 4, new_ids(5), each=2))
    upkeep.flush(least_rows=1)
    yield store, upkeep
    upkeep.close()
    store.close()


def damage(data: Path) -> StoreLocation:
    location = locate("sqlite", data)
    assert location.catalog is not None
    for ending in ("", "-wal", "-shm"):
        location.catalog.with_name(location.catalog.name + ending).unlink(missing_ok=True)
    location.catalog.write_bytes(b"damaged" * 1000)
    return location


def close(filled: tuple[Store, Upkeep]) -> None:
    for each in reversed(filled):
        each.close()


def test_rebuild_from_backup_restores_its_rows_positions_and_counters(
    data: Path, filled: tuple[Store, Upkeep]
) -> None:
    store, upkeep = filled
    upkeep.back_up()
    rows = 3 * LARGE + 5
    store.commit(commit_of("log", "0", 5, new_ids(1)))
    close(filled)
    location = damage(data)
    assert rebuild(location).source is Source.BACKUP
    [kept] = data.glob("catalog.damaged*.sqlite")
    assert kept.read_bytes().startswith(b"damaged")
    reopened = Store(location)
    assert (count(reopened), count(reopened, "events")) == (rows, 2 * rows)
    assert reopened.acquire_partition("log", "0") == LogPosition(4, 3, ())
    assert reopened.totals()["records"] == rows
    reopened.commit(commit_of("log", "0", 5, new_ids(LARGE)))  # read again from the log
    assert count(reopened) == rows + LARGE
    reopened.close()


@pytest.mark.parametrize("backup", ["none", "damaged", "not used"])
def test_rebuild_from_files_restores_each_row_once_and_computes_rollups(
    data: Path, filled: tuple[Store, Upkeep], backup: str
) -> None:
    store, upkeep = filled
    rows = 3 * LARGE + 5
    minutes = ask(store, "SELECT * FROM errors_by_minute")
    by_label = "SELECT minute, label, value, sum(streams) FROM label_minutes GROUP BY ALL"
    assert [row[1:] for row in ask(store, by_label)] == [("team", "it's {a=1, b}", rows)]
    labels = ask(store, by_label)
    if backup != "none":
        upkeep.back_up()
    close(filled)
    location = damage(data)
    if backup == "damaged":
        location.backup.write_bytes(b"damaged, too" * 1000)
    reported: dict[str, int] = {}
    source = rebuild(location, use_backup=backup != "not used", report=reported.__setitem__).source
    assert source is Source.FILES
    assert (reported["streams"], reported["events"]) == (rows, 2 * rows)
    reopened = Store(location)
    assert ask(reopened, "SELECT count(*), count(DISTINCT stream_id) FROM streams") == [(rows, rows)]
    assert ask(reopened, "SELECT count(*), count(DISTINCT (stream_id, seq)) FROM events") == [
        (2 * rows, 2 * rows)
    ]
    assert ask(reopened, "SELECT * FROM errors_by_minute") == minutes
    assert ask(reopened, by_label) == labels
    assert reopened.acquire_partition("log", "0") is None
    reopened.commit(commit_of("log", "0", 1, new_ids(2)))
    assert count(reopened) == rows + 2
    reopened.close()


def test_backup_that_names_deleted_files_is_not_used(
    data: Path, filled: tuple[Store, Upkeep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backups have failed for longer than upkeep keeps files for them."""
    upkeep = filled[1]
    upkeep.back_up()
    monkeypatch.setattr(upkeep_module, "READERS_S", -1)
    upkeep.merge_all()
    upkeep.expire()
    close(filled)
    location = damage(data)
    assert rebuild(location).source is Source.FILES
    with closing(Store(location)) as reopened:
        assert count(reopened) == 3 * LARGE + 5


def test_slow_backup_is_an_error_in_one_line(data: Path, filled: tuple[Store, Upkeep]) -> None:
    with pytest.raises(OSError, match="timeout after 0 s"):
        filled[1].back_up(timeout_s=1e-6)


def test_rebuilt_histograms_of_gaps_are_without_waits_for_the_client(data: Path) -> None:
    histograms = (
        "SELECT metric, sum(n)::BIGINT, sum(total), list(buckets ORDER BY buckets), list(counts ORDER BY buckets) "
        "FROM histogram_minutes GROUP BY 1 ORDER BY 1"
    )
    assembler = Assembler()
    for number in range(6):
        *records, closed = stream(number, gap_ns=50 * MS)
        waits: list[Wait] = [(260 * MS, 290 * MS, "client"), (400 * MS, 440 * MS, "tap")] * (number % 2)
        assembler.feed("w0", number, [*records, replace(closed, waits=waits)])
    tables = measure(assembler.take_finished())
    with (
        closing(new_store(data)) as store,
        closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep,
    ):
        store.commit(Commit("", tables=tables))
        upkeep.flush(least_rows=1)
        before = ask(store, histograms)
    location = damage(data)
    assert rebuild(location).source is Source.FILES
    with closing(Store(location)) as reopened:
        assert ask(reopened, "SELECT count(*) FROM output_waits") == [(6,)]
        assert ask(reopened, histograms) == before


def test_missing_catalog_with_files_is_an_error_and_not_an_empty_store(
    data: Path, filled: tuple[Store, Upkeep]
) -> None:
    close(filled)
    location = damage(data)
    assert location.catalog is not None
    location.catalog.unlink()
    with pytest.raises(OSError, match="streamgauge rebuild") as refused:
        Store(location)
    assert "\n" not in str(refused.value)
    assert not location.catalog.exists()
    assert rebuild(location).source is Source.FILES
    reopened = Store(location)
    assert count(reopened) == 3 * LARGE + 5
    reopened.close()


def test_failed_rebuild_puts_the_catalog_back(data: Path, filled: tuple[Store, Upkeep]) -> None:
    close(filled)
    location = damage(data)
    [broken, *_] = Path(str(location.tables)).glob("main/events/*.parquet")
    broken.write_bytes(b"no Parquet")
    with pytest.raises(OSError, match="cannot rebuild") as failed:
        rebuild(location)
    assert "\n" not in str(failed.value)
    assert location.catalog is not None
    assert location.catalog.read_bytes().startswith(b"damaged")
    assert not [*data.glob("catalog.damaged*")]


def test_rows_that_only_a_readable_catalog_has_are_restored_with_positions_counters_and_keys(
    data: Path, filled: tuple[Store, Upkeep]
) -> None:
    store, _ = filled
    store.commit(commit_of("log", "0", 5, new_ids(2)))
    streams_before, totals, key = count(store), store.totals(), store.fingerprint_key
    labels = ask(store, "SELECT labels FROM streams ORDER BY stream_id")
    close(filled)
    rebuilt = rebuild(locate("sqlite", data), use_backup=False)
    assert (rebuilt.source, rebuilt.missing_rows) == (Source.FILES, 0)
    with closing(Store(locate("sqlite", data))) as reopened:
        assert count(reopened) == streams_before
        assert ask(reopened, "SELECT labels FROM streams ORDER BY stream_id") == labels
        assert (reopened.totals(), reopened.fingerprint_key) == (totals, key)
        assert reopened.acquire_partition("log", "0") == LogPosition(5, 4, ())
        reopened.commit(commit_of("log", "0", 6, new_ids(1)))


def test_rows_of_missing_files_are_counted(data: Path, filled: tuple[Store, Upkeep]) -> None:
    rows = count(filled[0], "events")
    close(filled)
    location = locate("sqlite", data)
    for file in Path(str(location.tables)).glob("main/events/*.parquet"):
        file.unlink()
    assert rebuild(location, use_backup=False).missing_rows == rows


def test_number_of_missing_rows_is_unknown_without_a_readable_catalog_or_backup(
    data: Path, filled: tuple[Store, Upkeep]
) -> None:
    close(filled)
    assert rebuild(damage(data)).missing_rows is None


def test_a_postgres_catalog_is_not_rebuilt() -> None:
    with pytest.raises(OSError, match="PostgreSQL's own backups"):
        rebuild(StoreLocation(dsn="host=db", tables="/files"))


def test_delete_files_are_not_read_as_rows(data: Path) -> None:
    ids = [smallest_uuid7(day * 86_400.0) for day in range(LARGE)]
    with (
        closing(new_store(data)) as store,
        closing(Upkeep(store, events_s=None, streams_s=86_400.0)) as upkeep,
    ):
        store.commit(Commit("", tables={"streams": streams(*ids)}))
        assert upkeep.retain(10.5 * 86_400.0) == 10
        upkeep.merge_all()
    assert len([*data.glob("tables/main/streams/*-delete.parquet")]) == 1
    assert rebuild(damage(data)).source is Source.FILES
    with closing(Store(locate("sqlite", data))) as reopened:
        assert count(reopened) == LARGE  # retention deletes the old ones again


def test_a_minute_that_was_compacted_twice_counts_once(data: Path) -> None:
    totals = "SELECT sum(n)::BIGINT FROM histogram_minutes UNION ALL SELECT sum(streams)::BIGINT FROM stream_minutes"
    assembler = Assembler()
    with (
        closing(new_store(data)) as store,
        closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep,
    ):
        for number in range(2):
            assembler.feed("w0", number, [*stream(number)])
            measured = rollups(measure(assembler.take_finished()), store.stall)
            # Without the streams, as after their retention.
            store.commit(Commit("", tables={t.name: measured[t.name] for t in ROLLUPS if t.name in measured}))
            assert compact_rollups(store.cursor(), time.time()) == 1
            upkeep.flush(least_rows=1)
        before = ask(store, totals)
    assert rebuild(damage(data)).source is Source.FILES
    with closing(Store(locate("sqlite", data))) as reopened:
        assert ask(reopened, totals) == before

"""The private copy of the catalog."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from streamgauge.analytics.query.catalog_copy import CatalogCopy
from streamgauge.analytics.query.query_errors import StoreUnavailable
from streamgauge.analytics.query.reader import Reader
from tests.analytics.query.conftest import add_stream, make_store


def test_open_reader_sees_new_commits_after_a_refresh(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=3)
    assert location.catalog is not None
    folder = tmp_path / "private"
    folder.mkdir()
    copy = CatalogCopy(location.catalog, folder)
    copy.refresh()
    reader = Reader(location, catalog=copy.path, lock_down=True)
    try:
        add_stream(location)
        assert reader.query("SELECT count(*) FROM streams", 1, 5).item() == 3
        copy.refresh()
        assert reader.query("SELECT count(*) FROM streams", 1, 5).item() == 4
    finally:
        reader.close()
    assert [path.name for path in folder.iterdir()] == ["catalog.sqlite"]  # no -wal, no -shm, no part


def test_copy_contains_no_bytes_of_internal_tables(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=3)
    assert location.catalog is not None
    folder = tmp_path / "private"
    folder.mkdir()
    copy = CatalogCopy(location.catalog, folder)
    copy.refresh()
    found = copy.path.read_bytes()
    assert b"ducklake_snapshot" in found
    assert b"planted-secret" not in found
    with closing(sqlite3.connect(copy.path)) as tables:
        names = tables.execute("SELECT name FROM sqlite_master WHERE name LIKE 'streamgauge%'").fetchall()
    assert names == []
    assert copy.path.stat().st_mode & 0o777 == 0o600


def test_an_unchanged_catalog_is_not_copied_again(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=3)
    assert location.catalog is not None
    folder = tmp_path / "private"
    folder.mkdir()
    copy = CatalogCopy(location.catalog, folder)
    time.sleep(0.05)  # a file changed within a step of the clock is copied again
    copy.refresh()
    first = copy.path.stat().st_mtime_ns
    copy.refresh()
    assert copy.path.stat().st_mtime_ns == first
    add_stream(location)
    copy.refresh()
    assert copy.path.stat().st_mtime_ns != first


def test_recreated_store_is_copied_again(tmp_path: Path) -> None:
    location = make_store(tmp_path, rows=3)
    assert location.catalog is not None
    folder = tmp_path / "private"
    folder.mkdir()
    copy = CatalogCopy(location.catalog, folder)
    copy.refresh()
    before = copy.path.stat().st_ino
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(location.catalog, other / "catalog.sqlite")
    (other / "catalog.sqlite").replace(location.catalog)
    copy.refresh()
    assert copy.path.stat().st_ino != before
    location.catalog.unlink()
    with pytest.raises(StoreUnavailable, match="no tables yet"):
        copy.refresh()

"""`--store` and `--lake-path` locate a store, and invalid values are errors in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.analytics.storage.location import StoreLocation, locate, without_password


def test_sqlite_is_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = locate("sqlite", Path("data"))
    assert found == StoreLocation(
        catalog=tmp_path / "data" / "catalog.sqlite", tables=str(tmp_path / "data" / "tables")
    )
    assert found.uri == f"ducklake:sqlite:{tmp_path}/data/catalog.sqlite"
    assert found.backup == tmp_path / "data" / "catalog.backup.sqlite"
    assert found.label == f"{tmp_path}/data/catalog.sqlite"


def test_lake_path_sets_the_folder_of_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dsn = "host=db dbname=streamgauge"
    assert locate(f"postgres:{dsn}", Path("data")) == StoreLocation(dsn=dsn)
    assert locate(f"postgres:{dsn}", Path("data"), "files") == StoreLocation(
        dsn=dsn, tables=str(tmp_path / "files")
    )
    assert locate(f"postgres:{dsn}", Path("data"), "s3://bucket/prefix/").tables == "s3://bucket/prefix"


@pytest.mark.parametrize(
    "store", ["", "postgres:", "postgres: ", "duckdb", "oracle", "ducklake:postgres:host=x", "SQLITE"]
)
def test_unknown_store_is_an_error(store: str) -> None:
    with pytest.raises(ValueError, match="--store must be sqlite or postgres:DSN") as refused:
        locate(store, Path("data"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("store", "lake_path"), [("sqlite", "/files"), ("postgres:host=x", "gs://bucket")])
def test_invalid_lake_path_is_an_error(store: str, lake_path: str) -> None:
    with pytest.raises(ValueError, match="--lake-path") as refused:
        locate(store, Path("data"), lake_path)
    assert "\n" not in str(refused.value)


def test_only_the_uri_contains_the_password() -> None:
    found = locate("postgres:postgresql://u:geheim@db/streamgauge", Path("data"))
    assert "geheim" in found.uri
    assert "geheim" not in repr(found) + found.label + found.attach_statement
    assert found.label == "postgres:postgresql://u:…@db/streamgauge"


def test_attach_statement_quotes_the_path() -> None:
    found = locate("sqlite", Path("/it's here"))
    assert found.attach_statement == "ATTACH 'ducklake:sqlite:/it''s here/catalog.sqlite' AS lake (READ_ONLY)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "postgres:host=db password=s3cret dbname=lake",
            "postgres:host=db password=… dbname=lake",
        ),
        (r"host=db PASSWORD = 'two \' words' user=u", "host=db PASSWORD = … user=u"),
        ("postgres:postgresql://u:s3cret@db/lake", "postgres:postgresql://u:…@db/lake"),
        (
            "postgresql://:s3@cret@db:5432/lake?sslmode=require",
            "postgresql://:…@db:5432/lake?sslmode=require",
        ),
        ("postgresql://db/lake?password=s3cret", "postgresql://db/lake?password=…"),
        ("sqlite", "sqlite"),
        ("host=db dbname=lake", "host=db dbname=lake"),
    ],
)
def test_password_is_hidden(text: str, shown: str) -> None:
    assert without_password(text) == shown

"""The stores of former versions in tests/former_stores, as locations."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

from streamgauge.analytics.storage.export import export
from streamgauge.analytics.storage.location import StoreLocation, locate
from tests.former_stores.make import HERE, Figures, figures
from tests.postgres import USER, Postgres, find_binaries

VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))


@functools.cache
def content(version: str, folder: Path) -> Path:
    """The unpacked archive."""
    unpacked = folder / version
    with tarfile.open(HERE / f"{version}.tar.xz") as archive:
        archive.extractall(unpacked, filter="data")
    return unpacked


def sqlite_store(unpacked: Path, target: Path) -> StoreLocation:
    """A copy of the data folder."""
    shutil.copytree(unpacked / "data", target)
    return locate("sqlite", target)


def postgres_store(unpacked: Path, target: Path, postgres: Postgres) -> StoreLocation:
    """A copy in a new database."""
    shutil.copytree(unpacked / "lake", target)
    dsn = postgres.new_database()
    database = dsn.rpartition("=")[2]
    psql = [
        find_binaries() / "psql",
        "-h",
        "127.0.0.1",
        "-p",
        str(postgres.port),
        "-U",
        USER,
        "-q",
        "-d",
        database,
    ]
    with (unpacked / "postgres.sql").open("rb") as file:
        subprocess.run(psql, stdin=file, stdout=subprocess.DEVNULL, check=True, cwd="/")
    postgres.run(
        f"UPDATE ducklake_metadata SET value = '{target}/' WHERE key = 'data_path' AND scope IS NULL",
        database,
    )
    return StoreLocation(dsn=dsn, tables=str(target))


def former_figures(unpacked: Path, location: StoreLocation) -> Figures:
    """The figures of the store as the former version has exported it."""
    found: dict[str, Figures] = json.loads((unpacked / "figures.json").read_text())
    return found["data" if location.catalog is not None else "postgres"]


def figures_of(location: StoreLocation, folder: Path, of: Figures) -> Figures:
    """The same figures of a store of this version."""
    path = folder / "exported.duckdb"
    path.unlink(missing_ok=True)
    export(location, path)
    return figures(path, of)

"""Fixtures that run each test with the catalog in SQLite and in PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.store import Store
from tests.analytics.stores import new_store
from tests.postgres import USER, Postgres

ROOT = Path(__file__).resolve().parents[3]
CATALOGS = ("sqlite", "postgres")
READER = """
import json, sys
from streamgauge.analytics.storage.database import attach, new_database
from streamgauge.analytics.storage.location import StoreLocation

connection = new_database()
attach(connection, StoreLocation(**json.loads(sys.stdin.readline())), read_only=True)
print("ready", flush=True)
for sql in sys.stdin:
    print(json.dumps(connection.execute(json.loads(sql)).fetchall()), flush=True)
"""


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a database with the catalog of an empty store; PostgreSQL copies it in 0.1 s."""
    dsn = postgres.new_database()
    Store(StoreLocation(dsn=dsn, tables=str(tmp_path_factory.mktemp("template")))).close()
    return dsn.rpartition("=")[2]


@pytest.fixture(scope="module")
def make_location(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], StoreLocation]:
    """Creates an empty store with its catalog in `sqlite` or `postgres`."""

    def make(catalog: str) -> StoreLocation:
        folder = tmp_path_factory.mktemp(catalog)
        if catalog == "sqlite":
            new_store(folder).close()
            return locate("sqlite", folder)
        postgres: Postgres = request.getfixturevalue("postgres")
        template = request.getfixturevalue("postgres_template")
        postgres.made += 1
        name = f"copy{postgres.made}"
        postgres.run(f"CREATE DATABASE {name} TEMPLATE {template}", "postgres")
        postgres.run(
            f"UPDATE ducklake_metadata SET value = '{folder}/' WHERE key = 'data_path' AND scope IS NULL",
            name,
        )
        dsn = f"host=127.0.0.1 port={postgres.port} user={USER} dbname={name}"
        return StoreLocation(dsn=dsn, tables=str(folder))

    return make


@pytest.fixture(params=CATALOGS)
def location(request: pytest.FixtureRequest, make_location: Callable[[str], StoreLocation]) -> StoreLocation:
    """An empty store for one test."""
    return make_location(request.param)


@pytest.fixture
def store(location: StoreLocation) -> Iterator[Store]:
    """An open, empty store for one test."""
    store = Store(location)
    yield store
    store.close()


class SecondProcess:
    """Another process that has the store attached for reading."""

    def __init__(self, location: StoreLocation) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._send(json.dumps(asdict(location), default=str))
        assert self._receive() == "ready"

    def ask(self, sql: str) -> Any:
        self._send(json.dumps(sql))
        return json.loads(self._receive())

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _receive(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

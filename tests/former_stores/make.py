"""Make the test data of a release: a small store, with SQLite and PostgreSQL, as this version writes it. Run it before a release:

    .venv/bin/python -m tests.former_stores.make VERSION

It writes `tests/former_stores/VERSION.tar.xz`. Later versions must upgrade it with every row and figure
(tests/analytics/storage/test_former_stores.py). Contents:

- `data/`: a data folder after `demo`, with some streams in the record log that analytics has not read.
- `postgres.sql`, `lake/`: the catalog and the Parquet files of the same log with PostgreSQL.
- `figures.json`: columns, rows and a digest of each table and of `VIEWS`, for `data` and `postgres`.

`--source FOLDER` runs the code of another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx

from tests.deadline import until
from tests.postgres import Postgres, find_binaries

HERE = Path(__file__).parent
VIEWS = ("latency_by_minute", "errors_by_minute", "throughput_by_minute", "sessions", "counters")
SECONDS, RATE, UNREAD = 5, 4, 3
_SIGNED = f"if(u >= {2**63}, u::HUGEINT - {2**64}, u)::BIGINT FOR u IN"
_UNSIGNED = "('0x' || hex(from_base64(h)))::UBIGINT FOR h IN json_extract_string(segments, '$[*][4]')"
REPLACED = {
    "prompt_segments": {
        name: f"json_extract_string(segments, '$[*][{position}]')"
        for position, name in enumerate(("kinds", "names", "messages", "sizes", "", "roles", "marks"))
    }
    | {"hashes": f"[{_SIGNED} [{_UNSIGNED}]]"}
}
"""Table → column of former versions → what has its values now."""
Figures = Mapping[str, Mapping[str, Any]]


def figures(exported: Path, of: Figures | None = None) -> dict[str, dict[str, Any]]:
    """Rows and digest of each table and view of an exported file, over all columns or those in `of`."""
    with duckdb.connect(str(exported), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found: dict[str, list[str]] = {}
        for name, column in connection.execute(
            "SELECT if(schema_name = 'main', '', schema_name || '.') || table_name, column_name FROM duckdb_columns() "
            "WHERE NOT internal AND (table_name IN (SELECT table_name FROM duckdb_tables()) OR table_name IN "
            f"{VIEWS}) ORDER BY ALL"
        ).fetchall():
            found.setdefault(name, []).append(column)
        names = {name: [*one["columns"]] for name, one in of.items()} if of is not None else found
        result = {}
        for name, columns in names.items():
            now = {column: sql for column, sql in REPLACED.get(name, {}).items() if column not in found[name]}
            values = [now.get(column, f'"{column}"') for column in columns]
            texts = ", ".join(f"coalesce(({value})::VARCHAR, chr(0))" for value in values)
            [(rows, digest)] = connection.execute(
                f"SELECT count(*), md5(string_agg(row, chr(10) ORDER BY row)) FROM (SELECT concat_ws('|', {texts}) AS row FROM {name})"
            ).fetchall()
            result[name] = {"columns": columns, "rows": rows, "digest": digest}
        return result


class Version:
    """The command line of one version."""

    def __init__(self, source: Path) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(source)}
        self._source = source

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "streamgauge", *arguments]
        return subprocess.Popen(command, cwd=self._source, env=self._environment)

    def run(self, *arguments: str) -> None:
        if self.start(*arguments).wait():
            raise SystemExit(f"failed: {arguments}")

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Runs until the end of the block, and is stopped there."""
        process = self.start(*arguments)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def make_sqlite(version: Version, folder: Path) -> Path:
    """A data folder with stored and unread streams."""
    data = folder / "data"
    addresses = ["--listen", free_address(), "--admin", free_address(), "--simulator", free_address()]
    version.run(
        "demo", "--no-dashboard", "--seconds", str(SECONDS), "--rate", str(RATE), "--data", str(data), *addresses
    )  # fmt: skip
    shutil.copytree(data / "log", folder / "log")  # without the unread streams
    tap, simulator = free_address(), free_address()
    url = f"http://{tap}/v1/chat/completions"
    with (
        version.running("simulate", "--listen", simulator, "--rate-faults", "0"),
        version.running(
            "tap", "--data", str(data), "--listen", tap, "--admin", free_address(), "--upstream", f"http://{simulator}"
        ),
    ):  # fmt: skip
        body = {"model": "gpt-sim-mini", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
        for _ in range(UNREAD):
            until(lambda: is_answered(url, body), "an answer")
    version.run("export", "--data", str(data), "--duckdb", str(folder / "data.duckdb"))
    for path in [data / "catalog.backup.sqlite", *data.rglob("*.lock"), *data.rglob("*-shm")]:
        path.unlink(missing_ok=True)
    shutil.rmtree(data / "run", ignore_errors=True)
    return data


def is_answered(url: str, body: Mapping[str, Any]) -> bool:
    try:
        return httpx.post(url, json=body, timeout=30, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def make_postgres(version: Version, folder: Path) -> None:
    """A catalog and Parquet files of the log with PostgreSQL."""
    postgres, data, lake = Postgres(), folder / "postgres", folder / "lake"
    postgres.start()
    try:
        dsn = postgres.new_database()
        store = ["--store", f"postgres:{dsn}", "--data", str(data)]
        shutil.copytree(folder / "log", data / "log")
        shutil.rmtree(data / "log" / "readers")
        with version.running("analyze", *store, "--lake-path", str(lake)):
            until(lambda: is_read(postgres, dsn), "the end of the log")
        version.run("export", *store, "--duckdb", str(folder / "postgres.duckdb"))
        dump = [
            find_binaries() / "pg_dump", "-h", "127.0.0.1", "-p", str(postgres.port), "-U", "streamgauge", "--no-owner",
            dsn.rpartition("=")[2],
        ]  # fmt: skip
        with (folder / "postgres.sql").open("wb") as file:
            subprocess.run(dump, stdout=file, check=True, cwd="/")
    finally:
        postgres.stop()


def is_read(postgres: Postgres, dsn: str) -> bool:
    """Whether the last heartbeat of the tap is stored."""
    database = dsn.rpartition("=")[2]
    inlined = (
        "SELECT i.table_name FROM ducklake_inlined_data_tables AS i JOIN ducklake_table AS t USING (table_id) "
        "WHERE t.table_name = 'taps'"
    )
    try:
        return (
            postgres.run(f"SELECT bool_and(stopped) FROM {postgres.run(inlined, database)}", database) == "t"
        )
    except subprocess.CalledProcessError:  # it has no tables yet
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--source", type=Path, default=HERE.parents[1])
    given = parser.parse_args(arguments)
    version = Version(given.source.absolute())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sqlite(version, folder)
        make_postgres(version, folder)
        found = {name: figures(folder / f"{name}.duckdb") for name in ("data", "postgres")}
        (folder / "figures.json").write_text(json.dumps(found))
        target = HERE / f"{given.version}.tar.xz"
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for member in ("data", "postgres.sql", "lake", "figures.json"):
                archive.add(folder / member, member)
    print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()

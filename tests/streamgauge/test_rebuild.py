"""`streamgauge rebuild` restores a missing or damaged catalog from its backup or from the Parquet files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
from streamgauge.commands.sql import sql_command
from streamgauge.commands.store_commands import rebuild_command
from tests.streamgauge.stored import analyse, write_streams

STREAMS = 20
TOTALS = "SELECT count(*) AS streams, sum(event_count)::BIGINT AS events, count(DISTINCT request_id) AS ids FROM streams"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose rows are all in Parquet files, with a backup of the catalog."""
    data = tmp_path_factory.mktemp("original")
    write_streams(data, range(STREAMS))
    analyse(data, flush=True, back_up=True)
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    """A copy of the original data folder without its catalog."""
    data = tmp_path / "data"
    shutil.copytree(original, data)
    for file in data.glob("catalog.sqlite*"):
        file.unlink()
    return data


def rebuild(data: Path, *argv: str) -> Result:
    return CliRunner().invoke(rebuild_command, ["--data", str(data), *argv])


def rebuild_with_code(data: Path, *argv: str) -> tuple[int, str]:
    """The exit code of the command, and its output."""
    done = CliRunner().invoke(rebuild_command, ["--data", str(data), *argv], standalone_mode=False)
    return done.return_value, done.output


def rows(data: Path, query: str = TOTALS) -> list[dict[str, int]]:
    done = CliRunner().invoke(sql_command, [query, "--data", str(data), "--format", "json"])
    assert done.exit_code == 0, done.output
    found: list[dict[str, int]] = json.loads(done.output)
    return found


def test_backup_restores_every_row_and_position(data: Path, original: Path) -> None:
    done = rebuild(data)
    assert done.exit_code == 0, done.output
    assert "from the last backup" in done.output
    assert "kept" not in done.output
    positions = "SELECT log_id, partition, high, low FROM log_positions"
    for query in (
        TOTALS,
        positions,
        "FROM counters ORDER BY name",
        "SELECT count(*) AS n FROM latency_by_minute",
    ):
        assert rows(data, query) == rows(original, query)


def test_analytics_continues_after_a_restored_backup_without_duplicates(data: Path) -> None:
    assert rebuild(data).exit_code == 0
    write_streams(data, range(STREAMS, STREAMS + 3))
    analyse(data)
    assert rows(data)[0]["streams"] == STREAMS + 3


def test_parquet_files_alone_restore_every_row(data: Path, original: Path) -> None:
    code, output = rebuild_with_code(data, "--from-files")
    assert code == 0
    assert "from the Parquet files" in output
    counts = (
        "SELECT (SELECT count(*) FROM streams) AS streams, (SELECT count(*) FROM events) AS events, "
        "(SELECT sum(streams) FROM stream_minutes)::BIGINT AS rolled"
    )
    assert rows(data, counts) == rows(original, counts)


def test_damaged_backup_is_not_used_and_the_number_of_missing_rows_is_unknown(data: Path) -> None:
    (data / "catalog.backup.sqlite").write_bytes(os.urandom(50_000))
    code, output = rebuild_with_code(data)
    assert code == 1
    assert "from the Parquet files" in output
    assert "Their number is unknown" in output
    assert rows(data)[0]["streams"] == STREAMS


def test_damaged_catalog_is_kept(data: Path) -> None:
    damage = os.urandom(50_000)
    (data / "catalog.sqlite").write_bytes(damage)
    done = rebuild(data)
    assert done.exit_code == 0
    [kept] = data.glob("catalog.damaged*")
    assert str(kept) in done.output
    assert kept.read_bytes() == damage
    assert rows(data)[0]["streams"] == STREAMS


def test_rows_of_missing_files_are_counted_in_the_exit_code(data: Path, original: Path) -> None:
    shutil.copy(original / "catalog.sqlite", data)
    for file in data.glob("tables/main/streams/*.parquet"):
        file.unlink()
    code, output = rebuild_with_code(data, "--from-files")
    assert code == 1
    assert f"{STREAMS} rows could not be restored" in output


def test_rebuild_is_an_error_while_analytics_runs(data: Path) -> None:
    with lock_data_folder(data):
        done = rebuild(data)
    assert isinstance(done.exception, OSError)
    assert "cannot lock the data folder" in str(done.exception)
    assert not (data / "catalog.sqlite").exists()


def test_folder_without_backup_and_files_is_an_error(tmp_path: Path) -> None:
    done = rebuild(tmp_path / "none")
    assert done.exit_code == click.ClickException.exit_code
    assert "no backup and no Parquet file" in done.output
    assert not (tmp_path / "none").exists()

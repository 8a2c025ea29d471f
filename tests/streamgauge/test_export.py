"""`streamgauge export` writes one DuckDB file with tables, views and comments."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import duckdb
import pytest
from click.testing import CliRunner, Result

from streamgauge.commands.store_commands import export_command, instant
from tests.analytics.log_entries import T0_WALL_NS
from tests.streamgauge.stored import analyse, write_streams

STREAMS = 5
START = datetime.fromtimestamp(T0_WALL_NS / 1e9, UTC)
"""Start of stream 0; each next stream starts a millisecond later."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    write_streams(data, range(STREAMS))
    analyse(data)
    return data


def export(data: Path, file: Path, *argv: str) -> Result:
    return CliRunner().invoke(export_command, ["--data", str(data), "--duckdb", str(file), *argv])


def test_duckdb_opens_exported_tables_views_and_comments(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.duckdb"
    done = export(data, file)
    assert done.exit_code == 0, done.output
    assert f"{STREAMS} streams" in done.output
    with duckdb.connect(str(file), read_only=True) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT stream_id) FROM streams").fetchall() == [
            (STREAMS, STREAMS)
        ]
        assert connection.execute(
            "SELECT count(*) = (SELECT sum(event_count) FROM streams) FROM events"
        ).fetchall() == [(True,)]
        views = [
            name
            for (name,) in connection.execute(
                "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
            ).fetchall()
        ]
        assert {"latency_by_minute", "errors_by_minute", "throughput_by_minute", "slow_streams"} <= set(views)
        for view in views:
            connection.execute(f"SELECT count(*) FROM (FROM {view})").fetchall()
        assert connection.execute("SELECT sum(streams) FROM latency_by_minute").fetchone() == (STREAMS,)
        (comment,) = connection.execute(
            "SELECT comment FROM duckdb_columns() WHERE table_name = 'streams' AND column_name = 'ttft_ns'"
        ).fetchall()
        assert comment[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["export.duckdb"]


def test_time_range_selects_streams_by_start_with_their_events(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.duckdb"
    since, until = (START.replace(microsecond=ms * 1000).isoformat() for ms in (1, 3))
    done = export(data, file, "--since", since, "--until", until)
    assert done.exit_code == 0, done.output
    with duckdb.connect(str(file), read_only=True) as connection:
        found = connection.execute("SELECT microsecond(started_at) FROM streams ORDER BY 1").fetchall()
        assert [at % 1_000_000 for (at,) in found] == [1000, 2000]
        assert connection.execute(
            "SELECT count(*) FROM events WHERE stream_id NOT IN (SELECT stream_id FROM streams)"
        ).fetchone() == (0,)
        assert connection.execute("SELECT count(DISTINCT stream_id) FROM events").fetchone() == (2,)


def test_existing_file_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.duckdb"
    file.write_text("mine")
    done = export(data, file)
    assert isinstance(done.exception, OSError)
    assert "the file exists" in str(done.exception)
    assert file.read_text() == "mine"


def test_missing_store_and_missing_folder_are_one_line(data: Path, tmp_path: Path) -> None:
    for folder, file in ((tmp_path / "none", tmp_path / "x.duckdb"), (data, tmp_path / "none" / "x.duckdb")):
        done = export(folder, file)
        assert isinstance(done.exception, OSError)
        assert "\n" not in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_duration_counts_back_from_now_and_times_are_utc() -> None:
    assert instant(None) is None
    age = instant("1h")
    assert age is not None
    assert abs(datetime.now(UTC) - timedelta(hours=1) - age) < timedelta(minutes=1)
    assert instant("2026-11-22T07:00:00") == datetime(2026, 11, 22, 7, tzinfo=UTC)
    assert instant("2026-11-22T07:00:00+02:00") == datetime(2026, 11, 22, 5, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match="neither a duration"):
        instant("tomorrow")


def trace(data: Path, form: str, path: Path, *argv: str) -> Result:
    return CliRunner().invoke(export_command, ["--data", str(data), "--trace", form, str(path), *argv])


def test_trace_is_a_private_file_with_its_block_size_beside_it(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "day.jsonl"
    done = trace(data, "mooncake", file, "--block-size", "128")
    assert (done.exit_code, done.output) == (0, f"{file}: {STREAMS} requests in blocks of 128 tokens\n")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == [*range(STREAMS)]
    about = json.loads((tmp_path / "day.jsonl.about.json").read_text())
    # The requests have no messages.
    assert (about["format"], about["block_size"], about["without_prompt"]) == ("mooncake", 128, STREAMS)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_trace_has_the_requests_of_the_range(data: Path, tmp_path: Path) -> None:
    since = (START + timedelta(milliseconds=2)).isoformat()
    until = (START + timedelta(milliseconds=4)).isoformat()
    done = trace(data, "mooncake", tmp_path / "t", "--since", since, "--until", until)
    assert "2 requests" in done.output


def test_requests_without_a_session_are_not_in_a_weka_trace(data: Path, tmp_path: Path) -> None:
    assert trace(data, "weka", tmp_path / "t", "--format", "json").exit_code == 0
    about = json.loads((tmp_path / "t.about.json").read_text())
    assert (about["requests"], about["without_session"], about["block_size"]) == (0, STREAMS, 64)
    assert [*(tmp_path / "t").iterdir()] == []


def test_trace_replaces_no_file_and_is_no_part_of_a_database(data: Path, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("mine")
    done = trace(data, "mooncake", tmp_path / "t")
    assert isinstance(done.exception, OSError)
    assert "it exists. Choose another name" in str(done.exception)
    assert (tmp_path / "t").read_text() == "mine"
    for argv in (["--duckdb", "x", "--trace", "weka", "y"], []):
        done = CliRunner().invoke(export_command, ["--data", str(data), *argv])
        assert "Pass either --duckdb or --trace." in done.output

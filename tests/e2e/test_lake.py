"""A store in PostgreSQL and S3 end to end: tap, ship, real Kafka, analytics and all readers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import httpx
import pytest

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.storage.store import INLINED_ROWS
from tests.dashboard.app_test import VIEWS, metric_value, open_page
from tests.deadline import DEADLINE_S
from tests.e2e.running import Up, simulator, up
from tests.e2e.test_both_logs import traffic
from tests.postgres import Postgres
from tests.s3 import s3_server

LONG = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "x"}]}
MANY_EVENTS = {
    "x-request-id": "many-events",
    "x-simulate": json.dumps({"ttft_ms": 1, "gap_ms": 0, "tokens": 4 * INLINED_ROWS, "fault": "none"}),
}
"""More events than a commit inlines in the catalog."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> str:
    return f"postgres:{postgres.new_database()}"


@pytest.fixture(scope="module")
def filled(
    kafka_broker: str, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Up, int]]:
    """A running `up` whose analytics writes to S3, and its number of requests."""
    folder = tmp_path_factory.mktemp("lake")
    with pytest.MonkeyPatch.context() as patch, s3_server(folder) as s3:
        for name, value in {**s3.environment, "STREAMGAUGE_STORE": store}.items():
            patch.setenv(name, value)
        patch.setenv("STREAMGAUGE_KAFKA", kafka_broker)
        patch.setenv("STREAMGAUGE_KAFKA_TOPIC", f"lake-{folder.name}")
        patch.setenv("STREAMGAUGE_LAKE_PATH", f"{s3.bucket('bucket')}/streams")
        with (
            simulator("--seed", "11") as upstream,
            up(f"sim={upstream}", folder / "data") as running,
        ):
            count = traffic(running.tap) + 1
            httpx.post(
                f"{running.tap}/v1/chat/completions", json=LONG, headers=MANY_EVENTS, timeout=DEADLINE_S
            )
            running.rows(count)
            yield running, count
        assert running.process.returncode == 0, running.log.read_text()
        assert any(key.startswith("streams/main/events/") for key in s3.objects("bucket"))


def streamgauge(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command that gets the store from the environment only."""
    return subprocess.run(
        [sys.executable, "-m", "streamgauge", *argv],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_status_reconciles(filled: tuple[Up, int]) -> None:
    running, count = filled
    done = streamgauge("status", "--data", str(running.data), "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["captured"], said["stored"], said["in_flight"], said["lost"]) == (count, count, 0, 0)
    assert said["unknown"] == []


def test_sql_reads_the_lake_from_any_folder(filled: tuple[Up, int], tmp_path: Path) -> None:
    _, count = filled
    question = "SELECT count(*) AS n, sum(event_count)::BIGINT AS events, count(DISTINCT request_id) AS ids FROM streams"
    done = streamgauge("sql", "--data", str(tmp_path / "none"), "--format", "json", question)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["n"] == row["ids"] == count
    done = streamgauge("sql", "--format", "json", "SELECT count(*) AS n FROM events")
    assert json.loads(done.stdout) == [{"n": row["events"]}]
    done = streamgauge("sql", "DROP TABLE streams")
    assert done.returncode != 0


def test_status_names_the_store_without_its_password(filled: tuple[Up, int]) -> None:
    running, _ = filled
    done = streamgauge("status", "--data", str(running.data))
    assert "ATTACH 'ducklake:postgres:host=127.0.0.1 " in done.stdout


def test_export_reads_postgresql_and_s3(filled: tuple[Up, int], tmp_path: Path) -> None:
    _, count = filled
    done = streamgauge("export", "--duckdb", str(tmp_path / "export.duckdb"))
    assert done.returncode == 0, done.stderr
    with duckdb.connect(str(tmp_path / "export.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM streams").fetchone() == (count,)


@pytest.mark.parametrize("view", VIEWS)
def test_the_dashboard_shows_the_lake(
    view: str, filled: tuple[Up, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, count = filled
    app = open_page(running.data, monkeypatch, view, range="24h", refresh="off")
    assert not app.exception
    assert not app.error
    if view == "overview":
        assert metric_value(app, "Requests") == str(count)
    if view == "streams":
        assert len(app.dataframe[0].value) == count
    if view == "stream":
        (row,) = running.sql(
            "SELECT stream_id, ttft_ns FROM streams WHERE outcome = 'ok' ORDER BY started_at DESC LIMIT 1"
        )
        app = open_page(running.data, monkeypatch, view, id=row["stream_id"])
        assert not app.exception
        assert metric_value(app, "TTFT") == formatting.duration(row["ttft_ns"])

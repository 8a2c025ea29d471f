"""Streams beside 200 connections with short requests: every chunk is recorded or counted as lost, and the counters reconcile."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.tap.measure import Load, measure
from bench.tap.servers import Target, compile_c, mock_upstream
from streamgauge.analytics.query.query_errors import QueryTimeout
from streamgauge.commands.status import pipeline_status
from streamgauge.settings.model import Settings
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, up

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

STREAMS, CONNECTIONS = 50, 200
EVENT_BYTES = 220
LONGER_S = 2.0
"""By which the short requests outlast the streams, which are opened within a second."""
STORED_WITHIN_S = 600.0
"""The tap forwards more short requests than analytics stores at the same time: after a minute, the rest takes three more."""
Run = dict[str, float]


@contextmanager
def loaded(folder: Path, short: Load, seconds: float) -> Iterator[tuple[Up, Future[Run], Future[Run]]]:
    """A pipeline under load, and the results of the streams and of the short requests."""
    compile_c(folder)
    with (
        mock_upstream(folder) as upstream,
        up(f"bench=http://127.0.0.1:{upstream}", folder / "data") as running,
        ThreadPoolExecutor() as pool,
    ):
        target = Target("tap", int(running.tap.rpartition(":")[2]), [])
        streams = pool.submit(measure, folder, target, Load("paced", STREAMS, 50_000), seconds)
        yield running, streams, pool.submit(measure, folder, target, short, seconds + LONGER_S)


def status_of(data: Path) -> dict[str, Any] | None:
    """None if the machine was too busy for an answer in time."""
    with suppress(QueryTimeout):
        return pipeline_status(Settings(data=data))
    return None


@pytest.mark.parametrize(
    "seconds", [1.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(STORED_WITHIN_S + 200)])]
)
def test_every_chunk_beside_short_requests_at_full_speed_is_recorded_or_counted_as_lost(
    seconds: float, tmp_path: Path
) -> None:
    with loaded(tmp_path, Load("short", CONNECTIONS), seconds) as (running, streams, short):
        read_bytes = streams.result()["forwarded_bytes"]
        assert streams.result()["errors"] == short.result()["errors"] == 0
        with urllib.request.urlopen(f"{running.admin}/ledger") as response:
            opened = json.load(response)["streams_opened"]
        counted = "SELECT count(*) AS n FROM streams"
        until(
            lambda: running.sql(counted)[0]["n"] >= opened, f"the rows of {opened} requests", STORED_WITHIN_S
        )
        status = until(lambda: status_of(running.data), "a status in time")
        (found,) = running.sql(
            "SELECT count(*) AS streams, sum(event_count) AS events, sum(lost_bytes) AS lost_bytes FROM streams WHERE streamed"
        )
    assert status["reconciles"], json.dumps(status, indent=1)
    assert status["captured"] == opened > short.result()["requests"] > CONNECTIONS
    assert found["streams"] == STREAMS
    assert found["events"] * EVENT_BYTES + found["lost_bytes"] == read_bytes > STREAMS * EVENT_BYTES


@pytest.mark.slow
def test_rows_appear_within_two_seconds_beside_2000_short_requests_per_second(tmp_path: Path) -> None:
    waits_s: list[float] = []
    with loaded(tmp_path, Load("short", CONNECTIONS, 100_000), 60.0) as (running, streams, _):
        while not streams.done():
            name = f"probe-{len(waits_s)}"
            request = urllib.request.Request(f"{running.tap}/short", headers={"x-request-id": name})
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                response.read()
            ended_s = time.monotonic()
            row = f"FROM streams WHERE request_id = '{name}'"
            until(lambda row=row: running.sql(row) or None, f"the row of {name}")
            waits_s.append(time.monotonic() - ended_s)
    assert max(waits_s) < 2.0, sorted(waits_s)[-5:]

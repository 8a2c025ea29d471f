"""Analytics that is killed repeatedly stores the same rows as an undisturbed run, and they match the simulator's ledger."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.simulator.ledger import RemoteLedger
from streamgauge.simulator.measurement_check import check_measurements, streams_since
from tests.analytics.stores import place_empty_catalog
from tests.chaos.rig import BOUNDS, LONG_AGO, traffic_of
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import answers, simulator
from tests.ports import free_ports
from tests.tables import tables

TABLES = ("streams", "events", "usage_reports", "server_stats", "spans", "losses", "dead_letters")


@contextmanager
def part(log: Path, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """One part of Streamgauge, killed at the end if it still runs."""
    with log.open("ab") as sink:
        process = subprocess.Popen([sys.executable, "-m", "streamgauge", *argv], stderr=sink, stdout=sink)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until_ready(tap: subprocess.Popen[bytes], log: Path, admin: int) -> None:
    """Wait until the tap answers on its admin port. A tap that has ended fails with its log."""

    def ready() -> bool | None:
        assert tap.poll() is None, log.read_text()[-3000:]
        return answers(f"http://127.0.0.1:{admin}/readyz")

    until(ready, "the tap", DEADLINE_S)


@contextmanager
def analytics(data: Path, *, ready: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Run analytics on the embedded log. `ready`: wait until it answers."""
    log = data.parent / "analyze.log"
    with part(log, "analyze", "--data", str(data), "--metrics", "") as process:

        def answering() -> bool:
            found = read_ready_file(data / "run" / "analyze.json")
            assert process.poll() is None, log.read_text()[-3000:]
            return found is not None and found["pid"] == process.pid

        if ready:
            until(answering, "analytics", DEADLINE_S)
        yield process


def read_to_the_end(data: Path, log: EmbeddedReader) -> bool:
    try:
        found = tables(data).query("SELECT partition, high, len(open_stream_ids) AS open FROM log_positions")
    except QueryError:
        return False
    high = {row["partition"]: (row["high"], row["open"]) for row in found.to_dicts()}
    return all(high.get(p) == (log.end(p), 0) for p in log.partitions())


def tables_of(data: Path) -> dict[str, pl.DataFrame]:
    """All rows, without fingerprints, for which each store has its own key, and without what a restart forgets with the text."""
    columns = {"streams": "* EXCLUDE (output_fingerprint, tool_fingerprint, malformed_tool_call_count)"}
    return {
        name: tables(data).query(
            f"SELECT {columns.get(name, '*')} FROM {name} ORDER BY ALL", max_rows=10**6, timeout_s=60
        )
        for name in TABLES
    }


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_kills_of_analytics_under_load_leave_the_rows_of_an_undisturbed_run(
    tmp_path: Path, rounds: int
) -> None:
    data, again = tmp_path / "a" / "data", tmp_path / "b" / "data"
    place_empty_catalog(data)
    (data / "log").mkdir()
    port, admin = free_ports(2)
    rng = random.Random(rounds)
    with (
        simulator("--seed", "rounds", "--time-scale", "0.3", "--ledger-rows", "100000") as upstream,
        EmbeddedReader(data / "log", "keeper") as keeper,  # keeps the log from deleting segments
    ):
        with part(
            tmp_path / "tap.log", "tap", "--data", str(data), "--upstream", f"sim={upstream}",
            "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--drain-timeout", "60",
        ) as tap:  # fmt: skip
            url = f"http://127.0.0.1:{port}"
            until_ready(tap, tmp_path / "tap.log", admin)
            with traffic_of(url, rate_per_s=15) as (traffic, stop):
                for number in range(rounds):
                    # One in four is killed while it starts and replays, the others later, at a random time.
                    with analytics(data, ready=number % 4 != 1) as process:
                        goal = traffic.sent + rng.randrange(2, 30)
                        until(lambda goal=goal: traffic.sent >= goal, "traffic", DEADLINE_S)  # type: ignore[misc]
                        process.kill()
                        process.wait()
                stop()
            tap.send_signal(signal.SIGTERM)
            assert tap.wait(DEADLINE_S) == 0
        with analytics(data):
            until(lambda: read_to_the_end(data, keeper), "the killed run", DEADLINE_S)
            killed = tables_of(data)
            ledger = RemoteLedger(upstream)
            ledger.refresh()
            found = check_measurements(
                ledger.rows(),
                streams_since(tables(data), LONG_AGO),
                clients=traffic.rows.values(),
                bounds=BOUNDS,
            )
    place_empty_catalog(again)
    shutil.copy(data / "client.key", again)  # session ids are hashed with it
    shutil.copytree(data / "log", again / "log", ignore=shutil.ignore_patterns("readers", "lock"))
    with EmbeddedReader(again / "log", "keeper") as keeper, analytics(again):
        until(lambda: read_to_the_end(again, keeper), "the undisturbed run", DEADLINE_S)
        undisturbed = tables_of(again)
    assert not found, "\n".join(map(str, found[:20]))
    assert killed["streams"].height > traffic.sent // 2
    assert killed["streams"]["stream_id"].n_unique() == killed["streams"].height
    assert killed["losses"].is_empty()
    for name in TABLES:
        differing = [c for c in undisturbed[name].columns if not killed[name][c].equals(undisturbed[name][c])]
        assert not differing, f"{name} differs in {differing}"

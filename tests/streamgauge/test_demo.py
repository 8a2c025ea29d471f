"""The demo exits with 0 only if all measured values agree with the simulation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamgauge.analytics.diagnosis.report import Report, as_json, read_report
from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.outcomes import OK
from streamgauge.commands import demo_run
from streamgauge.commands.demo import demo_command
from streamgauge.commands.demo_run import CLIENT_NAMES, Demo, DemoOptions
from streamgauge.simulator.incidents import INCIDENTS
from streamgauge.simulator.ledger import RemoteLedger
from streamgauge.simulator.traffic import Traffic, TrafficOptions
from tests.deadline import DEADLINE_S, until
from tests.streamgauge.simulator.test_measurement_check import measured, simulated
from tests.tables import tables

LATE_MS = 100
"""How much later than the simulator the tap may measure a median, on a busy machine."""
ANY_PORTS = [
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--simulator",
    "127.0.0.1:0",
]


def test_demo_with_seconds_ends_with_a_table_and_a_comparison(tmp_path: Path) -> None:
    arguments = ["--seconds", "3", "--rate", "20", "--rate-faults", "0.3", "--seed", "test", "--no-dashboard"]
    arguments += ["--time-scale", "0.4"]
    data = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-m", "streamgauge", "demo", *arguments, *ANY_PORTS, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every stream was measured exactly once, with the simulated values." in done.stdout
    assert "TTFT p50 ms" in done.stdout
    for part in ("tap", "analyze", "simulator", "up"):
        assert not (data / "run" / f"{part}.json").exists()


PROMISED = {
    "sessions of agents": "SELECT count(DISTINCT client_app) >= 3 FROM streams WHERE turn IS NOT NULL",
    "subagents": "SELECT count(*) > 0 FROM sessions WHERE parent_session_id IS NOT NULL",
    "tools": "SELECT count(*) > 0 FROM sessions WHERE tool_ns > 0",
    "teams": "SELECT count(DISTINCT labels['team']) = 5 FROM streams",
    "names of clients": "SELECT count(*) = 6 FROM clients",
    "prices": f"SELECT count(*) > 100 AND count(*) FILTER (total IS NULL) = 0 FROM spend WHERE outcome = '{OK}'",
    "budgets": "SELECT count(*) = 3 AND min(spent) > 0 FROM budget_spend",
    "rate limits of two vendors": """
        SELECT min(response_headers) LIKE '%ratelimit%' AND count(*) = 2 FROM (
            SELECT dialect, min(response_headers) AS response_headers FROM streams
            WHERE request_model IN ('claude-sim-large', 'gpt-sim-mini') AND http_status = 200 GROUP BY 1)""",
    "cached prompts": "SELECT sum(cached_input_tokens) > 0 FROM streams",
    "hops": "SELECT count(*) > 3 AND bool_and(outer_gateway = 'router' AND inner_gateway = 'sim') FROM hops",
    "answers on WebSockets": "SELECT count(*) > 0 FROM streams WHERE response_index > 0",
}
"""What each page needs → SQL that it is there."""


def test_demo_has_something_for_each_page_and_ctrl_c_compares(tmp_path: Path) -> None:
    data = tmp_path / "data"
    arguments = [
        "--rate",
        "20",
        "--time-scale",
        "0.1",
        "--incident",
        "none",
        "--seed",
        "pages",
        "--no-dashboard",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "streamgauge", "demo", *arguments, *ANY_PORTS, "--data", str(data)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
    )  # fmt: skip
    missing = dict(PROMISED)

    def is_there() -> bool:
        assert process.poll() is None, "the demo ended"
        with suppress(QueryError):
            for name, sql in tuple(missing.items()):
                if not tables(data).query(sql).row(0)[0]:
                    return False
                del missing[name]
        return not missing

    try:
        until(is_there, "what the demo promises")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
    assert "Every stream was measured exactly once, with the simulated values." in output
    assert process.returncode == 0
    for model in ("gpt-sim-realtime", "gpt-sim-responses"):
        (line,) = [line.split() for line in output.splitlines() if line.startswith(model)]
        assert abs(int(line[4]) - int(line[5])) <= LATE_MS, line
    assert (
        tables(data).query("SELECT count(*) FROM alerts WHERE rule IN ('burn_rate', 'budget')").row(0)[0] == 0
    )


def test_only_the_newest_responses_are_compared_if_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def prepare(ledger: RemoteLedger) -> None:
        ledger.forgotten = 7

    last_answer = simulated(0, request_id="socket", response_index=1, status=101)
    rows = [last_answer, *(simulated(i) for i in range(1, 4))]
    first_answer = measured(simulated(8, request_id="socket", response_index=0, status=101), response_index=0)
    streams = [measured(simulated(9)), first_answer, *map(measured, rows)]
    code, output = compare(monkeypatch, tmp_path, streams, rows, prepare)
    assert code == 0, output
    assert "Compared are the last 3 responses." in output
    streams[-1]["output_tokens"] += 1
    assert compare(monkeypatch, tmp_path, streams, rows, prepare)[0] == 1
    assert compare(monkeypatch, tmp_path, streams[:-1], rows, prepare)[0] == 1


OPTIONS = DemoOptions(
    listen="127.0.0.1:0", admin="127.0.0.1:0", dashboard_listen="127.0.0.1:0", no_dashboard=True, simulator=None, data=None, seconds=1,
    seed=None, rate_per_s=6.0, concurrency=64, agents=0, rate_faults=0.03, incident="none", incident_after_s=90, incident_length_s=90,
    time_scale=1.0, up_flags=(),
)  # fmt: skip


def compare(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    streams: list[dict[str, Any]],
    rows: list[Any],
    prepare: Callable[[RemoteLedger], None] = lambda _: None,
) -> tuple[int, str]:
    """Exit code and output of the comparison."""

    class NoTables:
        def __init__(self, location: object, *, untrusted: bool) -> None: ...
        def close(self) -> None: ...

    ledger = RemoteLedger("http://127.0.0.1:1")
    monkeypatch.setattr(ledger, "rows", lambda: rows)
    prepare(ledger)
    monkeypatch.setattr(demo_run, "QueryPool", NoTables)
    output: list[str] = []
    demo = Demo(OPTIONS, write=output.append)

    async def stored_streams(*args: object) -> list[dict[str, Any]]:
        return streams

    monkeypatch.setattr(demo, "_stored_streams", stored_streams)
    traffic = [Traffic(TrafficOptions(base_url="http://127.0.0.1:1"))]
    code = asyncio.run(demo._compare(traffic, ledger, tmp_path, datetime.now(UTC)))
    return code, "\n".join(output)


def test_one_wrong_value_fails_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [simulated(i) for i in range(3)]
    streams = [measured(row) for row in rows]
    assert compare(monkeypatch, tmp_path, streams, rows)[0] == 0
    streams[1]["output_tokens"] += 1
    code, output = compare(monkeypatch, tmp_path, streams, rows)
    assert code == 1
    assert "r1: output_tokens: simulated 10, measured 11" in output
    assert "1 value differs from the simulation" in output


@pytest.mark.parametrize("flag", ["--listen", "--admin", "--dashboard-listen"])
def test_port_in_use_is_reported_before_any_process_starts(tmp_path: Path, flag: str) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        value = f"127.0.0.1:{port}"
        data = tmp_path / "data"
        arguments = [*ANY_PORTS, "--dashboard-listen", "127.0.0.1:0", "--data", str(data), flag, value]
        result = CliRunner().invoke(demo_command, arguments)
    assert isinstance(result.exception, OSError)
    assert flag in str(result.exception)
    assert str(port) in str(result.exception)
    assert not data.exists()


def diagnosed(tables: QueryPool, since: datetime, until: datetime | None = None) -> Report:
    return read_report(tables.query, Selection(since=since, until=until or datetime.now(UTC)))


@pytest.mark.parametrize(
    "kind",
    [
        "rate-limited",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in INCIDENTS
            if kind not in ("rate-limited", "limit-nears")
        ),
    ],
)
def test_diagnosis_names_the_incident_that_the_terminal_announces_and_the_end_leaves_nothing(
    tmp_path: Path, kind: str
) -> None:
    began = datetime.now(UTC)
    arguments = ["--no-dashboard", *ANY_PORTS, "--rate", "20", "--time-scale", "0.3"]
    arguments += ["--incident", kind, "--incident-after", "12s", "--incident-length", "600s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "streamgauge", "demo", "--seed", "staged", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ, TMPDIR=str(tmp_path)),
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        while "begins" not in (line := process.stdout.readline()):
            assert line, "the demo exited before the incident"
        onset = datetime.combine(began.astimezone(), clock.fromisoformat(line.split()[0])).astimezone()
        (data,) = tmp_path.glob("streamgauge-demo-*")
        pids = [json.loads(path.read_bytes())["pid"] for path in (data / "run").glob("*.json")]
        assert len(pids) >= 4
        incident = INCIDENTS[kind]
        place = {incident.dimension: CLIENT_NAMES.get(incident.value, incident.value)}
        assert f"incident {kind} begins: {' '.join(*place.items())}: {incident.text}" in line
        before = diagnosed(tables(data), began, onset).diagnosis
        assert before.state == "healthy", before
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            report = diagnosed(tables(data), began)
            causes = as_json(report)["causes"]
            if causes and causes[0]["where"] == place:
                break
            assert time.monotonic() < deadline_s, causes
            time.sleep(0.5)
        found = report.diagnosis.causes[0].onset
        assert found is not None
        assert abs(found - onset) < timedelta(seconds=10)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
    assert not list(tmp_path.glob("streamgauge-demo-*"))
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_unwritable_data_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = [*ANY_PORTS, "--no-dashboard", "--data", str(tmp_path / "file" / "data")]
    result = CliRunner().invoke(demo_command, arguments)
    assert isinstance(result.exception, OSError)
    assert "Choose another with --data" in str(result.exception)

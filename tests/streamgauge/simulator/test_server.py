"""Routes, rejected requests, start and stop of the simulator."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from streamgauge.simulator.ledger import RemoteLedger, decode_lines
from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.deadline import DEADLINE_S
from tests.streamgauge.simulator.conftest import Script, ended
from tests.streamgauge.simulator.simulator_thread import simulator_thread


def test_ledger_over_http_equals_the_ledger(
    simulator: Simulator, client: httpx.Client, script: Script
) -> None:
    script()
    response = client.get("/simulator/ledger")
    assert decode_lines(response.content) == list(simulator.ledger.rows())
    assert response.headers["x-simulator-dropped"] == "0"


def test_remote_ledger_fetches_new_rows(simulator: Simulator, script: Script) -> None:
    remote = RemoteLedger(simulator.url)
    script()
    remote.refresh()
    before = len(remote.rows())
    script()
    script()
    remote.refresh()
    assert len(remote.rows()) == before + 2
    assert remote.rows() == list(simulator.ledger.rows())
    assert (remote.dropped, remote.open_rows) == (0, 0)


def test_status_counts_requests(client: httpx.Client, script: Script) -> None:
    before = client.get("/simulator/status").json()["requests"]
    script()
    after = client.get("/simulator/status").json()
    assert (after["requests"], after["open"], after["refused"]) == (before + 1, 0, 0)


@pytest.mark.parametrize(
    ("path", "content", "headers", "status"),
    [
        ("/v1/chat/completions", b"{", {}, 400),
        ("/v1/chat/completions", b"[]", {}, 400),
        ("/v1/messages", b"{}", {"x-simulate": "nonsense"}, 400),
        ("/v1/messages", b"{}", {"x-simulate": '{"speaker":"nobody"}'}, 400),
        ("/v1/embeddings", b"{}", {}, 404),
    ],
)
def test_invalid_requests_get_an_error_and_a_ledger_row(
    simulator: Simulator,
    client: httpx.Client,
    path: str,
    content: bytes,
    headers: dict[str, str],
    status: int,
) -> None:
    response = client.post(path, content=content, headers=headers)
    assert response.status_code == status
    assert "error" in response.json()
    row = ended(simulator, response.headers["x-request-id"])
    assert (row.status, row.expected_outcome, row.end_ns is not None) == (status, "http_error", True)


def test_bytes_that_are_not_http_get_400(simulator: Simulator) -> None:
    port = int(simulator.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")


def test_request_without_id_gets_one_in_the_response(simulator: Simulator, client: httpx.Client) -> None:
    response = client.post(
        "/v1/messages", json={}, headers={"x-simulate": '{"ttft_ms":1,"gap_ms":0,"tokens":1}'}
    )
    row = ended(simulator, response.headers["x-request-id"])
    assert not row.client_request_id


def test_received_trace_is_recorded(simulator: Simulator, client: httpx.Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {
        "traceparent": trace,
        "x-simulate": '{"ttft_ms":1,"gap_ms":0,"tokens":1}',
        "x-request-id": "traced",
    }
    client.post("/v1/messages", json={}, headers=headers)
    (row,) = simulator.ledger.rows(request_id="traced")
    assert (row.trace_id, row.span_id) == (trace.split("-")[1], trace.split("-")[2])


def test_streams_above_the_limit_get_503_and_are_counted() -> None:
    options = SimulatorOptions(listen="127.0.0.1:0", rate_faults=0, max_streams=0)
    with simulator_thread(options) as simulator, httpx.Client(base_url=simulator.url) as client:
        assert client.post("/v1/messages", json={}).status_code == 503
        assert simulator.status()["refused"] == 1


def test_address_in_use_is_one_line_with_a_remedy(simulator: Simulator) -> None:
    options = SimulatorOptions(listen=simulator.url.removeprefix("http://"))
    with pytest.raises(OSError, match=r"cannot listen on .* --listen"), simulator_thread(options):
        pass


def test_command_writes_the_announce_file_and_removes_it_at_exit(tmp_path: Path) -> None:
    announced = tmp_path / "simulator.json"
    argv = [
        sys.executable,
        "-m",
        "streamgauge",
        "simulate",
        "--listen",
        "127.0.0.1:0",
        "--announce",
        str(announced),
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("The simulator listens at http://127.0.0.1:")
        said = json.loads(announced.read_text())
        assert said["pid"] == process.pid
        for path in ("healthz", "health"):
            assert httpx.get(f"{said['url']}/{path}").text == "ok\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert not announced.exists()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("arguments", [["--listen", "nonsense"], ["--rate-faults", "2"], ["--no-such-flag"]])
def test_invalid_flags_give_one_line_and_exit_code_2(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streamgauge", "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1

"""A stream falls silent behind a real tap: one alert fires, reaches the webhook and resolves."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.analytics.alerts.receiver import SECRET, receiver
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import simulator, up
from tests.ports import free_port

CHAT = json.dumps({"model": "any", "stream": True, "messages": [{"role": "user", "content": "hello"}]})


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with simulator() as url:
        yield url


def stalled_stream(tap: str) -> socket.socket:
    """The connection of a client whose stream falls silent after five output events, and stays silent."""
    forced = {
        "ttft_ms": 5,
        "gap_ms": 5,
        "tokens": 20,
        "fault": "stall",
        "fault_after": 5,
        "stall_ms": 100_000,
    }
    address = urlsplit(tap)
    client = socket.create_connection((address.hostname, address.port), timeout=DEADLINE_S)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    )
    client.sendall(
        f"{head}x-simulate: {json.dumps(forced)}\r\nContent-Length: {len(CHAT)}\r\n\r\n{CHAT}".encode()
    )
    received = b""
    while received.count(b"data: ") < 5:
        received += client.recv(65536)
    return client


def silence_s(metrics_url: str) -> float:
    """The longest silence after the first output of the upstream `sim`."""
    with urllib.request.urlopen(metrics_url) as response:
        lines = response.read().decode().splitlines()
    [found] = [
        line
        for line in lines
        if line.startswith("streamgauge_stream_silence_seconds{")
        and 'phase="mid_stream"' in line
        and 'streamgauge_gateway="sim"' in line
    ]
    return float(found.split()[-1])


@pytest.mark.parametrize("limit", ["2s", pytest.param("5s", marks=pytest.mark.slow)])
def test_silent_stream_fires_one_alert_within_ten_seconds_and_resolves(
    upstream: str, tmp_path: Path, limit: str
) -> None:
    with receiver() as found, up(
        f"sim={upstream}", tmp_path / "data", "--alert-silence", limit, STREAMGAUGE_ALERT_WEBHOOK=found.url
    ) as running:  # fmt: skip
        clients = [stalled_stream(running.tap) for _ in range(3)]
        began_s = time.monotonic()
        until(lambda: found.received or None, "the notification")
        assert found.times_s[0] - began_s < 10
        assert silence_s(running.part("analyze")["metrics"]) > 1
        shown = running.run("alerts", "--format", "json")
        assert shown.returncode == 1, shown.stderr
        [alert] = json.loads(shown.stdout)
        assert (alert["rule"], alert["gateway"], alert["model"]) == ("silent_stream", "sim", "any")
        for client in clients:
            client.close()
        until(lambda: len(found.received) == 2 or None, "the resolution")
        running.rows(3)
        assert running.stop() == 0
        assert [n["state"] for n in found.received] == ["firing", "resolved"]
        assert found.received[0]["stream_id"] in {
            r["id"] for r in running.sql("SELECT stream_id::TEXT AS id FROM streams")
        }
        assert SECRET not in running.log.read_text()
        assert not any(
            SECRET.encode() in path.read_bytes() for path in running.data.rglob("*") if path.is_file()
        )


@pytest.mark.slow
def test_webhook_that_is_down_does_not_delay_rows(upstream: str, tmp_path: Path) -> None:
    webhook = f"http://127.0.0.1:{free_port()}/{SECRET}"
    with up(
        upstream, tmp_path / "data", "--alert-silence", "500ms", STREAMGAUGE_ALERT_WEBHOOK=webhook
    ) as running:
        client = stalled_stream(running.tap)
        until(lambda: running.sql("FROM alerts") or None, "the alert")
        client.close()
        began_s = time.monotonic()
        running.rows(1)
        assert time.monotonic() - began_s < 30
        assert running.stop() == 0
        assert SECRET not in running.log.read_text()

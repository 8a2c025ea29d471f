"""`up` replaces the tap while clients send requests: none is refused or cut, and each has its row."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from streamgauge.ingest.listening import REPLACED
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, answers, simulator, up

CHAT = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
REPLACEMENTS = 3


def simulated(request_id: str, **values: object) -> dict[str, str]:
    forced = {"ttft_ms": 5, "gap_ms": 1, "tokens": 8, "fault": "none", **values}
    return {"x-request-id": request_id, "x-simulate": json.dumps(forced)}


@dataclass
class Clients:
    """Clients that send one request after the other."""

    tap: str
    stop: threading.Event = field(default_factory=threading.Event)
    sent: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def _send(self, client: httpx.Client, request_id: str) -> None:
        self.sent.append(request_id)
        try:
            answer = client.post(
                f"{self.tap}/v1/chat/completions", json=CHAT, headers=simulated(request_id), timeout=60
            )
            if answer.status_code != 200:
                self.failures.append(f"{request_id}: {answer.status_code} {answer.text}")
        except httpx.HTTPError as e:
            self.failures.append(f"{request_id}: {e!r}")

    def reuse(self, name: str) -> None:
        """On one connection."""
        with httpx.Client() as client:
            while not self.stop.is_set():
                self._send(client, f"{name}-{len(self.sent)}")

    def connect(self, name: str) -> None:
        """On a new connection for each request."""
        while not self.stop.is_set():
            with httpx.Client() as client:
                self._send(client, f"{name}-{len(self.sent)}")


@contextmanager
def sending(tap: str) -> Iterator[Clients]:
    clients = Clients(tap)
    work: list[tuple[Callable[[str], None], str]] = [(clients.reuse, "reuse-0"), (clients.reuse, "reuse-1")]
    work += [(clients.connect, f"connect-{number}") for number in range(4)]
    threads = [threading.Thread(target=call, args=(name,)) for call, name in work]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.stop.set()
        for thread in threads:
            thread.join()


def tap_pid(running: Up) -> int:
    return int(running.part("tap")["pid"])


def has_ended(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("workers", [1, 2])
def test_tap_is_replaced_without_a_refused_request(workers: int, tmp_path: Path) -> None:
    with (
        simulator() as upstream,
        up(upstream, tmp_path / "data", "--workers", str(workers), "--drain-timeout", "60") as running,
    ):
        tap, admin = running.tap, running.admin
        long = simulated("long", gap_ms=30, tokens=1000)
        with sending(tap) as clients, ExitStack() as connected:
            streamed = connected.enter_context(
                httpx.stream("POST", f"{tap}/v1/chat/completions", json=CHAT, headers=long, timeout=60)
            )
            chunks = streamed.iter_bytes()
            next(chunks)
            pids = [tap_pid(running)]
            for _ in range(REPLACEMENTS):
                before = len(clients.sent)
                until(lambda before=before: len(clients.sent) > before + 20, "requests")  # type: ignore[misc]
                running.process.send_signal(REPLACED)
                until(lambda: tap_pid(running) != pids[-1], "the other tap")
                pids.append(tap_pid(running))
                if len(pids) > 2:  # the first one has the long stream
                    until(lambda: has_ended(pids[-2]), "the end of the former tap")
                else:
                    assert b"data" in next(chunks)
                    assert not has_ended(pids[0])
                    assert sum(map(len, chunks)) > 1000
                    connected.close()  # the tap would wait for a further request
                    until(lambda: has_ended(pids[0]), "the end of the first tap")
            until(lambda: answers(f"{admin}/readyz"), "the admin port")
        assert clients.failures == []
        assert (running.tap, running.admin) == (tap, admin)
        rows = running.rows(len(clients.sent) + 1)
        assert {row["outcome"] for row in rows} == {"ok"}
        assert {row["request_id"] for row in rows} == {"long", *clients.sent}
        assert running.part("up")["parts"]["tap"]["restarts"] == 0
        assert running.run("status").returncode == 0


def test_connections_wait_for_a_tap_that_was_killed(tmp_path: Path) -> None:
    with simulator() as upstream, up(upstream, tmp_path / "data") as running:
        tap, pid = running.tap, tap_pid(running)
        os.kill(pid, signal.SIGKILL)
        until(lambda: has_ended(pid), "the end of the tap")
        answer = httpx.post(
            f"{tap}/v1/chat/completions", json=CHAT, headers=simulated("waits"), timeout=DEADLINE_S
        )
        assert answer.status_code == 200
        running.rows(1)
        assert tap_pid(running) != pid
        assert running.tap == tap


def test_a_tap_that_cannot_start_replaces_nothing(tmp_path: Path) -> None:
    """Another process writes the spare partition."""
    with simulator() as upstream, up(upstream, tmp_path / "data") as running:
        pid = tap_pid(running)
        other = EmbeddedWriter(tmp_path / "data" / "log", "w1", cap_bytes=2**20, max_age_s=3600)
        running.process.send_signal(REPLACED)
        until(lambda: "cannot replace the tap" in running.log.read_text(), "the reason")
        assert "another tap uses this data folder" in running.log.read_text()
        headers = simulated("one")
        answer = httpx.post(
            f"{running.tap}/v1/chat/completions", json=CHAT, headers=headers, timeout=DEADLINE_S
        )
        assert answer.status_code == 200
        assert tap_pid(running) == pid
        other.close()
        running.process.send_signal(REPLACED)
        until(lambda: tap_pid(running) != pid, "the other tap")
        running.rows(1)

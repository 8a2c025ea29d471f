"""Random rounds of a full disk and kill -9 under `up`, with SSE, JSON and WebSockets.

The data folder is a small filesystem. In each round a file fills it while requests go on, and parts are killed. When there is room
again, captured = stored + lost, and `up` has killed nothing.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import websockets.exceptions
import websockets.sync.client
from click.testing import CliRunner

from streamgauge.commands.status import status_command
from tests.analytics.stores import place_empty_catalog
from tests.deadline import until
from tests.e2e.running import Up, simulator, up
from tests.openai_sockets import ENDS
from tests.ports import free_port
from tests.small_disk import fill, small_disk
from tests.streamgauge.conftest import reads_in_process
from tests.streamgauge.stored import outcomes
from tests.tables import tables

__all__ = ["reads_in_process"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("reads_in_process")]
ROUNDS, HUNG_AFTER_S = 50, 10
FORCED = json.dumps({"ttft_ms": 5, "gap_ms": 1, "tokens": 5, "fault": "none"})


@dataclass
class Clients:
    """Clients of SSE, JSON and WebSockets, which send one request after the other."""

    tap: str
    sent: int = 0
    complete: set[str] = field(default_factory=set)
    """Ids of the requests whose whole response a client has."""
    broken: Counter[str] = field(default_factory=Counter)
    """Errors of connections. A tap that is killed breaks them."""
    wrong: list[str] = field(default_factory=list)
    """Errors of complete responses."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send until the end of the block, and wait for the open requests."""
        self._stop.clear()
        kinds = self._sse, self._json, self._socket
        threads = [threading.Thread(target=self._repeat, args=(send,)) for send in kinds]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _repeat(self, send: Callable[[dict[str, str]], bool]) -> None:
        while not self._stop.wait(0.02):
            request_id = f"{send.__name__}-{time.monotonic_ns()}"
            headers = {"x-request-id": request_id, "x-simulate": FORCED}
            self.sent += 1
            try:
                assert send(headers), "not the whole response"
            except (httpx.HTTPError, OSError, websockets.exceptions.WebSocketException) as error:
                self.broken[repr(error)] += 1
                self._stop.wait(0.2)
            except Exception as error:
                self.wrong.append(repr(error))
            else:
                self.complete.add(request_id)

    def _sse(self, headers: dict[str, str]) -> bool:
        return self._post(headers, stream=True).endswith("data: [DONE]\n\n")

    def _json(self, headers: dict[str, str]) -> bool:
        return bool(json.loads(self._post(headers, stream=False))["choices"])

    def _post(self, headers: dict[str, str], *, stream: bool) -> str:
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "x"}]}
        answer = httpx.post(f"{self.tap}/v1/chat/completions", json=body, headers=headers, timeout=60)
        return answer.raise_for_status().text

    def _socket(self, headers: dict[str, str]) -> bool:
        url = self.tap.replace("http", "ws", 1) + "/v1/responses"
        with websockets.sync.client.connect(
            url, additional_headers=headers, proxy=None, open_timeout=60
        ) as socket:
            for _ in range(2):
                socket.send(json.dumps({"type": "response.create", "model": "m", "input": "x"}))
                while (kind := json.loads(socket.recv(60))["type"]) not in ENDS:
                    pass
                assert kind == "response.completed"
        return True


def part_pid(running: Up, name: str) -> int | None:
    """The process of a part. The state file of `up` is outdated on a full disk."""
    parent = running.process.pid
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(OSError):
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[4:5]:
                return int(pid)
    return None


def bounded_status(data: Path, clients: Clients) -> tuple[int, dict[str, Any]] | None:
    """Exit code and values of `status`, whose bounds contain what the clients know. None: the tables cannot be read now."""
    complete = len(clients.complete)
    result = CliRunner().invoke(
        status_command, ["--data", str(data), "--format", "json"], standalone_mode=False
    )
    if isinstance(result.exception, click.ClickException):
        return None
    assert result.exception is None, result.exception
    found: dict[str, Any] = json.loads(result.output)
    if "captured" not in found:
        return None
    assert found["captured"] <= clients.sent, result.output
    assert (found["captured_at_most"] or complete) >= complete, result.output
    return result.return_value, found


def kill_on_a_full_disk(
    rng: random.Random, running: Up, clients: Clients, data: Path, kills: int
) -> set[int]:
    """Requests before, during and after a full disk, and kills at random moments meanwhile. Returns the killed processes."""
    killed = set()
    with clients.running():
        time.sleep(rng.uniform(0, 0.5))
        fill(data / "filler")
        time.sleep(rng.uniform(0, 1) if kills else 2 + HUNG_AFTER_S)
        bounded_status(data, clients)
        for _ in range(kills):
            for name in rng.choice([["tap"], ["tap"], ["analyze"], ["tap", "analyze"]]):
                if pid := part_pid(running, name):
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(rng.uniform(0, 1.5))
        (data / "filler").unlink()
        goal = len(clients.complete) + 5
        until(lambda: len(clients.complete) > goal, "requests")
    return killed


def settled(data: Path, clients: Clients) -> dict[str, Any] | None:
    """`status` without faults and with nothing in flight, also in the tap: it appends ten times a second."""
    code, found = bounded_status(data, clients) or (1, {})
    if code or found["in_flight"] or found["unreported"] or found["captured"] != found["captured_at_most"]:
        return None
    return found


def unexplained_ends(log: str, killed: Collection[int]) -> list[tuple[str, str, str]]:
    """Parts that ended by a signal, and taps that ended at all, although the test did not kill them."""
    ended = re.findall(r"(\w+) \(pid (\d+)\) exited: (.*?)\. Restarting", log)
    return [one for one in ended if int(one[1]) not in killed and (one[0] == "tap" or "signal" in one[2])]


def test_full_disk_and_kills_at_random_moments_lose_no_account_and_no_healthy_part(tmp_path: Path) -> None:
    """`up` and its parts, with SSE, JSON and WebSockets. Each fifth round has no kill, and is longer than `--hung-after`."""
    rng, killed, lost = random.Random(ROUNDS), set[int](), 0
    with (
        small_disk(tmp_path / "data", "64m") as data,
        simulator("--seed", "disk", "--rate-faults", "0") as upstream,
    ):
        place_empty_catalog(data)
        listen = f"127.0.0.1:{free_port()}"  # the same one after a long pause between two starts
        with up(upstream, data, "--hung-after", f"{HUNG_AFTER_S}s", "--listen", listen) as running:
            clients = Clients(running.tap)
            for number in range(ROUNDS):
                kills, broken = rng.randint(1, 3) if number % 5 else 0, clients.broken.total()
                killed |= kill_on_a_full_disk(rng, running, clients, data, kills)
                try:
                    status = until(lambda: settled(data, clients), "a status without faults")
                except AssertionError as error:
                    error.add_note(
                        f"round {number}\n{bounded_status(data, clients)}\n{running.log.read_text()[-6000:]}"
                    )
                    raise
                complete, log = clients.complete, running.log.read_text()
                captured, stored = status["captured"], status["stored"]
                shown = f"round {number}: {len(complete)} of {clients.sent} complete, {captured} captured, {stored} stored"
                print(shown, f"{status['losses_by_cause']}, {len(killed)} kills", flush=True)
                assert captured == stored + status["lost"], shown
                assert len(complete) <= captured, shown
                assert (status["unknown"], clients.wrong) == ([], []), shown
                assert kills or (clients.broken.total(), status["lost"]) == (broken, lost), shown
                lost = status["lost"]
                assert outcomes(data)["without_row"] == 0, shown
                stored_ids = set(tables(data).query("SELECT request_id FROM streams").to_series())
                assert len(complete - stored_ids) <= lost, shown
                assert "killing" not in log, log
                assert unexplained_ends(log, killed) == [], log

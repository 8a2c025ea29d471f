"""kill -9 of the tap loses at most the last 100 ms of each stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from streamgauge.analytics.decoding.sse import SSEDecoder
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.run_totals import read_run_totals
from streamgauge.ingest.records import Frames, Opened, unpack
from streamgauge.simulator.ledger import RemoteLedger
from tests.chaos.test_rounds import part, until_ready
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import simulator
from tests.ports import free_ports

STREAMS = 20
PACED = json.dumps({"tokens": 3000, "gap_ms": 10, "ttft_ms": 20, "fault": "none"})
LAST_MOMENT_NS = 100_000_000
KILLS = 4


@contextmanager
def paced_streams(url: str) -> Iterator[None]:
    """Clients of long streams, until their connections break."""

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        headers = {"x-request-id": f"paced-{number}", "x-simulate": PACED}
        with contextlib.suppress(httpx.HTTPError):
            async with client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                async for _ in answer.aiter_raw():
                    pass

    async def all_of_them() -> None:
        async with httpx.AsyncClient(
            timeout=DEADLINE_S, limits=httpx.Limits(max_connections=STREAMS)
        ) as client:
            await asyncio.gather(*(one(client, number) for number in range(STREAMS)))

    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    thread.start()
    try:
        yield
    finally:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


class LoggedOutputs:
    """Counts the output events of each request in the log."""

    def __init__(self, log_dir: Path) -> None:
        self._reader = EmbeddedReader(log_dir, "in-log")
        self._request: dict[str, str] = {}
        self._decoders: dict[str, SSEDecoder] = {}
        self.outputs: dict[str, int] = {}

    def read(self) -> None:
        while entries := self._reader.poll(0.0):
            for record in (record for entry in entries for record in unpack(entry.payload)[0]):
                if isinstance(record, Opened):
                    self._request[record.stream] = dict(record.headers)["x-request-id"]
                    self._decoders[record.stream] = SSEDecoder()
                elif isinstance(record, Frames):
                    events = [
                        event
                        for at_ns, data in record.frames
                        for event in self._decoders[record.stream].feed(data, at_ns)
                    ]
                    outputs = sum(b'"content":"' in e.data and b'"content":""' not in e.data for e in events)
                    request = self._request[record.stream]
                    self.outputs[request] = self.outputs.get(request, 0) + outputs

    def close(self) -> None:
        self._reader.close()


def lost_by_a_kill(folder: Path, after_s: float) -> tuple[int, int]:
    """Kill a tap with open streams, `after_s` after every stream had output in the log.

    Returns the largest loss of a stream and the largest delay of the tap's event loop, both in ns.
    """
    data = folder / "data"
    (data / "log").mkdir(parents=True)
    port, admin = free_ports(2)
    in_log = LoggedOutputs(data / "log")
    with (
        simulator("--seed", "killed") as upstream,
        part(
            folder / "tap.log", "tap", "--data", str(data), "--upstream", f"sim={upstream}",
            "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
        ) as tap,
    ):  # fmt: skip
        until_ready(tap, folder / "tap.log", admin)
        with paced_streams(f"http://127.0.0.1:{port}"):

            def flowing() -> bool:
                in_log.read()
                return len(in_log.outputs) == STREAMS and min(in_log.outputs.values()) > 50

            until(flowing, "every stream to flow", DEADLINE_S)
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/ledger") as answer:
                counters = json.load(answer)
            time.sleep(after_s)  # vary the time between the last append and the kill
            kill_ns = time.monotonic_ns()
            tap.kill()
            tap.wait()
        ledger = RemoteLedger(upstream)
        ledger.refresh()
    in_log.read()
    in_log.close()
    truth = {row.request_id: row for row in ledger.rows()}
    assert set(in_log.outputs) == set(truth)
    (run,) = read_run_totals(data / "log").values()
    assert run.streams_in_log == run.streams_opened == STREAMS
    lost_ns = [
        kill_ns - row.outputs_ns[in_log.outputs[request]]
        for request, row in truth.items()
        if in_log.outputs[request] < len(row.outputs_ns)
    ]
    return max(lost_ns, default=0), counters["loop_lag_max_ns"]


@pytest.mark.parametrize("after_ms", [0, 50, 100, 150])
def test_kill_9_of_the_tap_loses_at_most_100_ms_of_each_stream(tmp_path: Path, after_ms: int) -> None:
    # The measured loss includes bytes that the simulator had sent and the tap had not yet received. So a correct tap stays
    # within the limit in at least one of a few kills, and an incorrect one in none.
    seen = []
    for kill in range(KILLS):
        lost_ns, lag_ns = lost_by_a_kill(tmp_path / str(kill), after_ms / 1000)
        if lost_ns <= LAST_MOMENT_NS + lag_ns:
            return
        seen.append(f"{lost_ns / 1e6:.0f} ms lost, {(LAST_MOMENT_NS + lag_ns) / 1e6:.0f} allowed")
    pytest.fail("; ".join(seen))

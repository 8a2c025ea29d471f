"""One simulator per test module: only forced faults, short times, with generated text in the ledger."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.deadline import DEADLINE_S, until
from tests.streamgauge.simulator.simulator_thread import simulator_thread


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    options = SimulatorOptions(
        listen="127.0.0.1:0", rate_faults=0, time_scale=0.05, keepalive_s=0.05, keep_text=True
    )
    with simulator_thread(options) as running:
        yield running


@pytest.fixture
def client(simulator: Simulator) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=simulator.url, timeout=DEADLINE_S) as client:
        yield client


def ended(simulator: Simulator, request_id: str) -> LedgerRow:
    """Wait for the completed ledger row of a request. The client may finish reading earlier."""

    def row() -> LedgerRow | None:
        rows = list(simulator.ledger.rows(request_id=request_id))
        assert len(rows) <= 1
        return rows[0] if rows and rows[0].end_ns is not None else None

    return until(row, f"{request_id} to end")


def all_ended(simulator: Simulator) -> None:
    """Wait until all responses have ended."""
    until(lambda: not simulator.ledger.open or None, "all responses to end")


_numbers = itertools.count()


class Script:
    """Sends one scripted request and reads the response."""

    def __init__(self, simulator: Simulator, client: httpx.Client) -> None:
        self._simulator, self._client = simulator, client

    def __call__(
        self, model: str = "gpt-sim-mini", path: str = "/v1/chat/completions", body: dict[str, Any] | None = None,
        **forced: Any,
    ) -> tuple[httpx.Response, bytes, LedgerRow]:  # fmt: skip
        """The response, its raw body (possibly partial), and the ledger row."""
        request_id = f"script-{next(_numbers)}"
        payload = {"model": model, "messages": [{"role": "user", "content": "How high?"}], "stream": True}
        forced = {"ttft_ms": 1, "gap_ms": 0, "tokens": 10, **forced}
        headers = {"x-request-id": request_id, "x-simulate": json.dumps(forced)}
        parts: list[bytes] = []
        with self._client.stream("POST", path, json=payload | (body or {}), headers=headers) as response:
            try:
                parts += response.iter_raw()
            except httpx.TransportError as e:
                response.extensions["failure"] = e
        return response, b"".join(parts), ended(self._simulator, request_id)


@pytest.fixture
def script(simulator: Simulator, client: httpx.Client) -> Script:
    return Script(simulator, client)

"""Clients send the drawn requests, record the responses, and abort as configured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.profiles import HTTP_MODELS
from streamgauge.simulator.server import Simulator
from streamgauge.simulator.traffic import ClientRequest, ClientRow, Traffic, TrafficOptions
from tests.deadline import DEADLINE_S
from tests.streamgauge.simulator.conftest import all_ended


async def send(options: TrafficOptions, count: int) -> Sequence[ClientRow]:
    traffic = Traffic(options)
    await traffic.send(count)
    return list(traffic.rows.values())


def sent(
    simulator: Simulator, run: str, count: int, **more: Any
) -> tuple[Sequence[ClientRow], dict[str, LedgerRow]]:
    options = TrafficOptions(base_url=simulator.url, run=run, seed=run, **more)
    clients = asyncio.run(send(options, count))
    all_ended(simulator)
    rows = {row.request_id: row for row in simulator.ledger.rows() if row.request_id.startswith(f"{run}-")}
    return clients, rows


def test_every_client_receives_the_bytes_that_were_sent(simulator: Simulator) -> None:
    clients, rows = sent(simulator, "whole", 60, abort_share=0.0)
    assert len(clients) == len(rows) == 60
    for client in clients:
        row = rows[client.request_id]
        assert (client.status, client.error, client.model) == (200, None, row.model)
        assert (client.body_bytes, client.body_sha256) == (row.body_bytes, row.body_sha256)


def test_body_may_end_with_the_connection_but_not_inside_a_chunk(simulator: Simulator) -> None:
    async def exchange(wish: str) -> ClientRow:
        traffic = Traffic(TrafficOptions(base_url=simulator.url, run="close"))
        headers = (("x-simulate", wish), ("content-type", "application/json"))
        request = ClientRequest(
            request_id=wish,
            model="m",
            path="/v1/messages",
            headers=headers,
            body=b'{"stream":true}',
            streamed=True,
        )
        await traffic._send_one(request, None, False)
        return traffic.rows[wish]

    whole = asyncio.run(exchange('{"ttft_ms":1,"gap_ms":0,"tokens":3,"framing":"close"}'))
    cut = asyncio.run(exchange('{"ttft_ms":1,"gap_ms":0,"tokens":3,"fault":"cut"}'))
    assert (whole.error, cut.error) == (None, "EOFError")


def test_all_models_get_requests(simulator: Simulator) -> None:
    _, rows = sent(simulator, "all", 150, abort_share=0.0)
    assert {row.model for row in rows.values()} == set(HTTP_MODELS)


def test_client_ttft_is_at_least_the_simulated_ttft(simulator: Simulator) -> None:
    clients, rows = sent(simulator, "ttft", 40, abort_share=0.0, stream_share=1.0)
    compared = 0
    for client in clients:
        row = rows[client.request_id]
        seen_ns = client.ttft_ns(row)
        if seen_ns is not None and row.first_output_ns is not None:
            compared += 1
            assert seen_ns >= row.first_output_ns - row.complete_ns
    assert compared > 30


def test_aborting_clients_are_marked(simulator: Simulator) -> None:
    soon = {"abort_share": 1.0, "abort_after_s": (0.0, 0.03)}
    clients, _ = sent(simulator, "leave", 30, models=("gemma-sim",), stream_share=1.0, **soon)
    left = [client for client in clients if client.aborted]
    assert all(client.error is None for client in clients)
    assert left
    assert all(client.end_ns is not None for client in left)


def test_same_seed_draws_the_same_requests(simulator: Simulator) -> None:
    one, _ = sent(simulator, "same", 20, abort_share=0.0)
    two, _ = sent(simulator, "same", 20, abort_share=0.0)
    assert [(c.model, c.path, c.streamed) for c in one] == [(c.model, c.path, c.streamed) for c in two]


def test_arrivals_above_the_concurrency_are_counted_not_queued(simulator: Simulator) -> None:
    async def flood() -> Traffic:
        options = TrafficOptions(
            base_url=simulator.url,
            run="flood",
            seed="flood",
            rate_per_s=500,
            concurrency=2,
            models=("gemma-sim",),
        )
        traffic, stop = Traffic(options), asyncio.Event()
        making = asyncio.create_task(traffic.run(stop))
        async with asyncio.timeout(DEADLINE_S):
            while not traffic.turned_away:
                assert traffic.open_requests <= 2
                await asyncio.sleep(0)
        stop.set()
        await making
        return traffic

    traffic = asyncio.run(flood())
    assert traffic.open_requests == 0
    assert traffic.sent == len(traffic.rows)


def test_url_without_http_scheme_is_rejected() -> None:
    with pytest.raises(ValueError, match="not an http URL"):
        Traffic(TrafficOptions(base_url="ftp://x"))


def test_unreachable_server_is_an_error_in_the_row() -> None:
    options = TrafficOptions(base_url="http://127.0.0.1:9", run="dead", abort_share=0.0)
    (client,) = asyncio.run(send(options, 1))
    assert client.error == "ConnectionRefusedError"
    assert client.status is None

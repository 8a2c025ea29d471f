"""Heads that arrive in any pieces: the same result, and work that grows with the bytes. Work is counted, not timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.ingest.http1 import receive_buffer
from streamgauge.ingest.http1.heads import check_partial_head, check_partial_response_head
from streamgauge.ingest.http1.receive_buffer import ReceiveBuffer
from streamgauge.ingest.tap.connections import client_connection
from streamgauge.ingest.tap.exchanges import exchange
from streamgauge.ingest.tap.exchanges.states import WAITING
from tests.ingest.running_tap import Client, RunningTap, read_request, running_tap

PIECES = st.lists(st.sampled_from([b"a", b"\r\n", b"\r", b"\n", b"bc\r\n\r\n", b"d\r\n"]), max_size=12).map(
    b"".join
)


def nothing_to_check(partial: bytes | bytearray, known: int) -> None:
    assert known <= len(partial)


@given(PIECES, st.lists(st.integers(1, 5), min_size=1, max_size=8), st.booleans())
def test_heads_and_rest_do_not_depend_on_how_reads_are_split(raw: bytes, sizes: list[int], empty_line: bool):
    buffer = ReceiveBuffer(nothing_to_check, skip_empty_line=empty_line)
    found, at = [], 0
    while at < len(raw):
        size = sizes[at % len(sizes)]
        buffer.add(raw[at : at + size])
        at += size
        while (head := buffer.head()) is not None:
            assert head == buffer.head()
            buffer.skip(len(head))
            found.append(head)
    expected, rest = [], raw
    while True:
        if empty_line:
            rest = rest.removeprefix(b"\r\n")
        head, end, after = rest.partition(b"\r\n\r\n")
        if not end:
            break
        expected.append(head + end)
        rest = after
    assert found == expected
    assert len(buffer) == len(buffer.take())


@given(st.binary(max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_what_is_put_back_is_taken_again(raw: bytes, size: int, used: int):
    buffer = ReceiveBuffer(nothing_to_check)
    buffer.add(raw)
    taken = buffer.take(size)
    buffer.put_back(taken[used:])
    assert taken[:used] + buffer.take() == raw
    assert not buffer


class Work(bytearray):
    """A bytearray that counts the bytes which are searched and copied."""

    bytes = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Work.bytes += len(self)

    def find(self, wanted: Any, start: Any = 0, end: Any = None) -> int:
        end = len(self) if end is None else end
        at = super().find(wanted, start, end)
        Work.bytes += (end if at < 0 else at) - start
        return at

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Work.bytes += len(found) if isinstance(key, slice) else 1
        return found


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> type[Work]:
    """Counts in `ReceiveBuffer`, in `appended` and in the checks of incomplete heads."""

    def counted(check: Any) -> Any:
        def count(*arguments: Any) -> None:
            Work.bytes += len(arguments[-2]) - arguments[-1]
            check(*arguments)

        return count

    monkeypatch.setattr(receive_buffer, "bytearray", Work, raising=False)
    monkeypatch.setattr(client_connection, "check_partial_head", counted(check_partial_head))
    monkeypatch.setattr(exchange, "check_partial_response_head", counted(check_partial_response_head))
    Work.bytes = 0
    return Work


def feed(receive: Callable[[bytes], object], raw: bytes) -> None:
    for at in range(len(raw)):
        receive(raw[at : at + 1])


HEAD = b"Host: h\r\n" + b"X: y\r\n" * 200 + b"Y: " + b"z" * 50_000 + b"\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(OK + b"\r\nok")


async def connected(tap: RunningTap) -> tuple[Client, Any]:
    client = await tap.client(limit=2**20)
    await tap.wait_until(lambda: bool(tap.worker.context.clients))
    [connection] = tap.worker.context.clients
    return client, connection


async def test_work_for_a_request_byte_by_byte_grows_with_its_bytes(work: type[Work]):
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"tt\r\n\r\n")
        writer.write(OK + b"\r\nok")

    async with running_tap(upstream) as tap:
        client, connection = await connected(tap)
        head = b"POST /" + b"a" * 10_000 + b" HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        feed(connection.data_received, head)
        assert 0 < work.bytes < 16 * len(head)
        work.bytes = 0
        body = (
            b"1\r\nx\r\n" * 12_000
            + b"0;"
            + b"e" * 4_000
            + b"\r\n"
            + b"T" * 8_000
            + b": "
            + b"t" * 8_000
            + b"\r\n\r\n"
        )
        feed(connection.data_received, body)  # the upstream is not connected yet
        assert 0 < work.bytes < 16 * len(body)
        assert (await client.response())[1] == b"ok"


async def test_work_for_a_response_head_byte_by_byte_grows_with_its_bytes(work: type[Work]):
    async with running_tap(lambda reader, _: reader.read()) as tap:
        client, connection = await connected(tap)
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await tap.wait_until(lambda: bool(tap.upstream_connections))
        await tap.wait_until(lambda: connection.exchange.response == WAITING)
        response = b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000 + OK + HEAD + b"\r\nok"
        now_ns = time.monotonic_ns()
        work.bytes = 0
        feed(lambda byte: connection.exchange.on_upstream_bytes(byte, now_ns), response)
        assert 0 < work.bytes < 16 * len(response)
        while (answered := await client.response())[0].startswith(b"HTTP/1.1 100"):
            pass
        assert answered[1] == b"ok"


async def test_work_for_pipelined_requests_grows_with_their_bytes(work: type[Work]):
    requests = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}" * 2_000
    async with running_tap(answer_all) as tap:
        client, connection = await connected(tap)
        connection.data_received(requests[:50_000])
        connection.data_received(requests[50_000:])
        for _ in range(2_000):
            assert (await client.response())[1] == b"ok"
    assert 0 < work.bytes < 16 * len(requests)

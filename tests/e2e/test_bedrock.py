"""Bedrock's binary event stream through a tap."""

from __future__ import annotations

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from tests.analytics.amazon_event_stream import CONVERSE, exception
from tests.ingest.running_tap import END, chunk, respond_with, running_tap

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_exception_behind_a_real_tap_is_an_error_of_the_stream() -> None:
    sent = [*CONVERSE[:6], exception("modelStreamErrorException")]
    async with running_tap(respond_with(HEAD + b"".join(map(chunk, sent)) + END)) as tap:
        await tap.request(b"POST /model/m/converse-stream HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        (records,) = await tap.records()
    assembler = Assembler()
    assembler.feed("w0", 0, records)
    (found,) = measure(assembler.take_finished())["streams"].to_dicts()
    assert (found["outcome"], found["error_type"]) == ("inband_error", "modelStreamErrorException")
    assert (found["text_chars"], found["response_bytes"]) == (15, sum(map(len, sent)))

"""W3C trace context: the client's trace is joined, and the tap's span is the upstream's parent."""

from __future__ import annotations

import asyncio
import re

import pytest

from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.records import Opened
from tests.ingest.running_tap import read_request, running_tap

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_trace_of_the_client_is_joined():
    trace = join_trace(f"00-{TRACE}-{SPAN}-01".encode())
    assert (trace.trace_id, trace.parent_span_id, trace.flags) == (TRACE, SPAN, 1)
    assert trace.span_id != SPAN
    assert trace.header == f"00-{TRACE}-{trace.span_id}-01"
    assert join_trace(f"00-{TRACE}-{SPAN}-00".encode()).flags == 0


def test_known_fields_of_a_later_version_are_used():
    assert join_trace(f"01-{TRACE}-{SPAN}-01-more".encode()).parent_span_id == SPAN


@pytest.mark.parametrize(
    "header",
    [
        None, "", "x", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)  # fmt: skip
def test_malformed_header_starts_a_new_trace(header: str | None):
    trace = join_trace(header.encode() if header is not None else None)
    assert re.fullmatch(r"[0-9a-f]{32}", trace.trace_id)
    assert re.fullmatch(r"[0-9a-f]{16}", trace.span_id)
    assert trace.trace_id != TRACE
    assert (trace.parent_span_id, trace.flags) == (None, 1)


async def test_upstream_receives_the_tap_span_as_parent():
    seen: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with running_tap(upstream) as tap:
        lines = f"Host: h\r\nTraceparent: 00-{TRACE}-{SPAN}-01\r\nTraceState: a=b\r\n\r\n"
        await tap.request(f"GET / HTTP/1.1\r\n{lines}".encode())
        [records] = await tap.records()
        opened = records[0]
        assert isinstance(opened, Opened)
        assert (opened.trace_id, opened.parent_span_id) == (TRACE, SPAN)
        assert f"traceparent: 00-{TRACE}-{opened.span_id}-01\r\n".encode() in seen[0]
        assert seen[0].lower().count(b"traceparent") == 1
        assert b"TraceState: a=b\r\n" in seen[0]

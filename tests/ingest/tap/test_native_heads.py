"""The compiled functions for heads do what those in Python do, for valid and invalid input."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgauge.ingest.tap.http import head_functions as heads
from streamgauge.ingest.tap.http import heads as http_head
from streamgauge.ingest.tap.http.fields import SPECIAL_IN_REQUESTS, SPECIAL_IN_RESPONSES
from streamgauge.ingest.tap.http.heads import BadRequest, BadUpstream, HeadLimits
from streamgauge.ingest.tap.http.rewriting import XForwarded
from streamgauge.ingest.tap.http.routing import Router
from streamgauge.ingest.tap.http.trace_context import TraceContext
from streamgauge.ingest.tap.http.upstreams import parse_upstreams
from streamgauge.ingest.tap.relay import choice as relay_choice

pytestmark = pytest.mark.skipif(
    relay_choice.native_relay is None, reason="the native relay is not built: no C compiler"
)
if relay_choice.native_relay is not None:
    from streamgauge.ingest.tap.http import native_heads

EXAMPLES = settings(max_examples=600, deadline=None)
TIGHT = HeadLimits(head_bytes=300, target_bytes=40, fields=4)
ROUTERS = [
    Router(parse_upstreams([url])) for url in ("a=http://127.0.0.1:1/base", "a=https://api.example.com")
]
OPTIONS = get_args(XForwarded)
TRACES = TraceContext("1" * 32, "2" * 16, None, 1), TraceContext("1" * 32, "2" * 16, "3" * 16, 0)

NAMES = [*SPECIAL_IN_REQUESTS, *SPECIAL_IN_RESPONSES, b"accept",
         b"authorization", b"cookie", b"x", b"x-streamgauge-upstream", b"content_length"]  # fmt: skip
NAME = st.sampled_from(NAMES).flatmap(lambda n: st.sampled_from([n, n.title(), n.upper()])) | st.binary(
    max_size=4
)
VALUE = st.sampled_from(
    [b"AWS4-HMAC-SHA256 x",
     b"5", b"0", b"05", b"12", b"h", b"a, b", b"", b"chunked", b"gzip, chunked", b"close", b"keep-alive", b"upgrade", b"x, accept",
     b"trailers", b"application/json", b"1" * 19, b"a" * 300],
) | st.binary(max_size=6)  # fmt: skip
EOL = st.sampled_from([b"\r\n"] * 20 + [b"\n", b"\r", b"\r\n ", b"\r\n\r\n"])
LINE = st.builds(
    lambda n, s, v, e: n + s + v + e, NAME, st.sampled_from([b":", b": ", b": ", b":\t", b" :"]), VALUE, EOL
)
REQUEST_LINE = st.sampled_from(
    [b"GET / HTTP/1.1", b"POST /v1/x?a=b HTTP/1.1", b"POST /x HTTP/1.0", b"PUT http://h2/p HTTP/1.1", b"OPTIONS * HTTP/1.1",
     b"GET / HTTP/2.0", b"", b"GET /" + b"l" * 60 + b" HTTP/1.1", b"M-SEARCH /x HTTP/1.1", b"POST /" + b"p" * 300 + b" HTTP/1.1"],
)  # fmt: skip
STATUS_LINE = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 404 ", b"HTTP/1.0 200 OK", b"HTTP/1.1 20", b"", b"HTTP/1.1 101 x"]
)


def heads_with(start: st.SearchStrategy[bytes], host: list[bytes]) -> st.SearchStrategy[bytes]:
    whole = st.builds(
        lambda line, eol, host, lines, end: line + eol + host + b"".join(lines) + end,
        start, EOL, st.sampled_from(host), st.lists(LINE, max_size=6), st.sampled_from([b"\r\n", b"\r\n", b""]),
    )  # fmt: skip
    return whole | st.binary(max_size=60)


def outcome(function: Callable[..., object], *arguments: object) -> object:
    try:
        return function(*arguments)
    except BadRequest as e:
        return "refused", e.status, e.reason, e.refusal
    except BadUpstream as e:
        return "invalid", str(e)


@given(heads_with(REQUEST_LINE, [b"Host: h\r\n", b"host:\r\n", b""]))
@example(b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n")
@example(b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
@EXAMPLES
def test_heads_of_requests_are_read_and_rewritten_the_same(raw: bytes) -> None:
    for limits in (HeadLimits(), TIGHT):
        found = outcome(heads.read_request_head, raw, limits)
        assert outcome(native_heads.read_request_head, raw, limits) == found
        if not isinstance(found, http_head.RequestHead):
            continue
        for router, options, trace in product(ROUTERS, OPTIONS, TRACES):
            route = router.route(found)
            if route is not None:
                arguments = (found, route, trace, options, "127.0.0.1", "http")
                assert native_heads.request_for_upstream(*arguments) == heads.request_for_upstream(*arguments)


@given(heads_with(STATUS_LINE, [b""]))
@EXAMPLES
def test_heads_of_responses_are_read_the_same(raw: bytes) -> None:
    assert outcome(native_heads.read_response_head, raw) == outcome(heads.read_response_head, raw)


def test_usual_heads_are_handled_by_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
        b"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\n"
        b"Authorization: Bearer sk-1234\r\nContent-Length: 78\r\n\r\n"
    )
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Request-Id: 7\r\n\r\n"
    head = heads.read_request_head(request, HeadLimits())
    expected = head, heads.read_response_head(response)
    for name in ("read_request_head", "read_response_head"):
        monkeypatch.delattr(http_head, name)
    monkeypatch.delattr("streamgauge.ingest.tap.http.rewriting.request_for_upstream")
    assert (
        native_heads.read_request_head(request, HeadLimits()),
        native_heads.read_response_head(response),
    ) == expected
    route = ROUTERS[0].route(head)
    assert route is not None
    rewritten = native_heads.request_for_upstream(head, route, TRACES[0], "private", "::1", "http")
    assert rewritten.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")

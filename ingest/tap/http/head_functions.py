"""Read and rewrite message heads in Python. `native_heads` has the same functions in native code."""

from __future__ import annotations

from typing import Protocol

from streamgauge.ingest.tap.http.heads import HeadLimits, RequestHead, ResponseHead
from streamgauge.ingest.tap.http.heads import read_request_head as read_request_head
from streamgauge.ingest.tap.http.heads import read_response_head as read_response_head
from streamgauge.ingest.tap.http.rewriting import XForwarded
from streamgauge.ingest.tap.http.rewriting import request_for_upstream as request_for_upstream
from streamgauge.ingest.tap.http.routing import Route
from streamgauge.ingest.tap.http.trace_context import TraceContext


class Heads(Protocol):
    """A module with these functions."""

    def read_request_head(self, head: bytes, limits: HeadLimits) -> RequestHead: ...

    def read_response_head(self, head: bytes) -> ResponseHead: ...

    def request_for_upstream(
        self,
        head: RequestHead,
        route: Route,
        trace: TraceContext,
        x_forwarded: XForwarded,
        address: str,
        scheme: str,
    ) -> bytes: ...

"""An upgraded exchange after the 101: bytes in both directions, unchanged. Whoever forwards them reports them here.

Each side may end its direction first (half-close). The tunnel is over when both sides have ended or one connection breaks. With TLS on
either side, where half-close is not possible, it is over when one side ends.

A WebSocket is complete if one side sent a Close frame before the other ended. Otherwise the side that ended first failed. Any
other protocol, or a WebSocket in which the search for the frame gave up, is complete if no connection broke.
"""

from __future__ import annotations

from streamgauge.ingest.http1.websocket_close import CloseFrameFinder
from streamgauge.ingest.records import Cause


class Tunnel:
    """The two directions of a tunnel and their byte counts. Times are monotonic, in ns."""

    def __init__(self, *, websocket: bool, half_close: bool) -> None:
        """`half_close`: a side can end its direction alone."""
        self.websocket = websocket
        self._half_close = half_close
        self._client_ended = False
        self._upstream_ended = False
        self._first_to_end: Cause | None = None
        self._client_close, self._upstream_close = CloseFrameFinder(websocket), CloseFrameFinder(websocket)
        self.client_bytes = 0
        self.upstream_bytes = 0
        self.first_byte_ns: int | None = None
        """Arrival of the upstream's first byte."""

    def client_data(self, data: bytes) -> None:
        self.client_bytes += len(data)
        if not self._upstream_ended:
            self._client_close.feed(data)

    def upstream_data(self, data: bytes, now_ns: int) -> None:
        if not self.upstream_bytes:
            self.first_byte_ns = now_ns
        self.upstream_bytes += len(data)
        if not self._client_ended:
            self._upstream_close.feed(data)

    def client_eof(self) -> bool:
        """The client ended its direction. True: the tunnel is over."""
        self._client_ended = True
        self._first_to_end = self._first_to_end or "client_left"
        return self._upstream_ended or not self._half_close

    def upstream_eof(self) -> bool:
        """The upstream ended its direction. True: the tunnel is over."""
        self._upstream_ended = True
        self._first_to_end = self._first_to_end or "upstream_reset"
        return self._client_ended or not self._half_close

    def cause(self, broken: Cause | None = None) -> Cause:
        """Why the tunnel is over. `broken`: the cause if a connection broke, None after both sides have ended."""
        client_close, upstream_close = self._client_close, self._upstream_close
        if client_close.found or upstream_close.found:
            return "complete"
        if client_close.gave_up or upstream_close.gave_up:
            return broken or "complete"
        return self._first_to_end or broken or "complete"

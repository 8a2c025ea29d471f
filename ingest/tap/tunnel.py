"""What an exchange becomes after a 101: bytes both ways, of which nothing is read.

The rules: each side may end before the other (half-close), and the end is passed on; the tunnel is over when both have
ended, or when one connection breaks. Back-pressure is the connections' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.tap.client_connection import ClientConnection
    from ingest.tap.exchange import Exchange
    from ingest.tap.upstream_connection import UpstreamConnection


class Tunnel:
    """The two connections of an upgraded exchange."""

    def __init__(self, exchange: Exchange, client: ClientConnection, upstream: UpstreamConnection) -> None:
        self._exchange = exchange
        self._client = client
        self._upstream = upstream
        self._client_ended = False
        self._upstream_ended = False

    def client_data(self, data: bytes) -> None:
        """Bytes from the client."""
        self._exchange.request_bytes += len(data)
        if not self._upstream_ended:
            self._upstream.transport.write(data)

    def upstream_data(self, data: bytes) -> None:
        """Bytes from the upstream."""
        self._client.transport.write(data)
        self._exchange.response_bytes += len(data)
        self._exchange.written_bytes += len(data)

    def client_half_closed(self) -> None:
        """The client has sent its last byte."""
        self._client_ended = True
        if self._upstream_ended:
            self._exchange.tunnel_over(None)
        else:
            self._upstream.end_writing()

    def upstream_half_closed(self) -> bool:
        """The upstream has sent its last byte; True when the client may still send."""
        self._upstream_ended = True
        if self._client_ended:
            self._exchange.tunnel_over(None)
            return False
        self._client.end_writing()
        return True

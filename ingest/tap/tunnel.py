"""An upgraded exchange after the 101: bytes in both directions, not parsed.

Each side may end its direction first (half-close); the tunnel forwards this. The tunnel is over when both sides have ended or
one connection breaks. The connections handle back-pressure.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class TunnelEnd(Protocol):
    """One of the two connections."""

    transport: asyncio.Transport

    def end_writing(self) -> None: ...


class Tunnel:
    """The two directions of a tunnel and their byte counts."""

    def __init__(self, client: TunnelEnd, upstream: TunnelEnd) -> None:
        self._client = client
        self._upstream = upstream
        self._client_ended = False
        self._upstream_ended = False
        self.client_bytes = 0
        self.upstream_bytes = 0

    def client_data(self, data: bytes) -> None:
        self.client_bytes += len(data)
        if not self._upstream_ended:
            self._upstream.transport.write(data)

    def upstream_data(self, data: bytes) -> None:
        self.upstream_bytes += len(data)
        self._client.transport.write(data)

    def client_eof(self) -> bool:
        """The client ended its direction. True: the tunnel is over."""
        self._client_ended = True
        if not self._upstream_ended:
            self._upstream.end_writing()
        return self._upstream_ended

    def upstream_eof(self) -> bool:
        """The upstream ended its direction. True: the tunnel is over."""
        self._upstream_ended = True
        if not self._client_ended:
            self._client.end_writing()
        return self._client_ended

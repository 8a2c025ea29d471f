"""The two connections of an exchange, as it sees them. `connections` has the implementations."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from streamgauge.ingest.tap.http.error_responses import ErrorResponse

if TYPE_CHECKING:
    from streamgauge.ingest.tap.exchanges.exchange import Exchange


class Side:
    """A connection. Only `exchange.py` writes `exchange`."""

    transport: asyncio.Transport
    reading: asyncio.Transport
    """The TCP transport: reading is paused below TLS (see `tls`)."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.read_paused = False
        self.write_paused = False
        self.closed = False
        """The event loop has reported its end."""

    def pause_writing(self) -> None:
        """Called by the transport."""
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.on_full(self)

    def resume_writing(self) -> None:
        """Called by the transport."""
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.on_writable(self)

    def resume_after_full_read(self) -> None:
        """Read on, in the iteration after a read that filled the loop's buffer."""
        if not self.read_paused and not self.closed:
            self.reading.resume_reading()

    def pause_reading(self) -> None:
        if not self.read_paused and not self.closed:
            self.read_paused = True
            self.reading.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.closed:
            self.read_paused = False
            self.reading.resume_reading()

    def tcp_ends(self) -> None:
        """The peer has ended its direction or broken the connection. TLS, if it is used, has not reacted to it."""

    def end_writing(self) -> None:
        """Half-close (tunnels). Does nothing if the transport cannot."""
        # uvloop raises RuntimeError for a transport that is closing.
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            if self.transport.can_write_eof():
                self.transport.write_eof()


class ClientSide(Side):
    """The connection of a client. `draining`: its last exchange, until its response is delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.address = "unknown"
        self.scheme = "http"
        self.draining: Exchange | None = None
        self.last_byte_ns = 0
        self.ready_ns = 0
        """Since when the tap has been ready for the client's next byte."""

    def take_buffered(self) -> bytes:
        """Remove and return the bytes after the request: they belong to a tunnel."""
        raise NotImplementedError

    def exchange_ended(self, exchange: Exchange, now_ns: int, error: ErrorResponse | None, then: int) -> None:
        """Send the error response, if any. `then` says what happens to the connection (`states`)."""
        raise NotImplementedError


class UpstreamSide(Side):
    """A connection to an upstream. `reused`: it has served another exchange before."""

    def __init__(self) -> None:
        super().__init__()
        self.reused = False

    def abort(self) -> None:
        """Close at once and drop what is buffered."""
        if not self.closed:
            self.transport.abort()

    def close(self) -> None:
        """Close once the peer's kernel has what is buffered."""
        raise NotImplementedError

    def release(self) -> None:
        """Return the connection to its pool after a complete exchange."""
        raise NotImplementedError


class Pool:
    """The connections to one upstream."""

    def acquire(self) -> UpstreamSide | None:
        """The connection that was used last, if one is usable."""
        raise NotImplementedError

    def connect(self, exchange: Exchange) -> asyncio.Task[None]:
        """Open a connection for `exchange`. Cancel the task to give up."""
        raise NotImplementedError

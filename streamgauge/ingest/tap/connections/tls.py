"""TLS contexts of the tap, for https upstreams and for clients.

Upstream certificates are verified against the system's CAs, or only against the configured ones. ALPN offers HTTP/1.1 alone.

Back-pressure pauses the TCP transport below TLS, never TLS itself: uvloop 0.23 reads on below a paused TLS transport, and drops what
it has not delivered when TCP ends (its pull request 661). Bytes that wait in the kernel are not lost.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined] # its stubs omit the class

from streamgauge.ingest.tap import sockets
from streamgauge.ingest.tap.exchanges.sides import Side
from streamgauge.ingest.tap.options import TapOptions


class TlsLayer(SSLProtocol):  # type: ignore[misc]
    """TLS between a connection, the `user`, and its TCP transport. Further arguments as `SSLProtocol` has them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, user: Any, *args: Any, **options: Any) -> None:
        super().__init__(loop, user, *args, **options)
        self._user: Side | None = user

    def connection_made(self, transport: asyncio.Transport) -> None:
        assert self._user is not None
        self._user.reading = self._tcp = transport
        super().connection_made(transport)

    def eof_received(self) -> Any:
        if self._user is not None:
            self._user.tcp_ends()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        user, self._user = self._user, None
        if user is not None:
            user.tcp_ends()
        try:
            for data in sockets.unread(self._tcp, exc):
                self.get_buffer(len(data))[: len(data)] = data
                self.buffer_updated(len(data))
        finally:
            super().connection_lost(exc)


async def connect(
    loop: asyncio.AbstractEventLoop, user: Any, host: str, port: int, context: ssl.SSLContext | None
) -> None:
    """Connect `user`, a protocol and `Side`, over TCP or TLS. Raises OSError."""
    if context is None:
        await loop.create_connection(lambda: user, host, port)
        return
    secured = loop.create_future()
    layer = TlsLayer(loop, user, context, secured, server_side=False, server_hostname=host)
    transport, _ = await loop.create_connection(lambda: layer, host, port)
    try:
        await secured
    except BaseException:
        transport.abort()
        raise


def upstream_context(options: TapOptions) -> ssl.SSLContext:
    """The context for https upstreams. Raises ValueError with one line."""
    ca = options.upstream_ca
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca is not None else None)
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"{ca} is not a PEM file of CA certificates: {e}") from None
    _load(context, "upstream", options.upstream_cert, options.upstream_key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(options: TapOptions) -> ssl.SSLContext | None:
    """The context for clients, None for plain HTTP. Raises ValueError with one line."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, "tls", options.tls_cert, options.tls_key)
    context.set_alpn_protocols(["http/1.1"])
    return context if options.tls_cert is not None else None


def _load(context: ssl.SSLContext, flag: str, cert: Path | None, key: Path | None) -> None:
    """Load a certificate with its key, if there is one."""
    if cert is None:
        if key is not None:
            raise ValueError(f"--{flag}-key {key} has no certificate. Pass it with --{flag}-cert FILE.")
        return
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"{cert} has no usable certificate and key: {e}") from None

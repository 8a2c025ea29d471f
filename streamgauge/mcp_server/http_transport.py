"""Serve the tools over streamable HTTP at `/mcp`, until SIGTERM or SIGINT.

- Every request needs the bearer token, and must name an allowed host and origin (`streamgauge.ingest.allowed_hosts`).
- There are no sessions: each request stands for itself, so a client that leaves keeps nothing here.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from streamgauge.analytics.otlp_receiver.receiver_limits import ReceiverLimits
from streamgauge.ingest.addresses import bind, join_address, split_address
from streamgauge.ingest.allowed_hosts import AllowedHosts, AsgiApp, HostGate, Message, Receive, Send, refuse
from streamgauge.ingest.bearer_tokens import check_token
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.ready_file import remove_ready_file, write_ready_file

PATH = "/mcp"
MAX_BODY_BYTES = 256 * 1024
MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
MAX_CONNECTIONS = 64
STOP_WITHIN_S = 2
_UNAUTHORIZED = "request refused: it has no valid token. Send the header Authorization: Bearer TOKEN."


class TokenGate:
    """ASGI middleware that admits requests with `Authorization: Bearer TOKEN`."""

    def __init__(self, app: AsgiApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
                await refuse(scope, send, _UNAUTHORIZED, 401, (b"www-authenticate", b"Bearer"))
                return
        await self._app(scope, receive, send)


def gated(server: MCPServer[Any], token: str, hosts: AllowedHosts) -> AsgiApp:
    """The ASGI application behind both gates."""
    app: AsgiApp = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, max_request_body_size=MAX_BODY_BYTES,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # HostGate protects
    )  # fmt: skip
    return HostGate(TokenGate(app, token), hosts)


def serve(
    server: MCPServer[Any],
    *,
    listen: str,
    token: str | None,
    allowed_hosts: Iterable[str],
    data: Path,
    ready: Callable[[str], None],
) -> None:
    """Run until stopped. `listen`: HOST:PORT, port 0 any free port. `token` None: a random one. Clients read both from `run/mcp.json`.

    `ready` gets the URL. Raises ValueError for a token that is too short, OSError if it cannot listen.
    """
    check_token("--mcp-token", token)
    token = token or secrets.token_urlsafe(32)
    listener = bind(listen, flag="--mcp-listen")
    host, _ = split_address(listen)
    listener.listen(MAX_CONNECTIONS)
    limits = ReceiverLimits(max_connections=MAX_CONNECTIONS, max_bytes=MAX_BODIES_BYTES)
    config = uvicorn.Config(
        gated(server, token, AllowedHosts(allowed_hosts, listen_host=host)),
        log_config=None, log_level="warning", access_log=False, ws="none", proxy_headers=False, server_header=False,
        http=limits.connection,  # type: ignore[arg-type]  # any callable
        timeout_graceful_shutdown=STOP_WITHIN_S,
    )  # fmt: skip
    service = uvicorn.Server(config)
    url = f"http://{join_address(host, listener.getsockname()[1])}{PATH}"
    ready_file = data / "run" / "mcp.json"
    prepare_data_folder(data)  # a failed start creates nothing
    write_ready_file(ready_file, {"url": url, "token": token})
    try:
        ready(url)
        with _without_a_second_signal():
            service.run(sockets=[listener])
    finally:
        remove_ready_file(ready_file)
        listener.close()


@contextlib.contextmanager
def _without_a_second_signal() -> Iterator[None]:
    """uvicorn raises the signal that stopped it again when it has ended. Ignore it, so that the command ends cleanly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, lambda *_: None) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)

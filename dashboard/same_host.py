"""Give Streamlit a WebSocket's Host that equals its Origin, after `streamgauge.ingest.listening` has admitted both.

They differ behind a proxy that does not forward Host. Streamlit would then look up this machine's public address on the
internet to compare it with the Origin.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class SameHost:
    """ASGI middleware. HTTP requests pass unchanged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and (origin := Headers(scope=scope).get("origin")):
            headers = [(k, v) for k, v in scope["headers"] if k != b"host"]
            host = origin.partition("://")[2].encode("latin-1")
            scope = {**scope, "headers": [*headers, (b"host", host)]}
        await self._app(scope, receive, send)

"""What stands between the network and Streamlit: who may come in, and one correction to the page that is served.

- On the loopback nobody is asked. Elsewhere every request, WebSocket included, needs the token: given once as `?token=…`,
  kept in a cookie that scripts cannot read and other sites cannot use. The health check needs none.
- Tokens are compared in constant time; a wrong one gets 401 and words, nothing of the application.
- Streamlit's page guesses where its server is, and asks for `/streams/_stcore/health` on a deep link before it finds
  `/_stcore/health`: errors in every reader's console. The page is told instead.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "streamgauge_token"
COOKIE_AGE_S = 30 * 24 * 3600
OPEN_PATHS = frozenset({"/_stcore/health"})
FILE = "dashboard-token"
ROOT_SCRIPT = b"<script>window.__streamlit={BACKEND_BASE_URL:location.origin,MAIN_PAGE_BASE_URL:location.origin}</script>"
LARGEST_PAGE_BYTES = 1 << 20
WORDS = b"""<!doctype html><meta name="viewport" content="width=device-width"><title>Streamgauge</title>
<style>body{font:16px/1.5 sans-serif;max-width:34em;margin:4em auto;padding:0 1em;color-scheme:light dark}</style>
<h1>Streamgauge</h1><p>This dashboard listens on more than its own machine, so it wants its token.</p>
<form><label>Token <input name="token" type="password" autocomplete="current-password" autofocus></label>
<button>Open</button></form>
<p>The token stands in the file <code>dashboard-token</code> of the data folder, and in the address that the dashboard
printed when it started.</p>"""


def kept_token(data: Path) -> str:
    """The token of this data folder: read, or made and kept (0600). Raises OSError when it can be neither."""
    path = data / FILE
    if path.exists() and (found := path.read_text().strip()):
        return found
    made = secrets.token_urlsafe(24)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(made + "\n")
    return made


class Door:
    """ASGI middleware: lets in who has the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] not in ("http", "websocket")
            or scope["path"] in OPEN_PATHS
            or self._fits(_cookie(scope))
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._ask(scope, send)

    def _fits(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())

    async def _ask(self, scope: Scope, send: Send) -> None:
        """Take the token from the address and put it into a cookie, or ask for it."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = next((value for key, value in query if key == "token"), None)
        if scope["method"] != "GET" or not self._fits(given):
            await _respond(send, 401, [(b"content-type", b"text/html; charset=utf-8")], WORDS)
            return
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never another host's address
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={COOKIE_AGE_S}{secure}"
        location = path + (f"?{rest}" if rest else "")
        headers = [(b"location", location.encode("latin-1", "replace")), (b"set-cookie", cookie.encode())]
        await _respond(send, 303, headers, b"")


class RootGiven:
    """ASGI middleware: tells the page where its server is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not _wants_page(scope):
            await self._app(scope, receive, send)
            return
        plain = {
            **scope,
            "headers": [
                (k, v) for k, v in scope["headers"] if k not in (b"accept-encoding", b"if-none-match")
            ],
        }
        start: Message | None = None
        body = b""
        rewriting = False

        async def held(message: Message) -> None:
            nonlocal start, body, rewriting
            if message["type"] == "http.response.start":
                rewriting = _header(message["headers"], b"content-type").startswith(b"text/html")
                start = message
                if not rewriting:
                    await send(message)
                return
            if not rewriting or start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body") and len(body) < LARGEST_PAGE_BYTES:
                return
            rewriting = bool(
                message.get("more_body")
            )  # too large for a page of ours: the rest goes as it comes
            changed = body.replace(b"<head>", b"<head>" + ROOT_SCRIPT, 1)
            headers = [(k, v) for k, v in start["headers"] if k not in (b"content-length", b"etag")]
            await send({**start, "headers": headers})
            await send(
                {"type": "http.response.body", "body": changed, "more_body": message.get("more_body", False)}
            )
            rewriting = False

        await self._app(plain, receive, held)


def _wants_page(scope: Scope) -> bool:
    return b"text/html" in _header(scope["headers"], b"accept")


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key.lower() == name), b"")


def _cookie(scope: Scope) -> str | None:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(_header(scope["headers"], b"cookie").decode("latin-1"))
    except CookieError:
        return None
    return jar[COOKIE].value if COOKIE in jar else None


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": [*headers, *length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})

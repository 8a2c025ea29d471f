"""Authenticate requests with a token, before they reach Streamlit.

- Every HTTP request and WebSocket needs the token. The health check does not.
- A reader opens `?token=…` once. The gate moves the token into a cookie (HttpOnly, SameSite=Lax) and redirects.
- Tokens are compared in constant time. A wrong token gets status 401 and a form, nothing of the application.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "streamgauge_token"
COOKIE_AGE_S = 30 * 24 * 3600
OPEN_PATHS = frozenset({"/_stcore/health"})
TOKEN_FILE = "dashboard-token"  # noqa: S105 - a file name
FORM = b"""<!doctype html><meta name="viewport" content="width=device-width"><title>Streamgauge</title>
<style>body{font:16px/1.5 sans-serif;max-width:34em;margin:4em auto;padding:0 1em;color-scheme:light dark}</style>
<h1>Streamgauge</h1><p>This dashboard requires a token, because other machines can reach it.</p>
<form><label>Token <input name="token" type="password" autocomplete="current-password" autofocus></label>
<button>Open</button></form>
<p>The token is in the file <code>dashboard-token</code> of the data folder, and in the address that the dashboard printed
at its start.</p>"""


def stored_token(data: Path) -> str:
    """The token of a data folder. The first call creates it (mode 0600). Raises OSError."""
    path = data / TOKEN_FILE
    if path.exists() and (token := path.read_text().strip()):
        return token
    token = secrets.token_urlsafe(24)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(token + "\n")
    return token


class TokenGate:
    """ASGI middleware that admits requests with the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or scope["path"] in OPEN_PATHS or self._matches(_cookie(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._sign_in(scope, send)

    def _matches(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    async def _sign_in(self, scope: Scope, send: Send) -> None:
        """Move the token from the address to a cookie, or respond with the form."""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        token = next((value for key, value in query if key == "token"), None)
        if scope["method"] != "GET" or not self._matches(token):
            await _respond(send, 401, [(b"content-type", b"text/html; charset=utf-8")], FORM)
            return
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # "//host" would redirect to another host
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={COOKIE_AGE_S}{secure}"
        location = path + (f"?{rest}" if rest else "")
        headers = [(b"location", location.encode("latin-1", "replace")), (b"set-cookie", cookie.encode())]
        await _respond(send, 303, headers, b"")


def _cookie(scope: Scope) -> str | None:
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return None
    return cookies[COOKIE].value if COOKIE in cookies else None


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": [*headers, *length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})

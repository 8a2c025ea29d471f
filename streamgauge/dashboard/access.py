"""Who may open the dashboard: readers with a token, or readers who sign in with an OpenID Connect provider.

A token:
- Every HTTP request and WebSocket needs it. The health check does not.
- A reader opens `?token=…` once. The gate moves the token into a cookie (HttpOnly, SameSite=Lax) and redirects.
- Tokens are compared in constant time. A wrong token gets status 401 and a form, nothing of the application.

A provider:
- `--dashboard-oidc FILE` names a TOML file with Streamlit's `[auth]` table and `[streamgauge] admit = […]`: the addresses
  ("ann@example.com") and domains ("@example.com") that may see the dashboard. Without `admit`, the provider alone decides.
- An address that the provider reports as unverified is not admitted.
- The pages run, and read data, only after a reader is admitted.
"""

from __future__ import annotations

import hmac
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from streamgauge.analytics.extras import missing_package
from streamgauge.analytics.reports import formatting
from streamgauge.ingest.listening import parse_allowed_host
from streamgauge.ingest.private_files import write_private

COOKIE = "streamgauge_token"
COOKIE_AGE_S = 30 * 24 * 3600
OPEN_PATHS = frozenset({"/_stcore/health"})
TOKEN_FILE = "dashboard-token"  # noqa: S105 - a file name
REQUIRED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
MIN_SECRET_CHARS = 16
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
    write_private(path, f"{token}\n".encode())
    return token


class TokenGate:
    """ASGI middleware that admits requests with the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Streamlit also gets events of the server, such as its start (`lifespan`).
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or scope["path"] in OPEN_PATHS or self._matches(_cookie(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # A close before the connection is accepted: the server answers the upgrade with status 403.
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._sign_in(scope, send)

    def _matches(self, token: str | None) -> bool:
        # The time of `==` depends on the first different character, which would reveal a token step by step.
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
    # A stored form would be shown again after the reader has the cookie.
    length = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": [*headers, *length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


class SameHost:
    """ASGI middleware that gives a WebSocket the Host of its Origin, after `streamgauge.ingest.listening` has admitted both.

    They differ behind a proxy that does not forward Host. Streamlit would then look up this machine's public address on the
    internet to compare it with the Origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and (origin := Headers(scope=scope).get("origin")):
            headers = [(k, v) for k, v in scope["headers"] if k != b"host"]
            host = origin.partition("://")[2].encode("latin-1")
            scope = {**scope, "headers": [*headers, (b"host", host)]}
        await self._app(scope, receive, send)


def is_admitted(user: Mapping[str, Any], admit: Sequence[str]) -> bool:
    """Whether a signed-in user may see the dashboard."""
    if not admit:
        return True
    # A provider that lets users write any address into their profile says so by `email_verified`. Without it, it vouches.
    email = str(user.get("email") or "").lower()
    if "@" not in email or user.get("email_verified") is False:
        return False
    admitted = {str(entry).lower() for entry in admit}
    return email in admitted or "@" + email.rpartition("@")[2] in admitted


def check_file(path: Path) -> str:
    """The dashboard's public host, from `redirect_uri`. Raises OSError with a one-line message if the file is not usable."""

    def invalid(why: str) -> OSError:
        return OSError(f"invalid {path}: {why} (--dashboard-oidc).")

    try:
        config = tomllib.loads(path.read_text())
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}. Check --dashboard-oidc.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OSError(f"cannot read {path}: not valid TOML: {error}. Check --dashboard-oidc.") from None
    auth = config.get("auth")
    auth = auth if isinstance(auth, dict) else {}
    missing = [name for name in REQUIRED if not isinstance(auth.get(name), str) or not auth[name]]
    if missing:
        raise invalid(f"[auth] lacks {', '.join(missing)}. Add them")
    if len(auth["cookie_secret"]) < MIN_SECRET_CHARS:
        raise invalid(f"cookie_secret is too short. Use at least {MIN_SECRET_CHARS} characters")
    table = config.get("streamgauge", {})
    admit = table.get("admit", []) if isinstance(table, dict) else None
    if not isinstance(admit, list) or not all(isinstance(a, str) and "@" in a for a in admit):
        raise invalid("admit in [streamgauge] must be a list of addresses and @domains")
    try:
        public_host = parse_allowed_host(urlsplit(auth["redirect_uri"]).hostname or "")
    except ValueError:
        raise invalid("redirect_uri in [auth] is not a URL of the dashboard") from None
    if find_spec("authlib") is None:
        raise OSError(f"cannot use --dashboard-oidc: {missing_package('authlib')}")
    return public_host


def require_login() -> None:
    """Return for a signed-in, admitted reader. Otherwise show the sign-in page and stop the script."""
    import streamlit as st  # takes a second, which `launch` saves if the file of the provider is not usable

    admit = list(st.secrets.get("streamgauge", {}).get("admit", []))
    if not st.user.get("is_logged_in"):
        st.title("Streamgauge", anchor=False)
        st.markdown("Sign in to see this dashboard.")
        st.button("Sign in", icon=":material/login:", type="primary", on_click=st.login)
        st.stop()
    user_name = formatting.markdown(str(st.user.get("email") or st.user.get("name") or "your account"))
    if not is_admitted(st.user, admit):
        st.title("Streamgauge", anchor=False)
        st.error(f"{user_name} is not allowed to see this dashboard.", icon=":material/lock:")
        st.button("Sign out", icon=":material/logout:", on_click=st.logout)
        st.stop()
    with st.sidebar.container(horizontal=True, vertical_alignment="center"):
        st.caption(user_name)
        st.button("Sign out", type="tertiary", on_click=st.logout)

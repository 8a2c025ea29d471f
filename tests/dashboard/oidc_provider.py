"""An OpenID Connect provider with one user: discovery, keys, authorization code, signed id token.

It admits every sign-in. The token is signed with the published key, and a code works once, for its own redirect.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.deadline import DEADLINE_S
from tests.ports import free_port


class Provider:
    """The endpoints, for a user with the address `email`."""

    def __init__(self, url: str, email: str) -> None:
        # A dependency of Authlib, which is optional.
        self._jwt: Any = import_module("joserfc.jwt")
        self._key: Any = import_module("joserfc.jwk").RSAKey.generate_key(2048, {"kid": "one"})
        self._url = url
        self.email = email
        self._requests: dict[str, dict[str, str]] = {}
        self.signed_in = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.discovery),
                Route("/jwks", self.keys),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
            ]
        )

    async def discovery(self, request: Request) -> Response:
        endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        return JSONResponse(
            {name: f"{self._url}/{path}" for name, path in endpoints.items()}
            | {
                "issuer": self._url,
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def keys(self, request: Request) -> Response:
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})

    async def authorize(self, request: Request) -> Response:
        authorization = dict(request.query_params)
        code = secrets.token_urlsafe(16)
        self._requests[code] = authorization
        return RedirectResponse(
            f"{authorization['redirect_uri']}?{urlencode({'code': code, 'state': authorization['state']})}"
        )

    async def token(self, request: Request) -> Response:
        form = await request.form()
        authorization = self._requests.pop(str(form.get("code")), None)
        if authorization is None or form.get("redirect_uri") != authorization["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self._url, "sub": "1", "aud": authorization["client_id"], "iat": now, "exp": now + 600,
            "nonce": authorization.get("nonce"),
            "email": self.email, "email_verified": True,
        }  # fmt: skip
        self.signed_in += 1
        signed = self._jwt.encode({"alg": "RS256", "kid": "one"}, claims, self._key)
        return JSONResponse(
            {
                "access_token": secrets.token_urlsafe(8),
                "token_type": "Bearer",
                "expires_in": 600,
                "id_token": signed,
            }
        )


@contextlib.contextmanager
def provider(email: str) -> Iterator[tuple[str, Provider]]:
    """Run the provider on the loopback; yields (address, provider)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    oidc = Provider(url, email)
    server = uvicorn.Server(uvicorn.Config(oidc.app(), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield url, oidc
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)

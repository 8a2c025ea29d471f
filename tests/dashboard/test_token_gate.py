"""Requests and WebSockets need the token, except the health check."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from streamgauge.dashboard.access import COOKIE, TokenGate


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse("<html><head><title>x</title></head></html>")


async def data(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.headers.get("accept-encoding", "none"))


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def inner() -> Starlette:
    return Starlette(
        routes=[Route("/", page), Route("/streams", page), Route("/data", data), Route("/_stcore/health", data),
                WebSocketRoute("/_stcore/stream", talk)]
    )  # fmt: skip


@pytest.fixture
def outside() -> TestClient:
    return TestClient(TokenGate(inner(), "s3cret"), follow_redirects=False)


def test_without_token_only_the_form_is_served(outside: TestClient) -> None:
    for path in ("/", "/data", "/streams?id=1", "/?token=wrong", "/?token="):
        answer = outside.get(path)
        assert answer.status_code == 401
        assert "dashboard-token" in answer.text
        assert "set-cookie" not in answer.headers
    assert outside.post("/?token=s3cret").status_code == 401


def test_health_check_needs_no_token(outside: TestClient) -> None:
    assert outside.get("/_stcore/health").status_code == 200


def test_token_moves_from_address_to_cookie(outside: TestClient) -> None:
    answer = outside.get("/streams?range=6h&token=s3cret&model=a%26b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/streams?range=6h&model=a%26b"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert outside.get("/streams").status_code == 200  # with the cookie


def test_redirect_stays_on_this_host(outside: TestClient) -> None:
    answer = outside.get("//evil.example/?token=s3cret")
    assert answer.status_code == 303
    assert not answer.headers["location"].startswith(("//", "http"))


def test_websocket_needs_the_token(outside: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), outside.websocket_connect("/_stcore/stream"):
        pass
    with outside.websocket_connect("/_stcore/stream", headers={"cookie": f"{COOKIE}=s3cret"}) as socket:
        assert socket.receive_text() == "hello"


def test_invalid_cookie_is_rejected(outside: TestClient) -> None:
    invalid = f"{COOKIE}=\xff; ;;=; {COOKIE}".encode("latin-1")
    assert outside.get("/", headers={b"cookie": invalid}).status_code == 401


def test_lifespan_messages_pass() -> None:
    passed: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    import asyncio

    asyncio.run(TokenGate(app, "t")({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert passed == ["lifespan"]

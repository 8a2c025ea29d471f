"""Who comes in: nobody without the token, everybody with it; and the page is told where its server is."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from dashboard.token_gate import COOKIE, Door, RootGiven


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
    return TestClient(Door(inner(), "s3cret"), follow_redirects=False)


def test_without_the_token_there_is_only_the_question(outside: TestClient) -> None:
    for path in ("/", "/data", "/streams?id=1", "/?token=wrong", "/?token="):
        answer = outside.get(path)
        assert answer.status_code == 401
        assert "dashboard-token" in answer.text
        assert "set-cookie" not in answer.headers
    assert outside.post("/?token=s3cret").status_code == 401


def test_the_health_check_is_open(outside: TestClient) -> None:
    assert outside.get("/_stcore/health").status_code == 200


def test_the_token_of_the_address_becomes_a_cookie_and_leaves_the_address(outside: TestClient) -> None:
    answer = outside.get("/streams?range=6h&token=s3cret&model=a%26b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/streams?range=6h&model=a%26b"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert outside.get("/streams").status_code == 200  # the client kept the cookie


def test_a_redirect_never_leaves_this_host(outside: TestClient) -> None:
    answer = outside.get("//evil.example/?token=s3cret")
    assert answer.status_code == 303
    assert not answer.headers["location"].startswith(("//", "http"))


def test_a_websocket_needs_the_token_too(outside: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), outside.websocket_connect("/_stcore/stream"):
        pass
    with outside.websocket_connect("/_stcore/stream", headers={"cookie": f"{COOKIE}=s3cret"}) as socket:
        assert socket.receive_text() == "hello"


def test_garbage_for_a_cookie_is_no_token(outside: TestClient) -> None:
    garbage = f"{COOKIE}=\xff; ;;=; {COOKIE}".encode("latin-1")
    assert outside.get("/", headers={b"cookie": garbage}).status_code == 401


def test_a_page_is_told_its_root_and_other_answers_are_left_alone() -> None:
    client = TestClient(RootGiven(inner()))
    told = client.get("/streams", headers={"accept": "text/html"})
    assert "<head><script>window.__streamlit={BACKEND_BASE_URL" in told.text
    assert "content-length" not in told.headers or int(told.headers["content-length"]) == len(told.content)
    assert client.get("/data", headers={"accept": "*/*", "accept-encoding": "br"}).text == "br"


def test_what_is_neither_http_nor_websocket_passes() -> None:
    passed: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    import asyncio

    asyncio.run(Door(app, "t")({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert passed == ["lifespan"]

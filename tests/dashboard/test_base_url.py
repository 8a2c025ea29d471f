"""The server address is set in HTML pages; other responses are unchanged."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dashboard.base_url import BaseUrl


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse("<html><head><title>x</title></head></html>")


async def data(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.headers.get("accept-encoding", "none"))


def test_script_is_inserted_into_pages_only() -> None:
    client = TestClient(BaseUrl(Starlette(routes=[Route("/streams", page), Route("/data", data)])))
    response = client.get("/streams", headers={"accept": "text/html"})
    assert "<head><script>window.__streamlit={BACKEND_BASE_URL" in response.text
    assert "content-length" not in response.headers or int(response.headers["content-length"]) == len(
        response.content
    )
    assert client.get("/data", headers={"accept": "*/*", "accept-encoding": "br"}).text == "br"

"""The server address and the CSS are set in HTML pages; other responses are unchanged."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from streamgauge.dashboard.page_head import PageHead


async def page(request: Request) -> HTMLResponse:
    return HTMLResponse("<html><head><title>x</title></head><body></body></html>")


async def data(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.headers.get("accept-encoding", "none"))


def test_address_and_css_are_inserted_into_pages_only() -> None:
    client = TestClient(PageHead(Starlette(routes=[Route("/streams", page), Route("/data", data)])))
    response = client.get("/streams", headers={"accept": "text/html"})
    assert "<head><script>window.__streamlit={BACKEND_BASE_URL" in response.text
    assert "</script></body></html>" in response.text
    assert "<body><style>" in response.text
    assert "content-length" not in response.headers or int(response.headers["content-length"]) == len(
        response.content
    )
    assert client.get("/data", headers={"accept": "*/*", "accept-encoding": "br"}).text == "br"

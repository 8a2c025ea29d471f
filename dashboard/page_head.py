"""Insert the server address, the page CSS and the sidebar script into Streamlit's page.

- Without the address the page probes addresses: on a deep link it requests `/streams/_stcore/health` before `/_stcore/health`,
  which logs errors in the browser console.
- CSS that a script draws arrives after the first elements, so they would shift.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamgauge.dashboard import css, page_links, preloads

ADDRESS = "<script>window.__streamlit={BACKEND_BASE_URL:location.origin,MAIN_PAGE_BASE_URL:location.origin}</script>"
HEAD = ADDRESS.encode()
BODY_END = f"{css.STYLE}{css.COLLAPSE_SIDEBAR}{page_links.SCRIPT}{preloads.preloads()}".encode()
"""At the end of the body: rules of the same specificity win over Streamlit's, which are in the head."""
MAX_PAGE_BYTES = 1 << 20
"""At most this much of a page is buffered to insert the text. The rest passes through unchanged."""


class PageHead:
    """ASGI middleware that inserts `HEAD` and `BODY_END` into HTML pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["method"] != "GET"
            or "text/html" not in Headers(scope=scope).get("accept", "")
        ):
            await self._app(scope, receive, send)
            return
        # The page must arrive uncompressed, and never as "304 Not Modified".
        excluded = (b"accept-encoding", b"if-none-match")
        scope = {**scope, "headers": [(k, v) for k, v in scope["headers"] if k not in excluded]}
        start: Message | None = None
        """The start message of a page whose body is being buffered."""
        body = b""

        async def rewrite(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                content_type = Headers(raw=message["headers"]).get("content-type", "")
                if content_type.startswith("text/html"):
                    start = message
                    return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            more_body = message.get("more_body", False)
            if more_body and len(body) < MAX_PAGE_BYTES:
                return
            page = body.replace(b"<head>", b"<head>" + HEAD, 1).replace(b"</body>", BODY_END + b"</body>", 1)
            headers = [(k, v) for k, v in start["headers"] if k not in (b"content-length", b"etag")]
            await send({**start, "headers": headers})
            await send({"type": "http.response.body", "body": page, "more_body": more_body})
            start = None

        await self._app(scope, receive, rewrite)

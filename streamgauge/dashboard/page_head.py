"""What the dashboard adds to Streamlit's HTML page: the server address, styles, the script of links and sidebar, and preloads.

A page gets them from the server and not from its script, whose elements arrive after the first ones and would shift them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import streamlit as st
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamgauge.dashboard.charts.drawing import RESERVED_HEIGHTS

ADDRESS = "<script>window.__streamlit={BACKEND_BASE_URL:location.origin,MAIN_PAGE_BASE_URL:location.origin}</script>"
"""Without it the page probes addresses: a deep link requests `/streams/_stcore/health` first, which logs errors in the browser."""
MAX_PAGE_BYTES = 1 << 20
"""At most this much of a page is buffered to insert the text. The rest passes through unchanged."""
HERE = Path(__file__).parent
PAGES = "pages"
"""Key of the session state → address of a page → what links to it need."""

ELEMENTS = ("Selectbox", "Multiselect", "Checkbox", "Html", "PageLink", "Metric", "ButtonGroup", "Button", "TextInput",
            "ArrowVegaLiteChart", "embed", "BidiComponent")  # fmt: skip
"""Streamlit's names of the elements of most pages, in the order of their appearance. Unknown names are skipped.

Streamlit loads the code of an element when it first draws one. A placeholder of another height takes its place for that time, so
all elements below it would shift.
"""
ICON_FONT = "MaterialSymbols-Rounded"
STATIC = Path(st.__file__).parent / "static" / "static"
_IMPORT = re.compile(r'(?:from|import)"\./([^"]+\.js)"')

WIDTHS_PX = range(200, 1601, 50)
"""The widths of the box of a table at which columns can disappear or rows can become blocks."""
STACKED_BELOW_PX = 650
"""Wider boxes never show rows as blocks: they hide columns instead."""
SIGNS_BELOW_PX = 450
"""Narrower boxes show only the sign of an outcome."""
# A media query cannot compare with a sum of column widths, so there is one rule per step of `WIDTHS_PX`, and each table names the
# steps of its own columns by class.
_HIDING = "".join(
    f"@container sg-table (max-width:{width - 1}px){{.sg-from-{width}{{display:none!important}}"
    f".sg-note .sg-until-{width}{{display:inline}}}}"
    for width in WIDTHS_PX
)
_SIGNS = (
    f"@container sg-table (max-width:{SIGNS_BELOW_PX - 1}px){{"
    ".sg-table .sg-sign span{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}}"
)
_BLOCKS = "".join(
    f"@container sg-table (max-width:{width - 1}px){{"
    f".sg-rows-from-{width},.sg-rows-from-{width} tbody{{display:block}}"
    f".sg-rows-from-{width} thead{{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}}"
    f".sg-rows-from-{width} tr{{display:block;padding:.4em 0}}"
    f".sg-table .sg-rows-from-{width} :is(td,th[scope=row]){{display:flex!important;justify-content:space-between;gap:1em;"
    "border:0;padding:.1em .4em;min-width:0!important;text-align:right}"
    f".sg-rows-from-{width}+.sg-note{{display:none}}"
    f".sg-rows-from-{width} tbody tr{{border-bottom:1px solid var(--line)}}"
    f".sg-rows-from-{width} [data-heading]::before{{content:attr(data-heading);opacity:.75;font-weight:400;text-align:left;"
    "overflow-wrap:normal}}"
    for width in WIDTHS_PX
    if width <= STACKED_BELOW_PX
)


def draw_hidden() -> None:
    """Draw one of each element without a fixed height in a hidden container, before the queries of the page run.

    The placeholder appears even if the browser has the code of an element, unless the page has drawn one before.
    """
    with st.sidebar, st.container(key="preloaded"):  # page.css hides it
        st.html("<i></i>")
        st.metric("-", "-")
        st.page_link(st.session_state[PAGES]["overview"])


def preloads(static: Path = STATIC) -> str:
    """Links and a script that load the code of `ELEMENTS` and the icons. `static` has the folders `js` and `media`."""
    scripts, fonts = (sorted(file.name for file in (static / folder).glob("*")) for folder in ("js", "media"))
    elements = [name for element in ELEMENTS for name in scripts if name.startswith(f"{element}.")]
    links = [
        f'<link rel=preload as=font type=font/woff2 crossorigin href="/static/media/{name}">'
        for name in fonts
        if name.startswith(f"{ICON_FONT}.")
    ]
    links += [
        f'<link rel=modulepreload crossorigin href="/static/js/{name}">'
        for name in _imported(static, elements)
    ]
    run = f"for(const name of {json.dumps(elements)})import(`/static/js/${{name}}`)"
    return f"{''.join(links)}<script type=module>{run}</script>"


def _imported(static: Path, names: list[str]) -> list[str]:
    """The names and all that they import, without what the page loads itself."""
    loaded = set(re.findall(r'static/js/([^"]+\.js)', (static.parent / "index.html").read_text()))
    found: dict[str, None] = {}
    waiting = names[::-1]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in loaded:
            found[name] = None
            waiting += _IMPORT.findall((static / "js" / name).read_text())[::-1]
    return list(found)


HEAD = ADDRESS.encode()
STYLE = f"{(HERE / 'page.css').read_text()}{RESERVED_HEIGHTS}{_HIDING}{_SIGNS}{_BLOCKS}"
BODY_END = f"<style>{STYLE}</style><script>{(HERE / 'page.js').read_text()}</script>{preloads()}".encode()


class PageHead:
    """ASGI middleware that inserts `HEAD` and `BODY_END` into HTML pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepts = Headers(scope=scope).get("accept", "") if scope["type"] == "http" else ""
        if scope.get("method") != "GET" or "text/html" not in accepts:
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
            # The texts to replace are at both ends of the page, so it is complete before it is sent.
            if more_body and len(body) < MAX_PAGE_BYTES:
                return
            page = body.replace(b"<head>", b"<head>" + HEAD, 1).replace(b"</body>", BODY_END + b"</body>", 1)
            # The body has another length and content than the validators of the file say.
            headers = [(k, v) for k, v in start["headers"] if k not in (b"content-length", b"etag")]
            await send({**start, "headers": headers})
            await send({"type": "http.response.body", "body": page, "more_body": more_body})
            start = None

        await self._app(scope, receive, rewrite)

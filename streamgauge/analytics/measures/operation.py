"""The operation of a request (`gen_ai.operation.name`): by its path, side calls of agents, and what is no request of an API.

Coding agents send their tools with each request of a conversation, and none with titles, summaries, routers and warm-ups.
"""

from __future__ import annotations

import re
from functools import lru_cache

from streamgauge.analytics.schema.dimensions import COUNT_TOKENS, INFERENCE, MCP, MEDIA, WEBSOCKET
from streamgauge.ingest.records import Opened, ResponseHeaders

_ENDS = {
    COUNT_TOKENS: ("/messages/count_tokens", "/responses/input_tokens", ":counttokens"),
    "chat": (
        "/chat/completions", "/responses", "/messages", "/chat", "/converse", "/converse-stream", "/invoke-with-response-stream",
    ),
    "text_completion": ("/completions", "/complete", "/generate", "/generate_stream"),
    "embeddings": ("/embeddings", "/embed", ":embedcontent", ":batchembedcontents"),
    "rerank": ("/rerank",),
    "moderation": ("/moderations",),
    "generate_content": (
        ":generatecontent", ":streamgeneratecontent", "bidigeneratecontent", "bidigeneratecontentconstrained", "/realtime",
        "/live/sessions", *MEDIA,
    ),
}  # fmt: skip
"""Operation → ends of its paths. The first match counts: `/chat/completions` before `/completions`."""


@lru_cache(4096)
def operation_of(path: str) -> str | None:
    """None if the path belongs to no known API."""
    bare = path.partition("?")[0].rstrip("/").lower()
    return next((operation for operation, ends in _ENDS.items() if bare.endswith(ends)), None)


_PAGE_PATH = re.compile(
    r"^/*$|\.(?:css|gif|html?|ico|jpe?g|js|map|mjs|otf|png|svg|ttf|webmanifest|webp|woff2?)$"
)
_PAGE_TYPE = re.compile("text/(?:html|css|javascript)|application/javascript|image/|font/")


def is_web(opened: Opened, response: ResponseHeaders | None, dialect: str | None) -> bool:
    """Whether it is no request of an API: a `HEAD`, a CORS preflight, or the `GET` of a page or of a file that a page shows.

    An error page shows no page that was asked for: gateways answer requests of an API with one, too.
    """
    if opened.method in ("HEAD", "OPTIONS"):
        return True
    if (
        opened.method != "GET"
        or dialect == MCP
        or opened.asks_for_websocket
        or opened.connection_id is not None
    ):
        return False
    kind = dict(response.headers).get("content-type", "").lower() if response is not None else ""
    if _PAGE_PATH.search(opened.path.lower()):
        return not kind.startswith("text/event-stream")
    return response is not None and response.status < 400 and _PAGE_TYPE.match(kind) is not None


def transport_of(opened: Opened, response: ResponseHeaders | None) -> str:
    """`streams.transport`."""
    switched = response is not None and response.status == 101 and opened.asks_for_websocket
    return WEBSOCKET if switched or opened.connection_id is not None else "http"


def is_websocket(opened: Opened | None, response: ResponseHeaders | None) -> bool:
    """Whether a stream is a WebSocket itself, not one of its answers."""
    return opened is not None and opened.connection_id is None and transport_of(opened, response) == WEBSOCKET


_AGENTS = ("claude-cli/", "codex", "geminicli", "opencode/", "qwencode/")
"""Starts of `client_app`, in lower case."""


def is_agent(client_app: str | None) -> bool:
    """Whether the program is a coding agent."""
    return (client_app or "").lower().startswith(_AGENTS)


def is_side_call(operation: str | None, client_app: str | None, has_tools: bool | None) -> bool:
    """Whether a request of an agent belongs to none of its conversations."""
    return has_tools is False and operation in INFERENCE and is_agent(client_app)

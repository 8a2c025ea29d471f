"""Entries of HAR files as browsers and proxies write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.analytics.log_entries import chunk, ending

STARTED = "2026-03-01T12:00:00.250Z"
STARTED_NS = 1_772_366_400_250_000_000
BODY = (chunk("Hel") + chunk("lo") + ending(tokens=20)).decode()
URL = "https://api.openai.com/v1/chat/completions"
REQUEST = {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
TIMINGS = {"blocked": 1, "dns": -1, "connect": 9, "ssl": 5, "send": 10, "wait": 180, "receive": 800}


def fields(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def entry(
    *, content: dict[str, Any] | None = None, status: int = 200, kind: str = "text/event-stream", **more: Any
) -> dict[str, Any]:
    """A streamed answer that took 1 s, its head 0.2 s."""
    text = {"size": len(BODY), "mimeType": kind, "text": BODY}
    return {
        "startedDateTime": STARTED,
        "time": 1000,
        "request": {
            "method": "POST", "url": URL, "headers": fields(("Content-Type", "application/json")),
            "postData": {"mimeType": "application/json", "text": json.dumps(REQUEST)},
        },
        "response": {
            "status": status, "headers": fields(("content-type", kind), ("content-encoding", "br")),
            "content": text if content is None else content,
        },
        "timings": TIMINGS,
        **more,
    }  # fmt: skip


def socket_entry(messages: Sequence[str]) -> dict[str, Any]:
    """A WebSocket as Chrome writes it: a message each second, of the client and the server by turns."""
    found = entry(status=101, kind="", content={"size": 0, "mimeType": "x-unknown"})
    found["request"] |= {"method": "GET", "url": "wss://api.openai.com/v1/responses", "postData": {}}
    found["response"]["headers"] = fields(("Sec-WebSocket-Extensions", "permessage-deflate"))
    found["_webSocketMessages"] = [
        {
            "type": "receive" if at % 2 else "send",
            "time": STARTED_NS / 1e9 + at + 1,
            "opcode": 1,
            "data": data,
        }
        for at, data in enumerate(messages)
    ]
    return found


def har(*entries: Any) -> str:
    return json.dumps(
        {"log": {"version": "1.2", "creator": {"name": '"entries": ['}, "entries": entries}}, indent=1
    )

"""Allow-list of attributes of received spans. Other attributes can contain prompts and responses.

Rules
1. A key is kept only if it is in `KEYS`: names, sizes, settings, addresses and kinds from the GenAI, HTTP and server
   conventions, old and new. Messages, prompts, tool arguments, headers and whole URLs are not in it.
2. A value is a number, a boolean, a word, or a list of up to `MAX_WORDS` words. A word has no whitespace and at most
   `MAX_WORD_CHARS` characters. Longer values and text are dropped. Paths lose their query.
"""

from __future__ import annotations

import re
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from analytics.telemetry.semconv import WITHOUT_CONTENT

MAX_WORD_CHARS = 200
MAX_NAME_CHARS = 200
MAX_WORDS = 16

_PATHS = frozenset({"url.path", "http.target", "http.route"})
KEYS = _PATHS | WITHOUT_CONTENT | {
    "error.type", "http.method", "http.request.body.size", "http.request.method", "http.request.resend_count",
    "http.response.body.size", "http.response.status_code", "http.status_code", "net.peer.name", "net.peer.port",
    "network.protocol.name", "network.protocol.version", "rpc.grpc.status_code", "rpc.method", "rpc.service", "rpc.system",
    "server.address", "server.port", "url.scheme",
}  # fmt: skip
"""Kept attribute keys. `service.name` and `otel.scope.name` come from the resource and the scope."""

_WORD = re.compile(r"[^\s\x00-\x1f\x7f]*")


def kept_value(key: str, value: AnyValue) -> Any:
    """The stored value of an attribute, None if it is dropped."""
    if key not in KEYS:
        return None
    kind = value.WhichOneof("value")
    if kind == "string_value":
        text = value.string_value
        return word(text.split("?", 1)[0] if key in _PATHS else text)
    if kind in ("int_value", "double_value", "bool_value"):
        return getattr(value, kind)
    if kind == "array_value":
        found = [one.string_value for one in value.array_value.values[:MAX_WORDS]]
        return found if all(word(text) for text in found) else None
    return None


def word(text: str) -> str | None:
    """The text if it is a word, else None."""
    return text if 0 < len(text) <= MAX_WORD_CHARS and _WORD.fullmatch(text) else None


def name(text: str) -> str:
    """A name of a span, service or scope: one line, cut at a question mark and at `MAX_NAME_CHARS`."""
    return " ".join(text.split("?", 1)[0][: 4 * MAX_NAME_CHARS].split())[:MAX_NAME_CHARS]

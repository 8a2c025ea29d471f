"""What of a received span's attributes is kept: an allow-list, for whoever tells of a request may tell what was said in it.

Rules
1. A key is kept only if it is on `KEYS`: names, sizes, settings, addresses and kinds, by the conventions of GenAI, HTTP and
   servers, old names and new. No key of messages, prompts, tool arguments, headers or whole URLs is on it.
2. A value is a number, a flag, a word, or a few words. A word has no blank and at most `MAX_WORD_CHARS` characters: what is
   longer or has blanks is no name of anything, and goes. Of a path the query goes.
3. What was left out is counted, never told.
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
KEYS = _PATHS | {
    *WITHOUT_CONTENT,
    "error.type",
    "http.method",
    "http.request.body.size",
    "http.request.method",
    "http.request.resend_count",
    "http.response.body.size",
    "http.response.status_code",
    "http.status_code",
    "net.peer.name",
    "net.peer.port",
    "network.protocol.name",
    "network.protocol.version",
    "rpc.grpc.status_code",
    "rpc.method",
    "rpc.service",
    "rpc.system",
    "server.address",
    "server.port",
    "url.scheme",
}
"""Keys of attributes that are kept; besides, `service.name` and `otel.scope.name` are taken from where they belong."""

_WORD = re.compile(r"[^\s\x00-\x1f\x7f]*")


def kept(key: str, value: AnyValue) -> Any:
    """The value as it is kept; None where it is not."""
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
    """The text, if it can be the name of something."""
    return text if 0 < len(text) <= MAX_WORD_CHARS and _WORD.fullmatch(text) else None


def name(text: str) -> str:
    """A span's, service's or scope's name: a few words of one line, without what follows a question mark."""
    return " ".join(text.split("?", 1)[0][: 4 * MAX_NAME_CHARS].split())[:MAX_NAME_CHARS]

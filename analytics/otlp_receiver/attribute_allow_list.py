"""Allow-list of attributes of received spans. Other attributes can contain prompts and responses.

Rules
1. A key is kept only if it is in `KEYS`: names, sizes, settings, addresses and kinds from the GenAI, HTTP and server
   conventions, old and new. Messages, prompts, tool arguments, headers and whole URLs are not in it.
2. A value is a number, a boolean, an identifier, or a list of up to `MAX_WORDS` names. Text is hashed and paths lose their
   secrets, as in `streamgauge.ingest.identifiers`.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from streamgauge.analytics.telemetry.semconv import WITHOUT_CONTENT
from streamgauge.ingest import identifiers

MAX_WORDS = 16

_PATHS = frozenset({"url.path", "http.target", "http.route"})
KEYS = _PATHS | WITHOUT_CONTENT | {
    "error.type", "http.method", "http.request.body.size", "http.request.method", "http.request.resend_count",
    "http.response.body.size", "http.response.status_code", "http.status_code", "net.peer.name", "net.peer.port",
    "network.protocol.name", "network.protocol.version", "rpc.grpc.status_code", "rpc.method", "rpc.service", "rpc.system",
    "server.address", "server.port", "url.scheme",
}  # fmt: skip
"""Kept attribute keys. `service.name` and `otel.scope.name` come from the resource and the scope."""


def kept_value(key: str, value: AnyValue) -> Any:
    """The stored value of an attribute, None if it is dropped."""
    if key not in KEYS:
        return None
    kind = value.WhichOneof("value")
    if kind == "string_value":
        text = value.string_value
        if key in _PATHS:
            return identifiers.path(text).partition("?")[0] or None
        return identifiers.identifier(text) if key.endswith(".id") else identifiers.name(text)
    if kind in ("int_value", "double_value", "bool_value"):
        return getattr(value, kind)
    if kind == "array_value":
        found = [identifiers.name(one.string_value) for one in value.array_value.values[:MAX_WORDS]]
        return found if all(found) else None
    return None

"""Error responses of the tap itself: refused requests and gateway errors, as JSON.

They have the shape of OpenAI's API (`{"error": {"message", "type", "code"}}`), so SDKs show the message. The header
`x-streamgauge-error` distinguishes them from the upstream's responses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from streamgauge.ingest.http1.heads import BadRequest

_HTTP_1_1_REQUIRED = 0x0D
_HTTP2_MESSAGE = b"HTTP/2 without TLS is not supported: use HTTP/1.1"
HTTP2_REFUSAL = (
    b"\0\0\0\x04\0\0\0\0\0"  # SETTINGS, without values
    + (8 + len(_HTTP2_MESSAGE)).to_bytes(3, "big")
    + b"\x07\0\0\0\0\0"  # GOAWAY
    + (0).to_bytes(4, "big")  # no stream was processed
    + _HTTP_1_1_REQUIRED.to_bytes(4, "big")
    + _HTTP2_MESSAGE
)
"""The answer to a client that starts with HTTP/2 (RFC 9113, sections 3.4 and 6.8). The connection is closed after it."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """One error response. `code` has few values, so metrics may use it as a label."""

    status: int
    code: str
    message: str
    upstreams: tuple[str, ...] | None = None

    @classmethod
    def bad_request(cls, error: BadRequest) -> ErrorResponse:
        return cls(error.status, error.refusal, f"refused by the tap: {error.reason}")

    @classmethod
    def unknown_upstream(cls, names: list[str]) -> ErrorResponse:
        message = (
            "unknown upstream: start the path with /NAME/ or send x-streamgauge-upstream: NAME "
            f"(configured: {', '.join(names)})"
        )
        return cls(404, "unknown_upstream", message, tuple(names))

    @classmethod
    def websocket(cls) -> ErrorResponse:
        return cls(426, "websocket", "the tap is started with --websockets refuse: use HTTP")

    def encode(self, *, without_body: bool = False) -> bytes:
        """The whole response. The connection is closed after it."""
        if self.code == "http2":
            return HTTP2_REFUSAL
        error: dict[str, object] = {"message": self.message, "type": "streamgauge_tap", "code": self.code}
        if self.upstreams is not None:
            error["upstreams"] = self.upstreams
        body = json.dumps({"error": error}, ensure_ascii=False).encode() + b"\n"
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"x-streamgauge-error: {self.code}",
            "Connection: close",
            *(["Upgrade: HTTP/1.1"] if self.status == HTTPStatus.UPGRADE_REQUIRED else []),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if without_body else body)


def upstream_error(status: int, upstream: str, code: str, problem: str) -> ErrorResponse:
    """`problem` completes the sentence "upstream NAME …"."""
    return ErrorResponse(status, code, f"upstream {upstream!r} {problem}")

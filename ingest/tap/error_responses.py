"""Error responses of the tap itself: refused requests and gateway errors, as JSON.

They have the shape of OpenAI's API (`{"error": {"message", "type", "code"}}`), so SDKs show the message. The header
`x-streamgauge-error` distinguishes them from the upstream's responses.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus

from ingest.tap.http_head import BadRequest


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """One error response. `code` has few values, so metrics may use it as a label."""

    status: int
    code: str
    message: str
    upstreams: tuple[str, ...] | None = None

    @classmethod
    def bad_request(cls, error: BadRequest) -> ErrorResponse:
        return cls(error.status, "bad_request", f"refused by the tap: {error.reason}")

    @classmethod
    def unknown_upstream(cls, names: list[str]) -> ErrorResponse:
        message = (
            "unknown upstream: start the path with /NAME/ or send x-streamgauge-upstream: NAME "
            f"(configured: {', '.join(names)})"
        )
        return cls(404, "unknown_upstream", message, tuple(names))

    def encode(self, *, without_body: bool = False) -> bytes:
        """The whole response. The connection is closed after it."""
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
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if without_body else body)


def upstream_error(status: int, upstream: str, code: str, problem: str) -> ErrorResponse:
    """`problem` completes the sentence "upstream NAME …"."""
    return ErrorResponse(status, code, f"upstream {upstream!r} {problem}")


def unreachable(upstream: str, error: BaseException) -> ErrorResponse:
    """502: the connection to the upstream failed with `error`."""
    name = type(error).__name__
    problem = f"cannot be reached ({name})"
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = (
            f"has a certificate that is not trusted ({name}: {error.verify_message}). "
            "Pass the CA that signed it to the tap with --upstream-ca FILE."
        )
    return upstream_error(502, upstream, "connect_error", problem)

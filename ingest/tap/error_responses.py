"""The answers that the tap gives of its own: refusals and gateway errors, in JSON.

The shape is the one that LLM clients know (`{"error": {"message", "type", "code"}}`), so that an SDK shows the message. The
header `x-streamgauge-error` tells them from the upstream's.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus

from ingest.tap.http_head import Refused


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `code` is a bounded word, fit for a metric's label."""

    status: int
    code: str
    message: str
    upstreams: tuple[str, ...] | None = None

    @classmethod
    def refusal(cls, refused: Refused) -> Answer:
        return cls(refused.status, "bad_request", f"refused by the tap: {refused.reason}")

    @classmethod
    def unknown_upstream(cls, names: list[str]) -> Answer:
        known = ", ".join(names)
        message = f"no such upstream: begin the path with /NAME/ or send x-streamgauge-upstream: NAME (known: {known})"
        return cls(404, "unknown_upstream", message, tuple(names))

    def encode(self, *, keep_alive: bool, without_body: bool = False) -> bytes:
        """The whole response."""
        error: dict[str, object] = {"message": self.message, "type": "streamgauge_tap", "code": self.code}
        if self.upstreams is not None:
            error["upstreams"] = self.upstreams
        body = json.dumps({"error": error}, ensure_ascii=False).encode() + b"\n"
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"x-streamgauge-error: {self.code}",
            "Connection: keep-alive" if keep_alive else "Connection: close",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if without_body else body)


def bad_gateway(upstream: str, code: str, what: str) -> Answer:
    """502: the upstream `what`."""
    return Answer(502, code, f"upstream {upstream!r} {what}")


def timed_out(upstream: str, code: str, what: str) -> Answer:
    """504: the upstream `what`."""
    return Answer(504, code, f"upstream {upstream!r} {what}")


def unreachable(upstream: str, error: BaseException) -> Answer:
    """502: no connection to the upstream; of a certificate, why it is not trusted and the way out."""
    word = type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted ({word}: {error.verify_message})"
        return bad_gateway(
            upstream,
            "connect_error",
            f"{reason}; name the CA that signed it to the tap with --upstream-ca FILE",
        )
    return bad_gateway(upstream, "connect_error", f"cannot be reached ({word})")

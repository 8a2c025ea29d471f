"""The interface of response writers: encode the pieces of a response in one vendor's stream format.

A writer is pure: one object for one response, no clock, no I/O. Every `BodyPart` declares its own contents, because the
ledger is built from these declarations and not by parsing the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from streamgauge.simulator.response_plan import Piece, ResponsePlan


class Usage(msgspec.Struct, frozen=True):
    """A normalised usage report. None = not reported by the vendor.

    `output_tokens` includes reasoning, `input_tokens` includes cached tokens.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class BodyPart:
    """Bytes of the body, and their contents."""

    data: bytes
    events: int = 1
    """SSE events with data, including `[DONE]`."""
    comments: int = 0
    unframed: int = 0
    """Messages outside SSE framing, which a parser may count as events."""
    piece: Piece | None = None
    """Output of the part. Events with a piece are output events."""
    usage: Usage | None = None
    final_usage: bool = False
    """Whether `usage` is the vendor's last report, with the totals of the response."""
    terminal: bool = False
    """Whether all choices have finished, or this is the vendor's terminal event."""
    finish_reason: str | None = None
    audio_ns: int = 0
    """Length of the audio in the part."""


class ResponseWriter(ABC):
    """Encodes one response."""

    vendor: ClassVar[str]
    id: str
    response_headers: ClassVar[tuple[tuple[str, str], ...]] = ()
    content_type: ClassVar[str] = "text/event-stream"
    newline: ClassVar[bytes] = b"\n"
    supports_choices: ClassVar[bool] = False
    """Supports several choices (`n`)."""
    has_refusals: ClassVar[bool] = False
    """Has a separate channel for refusals; otherwise a refusal is text."""
    reports_hidden_reasoning: ClassVar[bool] = False
    """Reports tokens of hidden reasoning; otherwise reasoning is visible."""

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        self.plan = plan
        self.created_s = created_s
        self.visible_tokens = 0
        self.reasoning_tokens = plan.reasoning_tokens if plan.reasoning == "hidden" else 0
        self.text: dict[int, str] = defaultdict(str)
        self.refusal = ""
        self.reasoning = ""
        self.tools: list[dict[str, str]] = []

    def preamble(self) -> list[tuple[float, BodyPart]]:
        """Parts before the first piece, each with its time as a share of the time to first token."""
        return []

    def keepalive(self) -> BodyPart | None:
        """The part that the vendor sends during a long silence."""
        return None

    @abstractmethod
    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        """Encode one piece after `add_piece`. `last` marks the last piece."""

    @abstractmethod
    def finish(self) -> list[BodyPart]:
        """The end of a complete response: finish reason, usage, terminal."""

    @abstractmethod
    def inband_error(self) -> tuple[list[BodyPart], str]:
        """An error inside the stream with its final parts, and the error's type or code."""

    @abstractmethod
    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        """The body of a response that is not streamed. All pieces have been added."""

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        """The body of an error response, and its type or code; None if the vendor sends neither. Most vendors use OpenAI's."""
        kind, code = {
            429: ("requests", "rate_limit_exceeded"),
            401: ("invalid_request_error", "invalid_api_key"),
            404: ("invalid_request_error", "model_not_found"),
            503: ("service_unavailable_error", "overloaded"),
        }.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}, kind

    def add_piece(self, piece: Piece) -> None:
        """Add a piece to the totals, before it is written."""
        self.visible_tokens += piece.tokens
        if piece.kind == "text":
            self.text[piece.choice] += piece.text
        elif piece.kind == "refusal":
            self.refusal += piece.text
        elif piece.kind == "reasoning":
            self.reasoning += piece.text
            self.reasoning_tokens += piece.tokens
        elif piece.kind == "tool_start":
            ident = f"call_{self.plan.token[:16]}{piece.tool}"
            self.tools.append({"id": ident, "name": piece.text, "arguments": ""})
        else:
            self.tools[piece.tool]["arguments"] += piece.text

    @property
    def output_tokens(self) -> int:
        """Billed tokens so far, including all hidden reasoning."""
        hidden = self.plan.reasoning_tokens if self.plan.reasoning == "hidden" else 0
        return self.visible_tokens + hidden

    @property
    def function_calls(self) -> list[dict[str, Any]]:
        """The tool calls so far, as in OpenAI's messages."""
        return [
            {"id": t["id"], "type": "function", "function": {"name": t["name"], "arguments": t["arguments"]}}
            for t in self.tools
        ]

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields of OpenAI's objects."""
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.plan.model}

    def event(self, body: Any, name: str | None = None) -> bytes:
        """Encode an SSE event. A `str` body is written as is, other bodies as JSON."""
        data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
        head = b"" if name is None else b"event: " + name.encode() + self.newline
        return head + b"data: " + data + self.newline * 2

    def typed_event(self, kind: str, piece: Piece | None = None, **body: Any) -> BodyPart:
        """A named event whose `type` is its name."""
        return BodyPart(data=self.event({"type": kind, **body}, kind), piece=piece)

    def malformed_event(self) -> BodyPart:
        """An event with truncated JSON."""
        return BodyPart(data=b'data: {"delta":{"te' + self.newline * 2)

    def whole_arguments(self, piece: Piece) -> Piece | None:
        """A piece with all arguments of a tool call, for vendors that send them at once: with the last piece. None before it."""
        text = self.tools[piece.tool]["arguments"]
        if not text.endswith("}"):  # the arguments are one flat object
            return None
        return Piece(kind="tool_arguments", text=text, tokens=piece.tokens, tool=piece.tool)

    @staticmethod
    def _parsed(arguments: str) -> Any:
        return msgspec.json.decode(arguments or "{}")

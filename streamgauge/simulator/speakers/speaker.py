"""The shape of a speaker: it turns pieces of an answer into the bytes of one vendor's stream, and says what they hold.

A speaker is pure: one object for one response, no clock, no I/O. Every `Wire` carries its own account (events,
comments, what was output, usage, terminal), because the ledger is made of these accounts and not of a second reading
of the bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from streamgauge.simulator.plan import Piece, Plan


class Usage(msgspec.Struct, frozen=True):
    """A usage report in common terms: what a correct reader makes of the vendor's. None = the vendor does not say.

    `output_tokens` includes reasoning, `input_tokens` includes what was cached.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class Wire:
    """Some bytes of the body and what they hold."""

    data: bytes
    events: int = 1
    """SSE events with data, `[DONE]` included."""
    comments: int = 0
    unframed: int = 0
    """Messages that are no SSE events by the rules, but that a reader may count as one."""
    piece: Piece | None = None
    """The output in it: an event with a piece is an output event."""
    usage: Usage | None = None
    final_usage: bool = False
    """The last report that this vendor makes, with the totals of the answer."""
    terminal: bool = False
    """The semantic terminal: finish of all choices, or the vendor's terminal event."""
    finish_reason: str | None = None


class Speaker:
    """One vendor's way of speaking. Subclasses say what the base leaves open."""

    name: ClassVar[str]
    id: str
    provider_headers: ClassVar[tuple[tuple[str, str], ...]] = ()
    content_type: ClassVar[str] = "text/event-stream"
    newline: ClassVar[bytes] = b"\n"
    many: ClassVar[bool] = False
    """Knows several choices (`n`)."""
    refuses: ClassVar[bool] = False
    """Has a channel of its own for refusals; without it a refusal is text."""
    hides_reasoning: ClassVar[bool] = False
    """Reports reasoning tokens that it did not show; without it hidden reasoning is shown."""

    def __init__(self, plan: Plan, created_s: int) -> None:
        self.plan = plan
        self.created_s = created_s
        self.said_tokens = 0
        self.reasoning_tokens = plan.reasoning_tokens if plan.reasoning == "hidden" else 0
        self.text: dict[int, str] = defaultdict(str)
        self.refusal = ""
        self.reasoning = ""
        self.tools: list[dict[str, str]] = []

    # what subclasses say

    def opening(self) -> list[tuple[float, Wire]]:
        """What comes before the first piece, each with its share of the time to first token at which it is sent."""
        return []

    def keepalive(self) -> Wire | None:
        """What this vendor sends into a long silence."""
        return None

    def say(self, piece: Piece, last: bool) -> list[Wire]:
        """One piece; `last` when no other follows. Called after `note`."""
        raise NotImplementedError

    def finish(self) -> list[Wire]:
        """The end of a complete answer: finish, usage, terminal."""
        raise NotImplementedError

    def fail(self) -> tuple[list[Wire], str]:
        """An error inside the stream, with what this vendor sends after it; and the error's type (else code)."""
        raise NotImplementedError

    def answer(self) -> tuple[dict[str, Any], Usage]:
        """The body of a response that is not streamed; every piece has been noted."""
        raise NotImplementedError

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        """The body of an error response, and its type (else code); None where the vendor sends neither."""
        raise NotImplementedError

    # shared

    def note(self, piece: Piece) -> None:
        """Keep account of a piece that is about to be said."""
        self.said_tokens += piece.tokens
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
        """Billed so far: hidden reasoning comes first, and is counted from the start."""
        hidden = self.plan.reasoning_tokens if self.plan.reasoning == "hidden" else 0
        return self.said_tokens + hidden

    def head(self, kind: str) -> dict[str, Any]:
        """The first members of OpenAI's objects."""
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.plan.model}

    def event(self, body: Any, name: str | None = None) -> bytes:
        """An SSE event; `body` is JSON, or text that is sent as it is."""
        data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
        head = b"" if name is None else b"event: " + name.encode() + self.newline
        return head + b"data: " + data + self.newline * 2

    def broken(self) -> Wire:
        """An event whose JSON is cut off."""
        return Wire(data=b'data: {"delta":{"te' + self.newline * 2)

    @staticmethod
    def _parsed(arguments: str) -> Any:
        return msgspec.json.decode(arguments or "{}")

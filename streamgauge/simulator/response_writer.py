"""Encode the pieces of one response as its vendor streams them. The streams are data (`written_streams`).

A writer is pure: one object for one response, no clock, no I/O. Every `BodyPart` declares its own contents, because the
ledger is built from these declarations and not by parsing the bytes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec

from streamgauge.simulator.response_plan import Piece, ResponsePlan
from streamgauge.simulator.written_streams import Block, WrittenStream

BYTES_PER_S = {"audio/pcm": 48_000, "audio/pcmu": 8_000, "audio/pcma": 8_000}
"""Audio format → bytes of one second."""
TOKEN_MS = 250
"""Length of a token when it is spoken."""


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


@dataclass(slots=True, eq=False)
class _Item:
    """Successive output of one kind: a text, a tool call."""

    kind: str
    tool: int = 0
    name: str = ""
    text: str = ""


class ResponseWriter:
    """Encodes one response."""

    def __init__(self, stream: WrittenStream, plan: ResponsePlan, created_s: int) -> None:
        self.stream, self.plan, self.created_s = stream, plan, created_s
        self.visible_tokens = 0
        self.reasoning_tokens = plan.reasoning_tokens if plan.reasoning == "hidden" else 0
        self.audio_format: str | None = None
        """A key of `BYTES_PER_S`: the text is spoken."""
        self.interruption: str | None = None
        """Why the response ends before its end."""
        self.sequence = -1
        self.choice = 0
        self.piece: Piece | None = None
        self.has_finished = False
        self.items: dict[tuple[str, int, int], _Item] = {}
        if plan.reasoning == "hidden" and stream.has("item-hidden"):
            self.items["hidden", 0, 0] = _Item("hidden")
        self.item = _Item("")
        """The item of the placeholders."""
        self.open_item: _Item | None = None
        self._reported: Usage | None = None
        self._error: dict[str, Any] = {}
        """Placeholders of an error response."""
        self._sound = Random(plan.seed)  # noqa: S311
        self.id = stream.id.write(self.value).decode()

    # what has been added

    def add_piece(self, piece: Piece) -> None:
        """Add a piece to the totals, before it is written."""
        self.visible_tokens += piece.tokens
        if piece.kind == "reasoning":
            self.reasoning_tokens += piece.tokens
        if self.audio_format is not None and piece.kind == "text":
            piece = replace(piece, kind="audio")
        self.piece, self.choice = piece, piece.choice
        kind = "tool" if piece.kind in ("tool_start", "tool_arguments") else piece.kind
        self.item = self.items.setdefault((kind, piece.choice, piece.tool), _Item(kind, piece.tool))
        if piece.kind == "tool_start":
            self.item.name = piece.text
        else:
            self.item.text += piece.text

    def text_of(self, *kinds: str, choice: int = 0) -> str:
        """All text of these kinds so far."""
        return "".join(self.items[kind, choice, 0].text for kind in kinds if (kind, choice, 0) in self.items)

    @property
    def tool_calls(self) -> int:
        return sum(item.kind == "tool" for item in self.items.values())

    @property
    def output_tokens(self) -> int:
        """Billed tokens so far, including all hidden reasoning."""
        hidden = self.plan.reasoning_tokens if self.plan.reasoning == "hidden" else 0
        return self.visible_tokens + hidden

    @property
    def finish_reason(self) -> str:
        """The vendor's word for why the response ends."""
        return self.interruption or self.stream.finish[self.plan.finish]

    # what is sent

    def preamble(self) -> list[tuple[float, BodyPart]]:
        """Parts before the first piece, each with its time as a share of the time to first token."""
        return [
            (float(block.argument), part)
            for block in self.stream.blocks.get("start", ())
            for part in self._block(block)
        ]

    def keepalive(self) -> BodyPart | None:
        """The part that the vendor sends during a long silence."""
        return next(iter(self._parts("keepalive")), None)

    def write_piece(self, last: bool) -> list[BodyPart]:
        """Encode the piece that was added last. `last`: it is the last of the response."""
        piece, item, parts = self.piece, self.item, list[BodyPart]()
        assert piece is not None
        if self.open_item is not item:
            parts = self._close()
            self.item = self.open_item = item
            text, item.text = item.text, ""
            parts += self._parts(f"open-{item.kind}", piece)
            item.text = text
        if piece.kind == "tool_start":
            return parts
        if last and item.kind == "text" and self.plan.choices == 1 and self.stream.has("last-text"):
            self.has_finished = True
            return parts + self._parts("last-text", piece)
        return parts + self._parts(item.kind, piece)

    def finish(self) -> list[BodyPart]:
        """The end of a complete response: finish reason, usage, terminal."""
        parts, self.piece = self._close(), None
        return parts + self._parts("finish")

    def interrupted(self, reason: str) -> list[BodyPart]:
        """The end of a response that the user or the client interrupted."""
        self.interruption = reason
        return self.finish()

    def inband_error(self) -> tuple[list[BodyPart], str]:
        """An error inside the stream with its final parts, and the error's type or code."""
        self.piece = None
        return self._parts("error"), self.stream.blocks["error"][0].argument

    def socket_error(
        self, status: int, message: str, code: str | None = None
    ) -> tuple[list[BodyPart], str | None]:
        """An error response as a message of a WebSocket, and its type. `code`: its code, if not that of the status."""
        self._error = {**self.stream.error_values(status, message), "is_refusal": code is not None}
        self._error["error_code"] = code or self._error["error_code"]
        return self._parts("socket-error"), self._error["error_type"]

    def malformed_event(self) -> BodyPart:
        """An event with truncated JSON."""
        return self._parts("malformed")[0]

    def whole_body(self) -> tuple[bytes, Usage | None]:
        """The body of a response that is not streamed. All pieces have been added."""
        self.piece = None
        body = self._parts("whole")[0]
        return body.data, body.usage

    def _close(self) -> list[BodyPart]:
        """End the open item."""
        item, self.open_item = self.open_item, None
        if item is None:
            return []
        self.item = item
        return self._parts(f"close-{item.kind}")

    def _parts(self, name: str, piece: Piece | None = None) -> list[BodyPart]:
        return [part for block in self.stream.blocks.get(name, ()) for part in self._block(block, piece)]

    def _block(self, block: Block, piece: Piece | None = None) -> list[BodyPart]:
        if not all(map(self.value, block.wanted)) or any(map(self.value, block.unwanted)):
            return []
        if "whole" in block.words:  # the arguments are one flat object
            if not self.item.text.endswith("}"):
                return []
            assert piece is not None
            piece = replace(piece, text=self.item.text)
        if "each_choice" not in block.words:
            return [self._part(block, piece)]
        return [self._part(block, piece) for _ in self._each_choice()]

    def _part(self, block: Block, piece: Piece | None) -> BodyPart:
        self._reported = None
        data, words = block.template.write(self.value), block.words
        return BodyPart(
            data=data,
            events=block.is_event,
            comments=block.is_comment,
            unframed="unframed" in words,
            piece=piece if block.is_output else None,
            usage=self._reported,
            final_usage="usage" in words and self._reported is not None,
            terminal="terminal" in words
            and ("each_choice" not in words or PLACEHOLDERS["is_last_choice"](self)),
            finish_reason=self.finish_reason if "finish" in words else None,
            audio_ns=piece.tokens * TOKEN_MS * 1_000_000 if piece and "sound" in block.template.names else 0,
        )

    # placeholders

    def value(self, name: str) -> Any:
        """The value of a placeholder."""
        return self._error[name] if name in self._error else PLACEHOLDERS[name](self)

    def usage(self, block: str, output_tokens: int) -> bytes:
        """A usage report as the vendor writes it. The part in which it stands declares it."""
        names, conditions = self.stream.usage_names, self.stream.usage_conditions
        reasoning = self.reasoning_tokens or (None if "reasoning_tokens" in conditions else 0)
        cached = self.plan.cached_tokens or (None if "cached_tokens" in conditions else 0)
        if "cache_read_tokens" in names:
            cached = PLACEHOLDERS["cache_read_tokens"](self)
        elif "cached_tokens" not in names:
            cached = None
        self._reported = Usage(
            self.plan.input_tokens, output_tokens, reasoning if "reasoning_tokens" in names else None, cached
        )
        return self.stream.blocks[block][0].template.write(self.value)

    def joined(self, *kinds: str) -> bytes:
        """The items of these kinds, or all, as elements of an array."""
        before, written = self.item, []
        for item in self.items.values():
            if not kinds or item.kind in kinds:
                self.item = item
                blocks = self.stream.blocks.get(f"item-{item.kind}", ())
                written += [block.template.write(self.value) for block in blocks]
        self.item = before
        return b",".join(filter(None, written))

    def joined_choices(self) -> bytes:
        """The choices as elements of an array."""
        block = self.stream.blocks["item-choice"][0]
        return b",".join(block.template.write(self.value) for _ in self._each_choice())

    def _each_choice(self) -> Iterator[None]:
        for choice in range(self.plan.choices):
            self.choice = choice
            yield

    def next_sequence(self) -> int:
        """The number of the next event."""
        self.sequence += 1
        return self.sequence

    def sound(self) -> str:
        """The piece as audio in base64."""
        assert self.piece is not None
        assert self.audio_format is not None
        length_ms = TOKEN_MS * self.piece.tokens
        return b64encode(self._sound.randbytes(BYTES_PER_S[self.audio_format] * length_ms // 1000)).decode()

    def logprobs(self) -> dict[str, Any] | None:
        """Each token of the piece with its log probability, if the request asks for them."""
        piece = self.piece
        if not self.plan.logprobs or piece is None or piece.kind not in ("text", "refusal"):
            return None
        tokens = [" " + word for word in piece.text.split(" ")[1:]]
        listed = [
            {"token": t, "logprob": -0.25, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens
        ]
        return {"content": None, "refusal": None, "content" if piece.kind == "text" else "refusal": listed}

    def arguments(self) -> msgspec.Raw:
        """The arguments of the item's tool call as an object, empty until they are complete."""
        return msgspec.Raw(self.item.text.encode() if self.item.text.endswith("}") else b"{}")


def _piece_text(writer: ResponseWriter) -> str:
    return writer.piece.text if writer.piece is not None else ""


def _token_start(size: int) -> Callable[[ResponseWriter], str]:
    return lambda writer: writer.plan.token[:size]


def _obfuscation(writer: ResponseWriter) -> str | None:
    piece = writer.piece
    return None if piece is None else writer.plan.token[: 1 + len(piece.text) % 16]


def _wants_usage(writer: ResponseWriter) -> bool:
    plan = writer.plan
    return plan.include_usage or plan.continuous_usage or writer.stream.has("always_usage")


def _prompt_ms(writer: ResponseWriter) -> float:
    return max(writer.plan.ttft_s * 1000, 0.001)


def _token_ms(writer: ResponseWriter) -> float:
    return max(writer.plan.gap_s * 1000, 0.001)


def _fresh_tokens(writer: ResponseWriter) -> int:
    return writer.plan.input_tokens - writer.plan.cached_tokens


PLACEHOLDERS: dict[str, Callable[[ResponseWriter], Any]] = {
    # the response
    "id": lambda w: w.id,
    "created": lambda w: w.created_s,
    "model": lambda w: w.plan.model,
    "token": lambda w: w.plan.token,
    **{f"token_{size}": _token_start(size) for size in (8, 16, 20, 22, 24)},
    "is_odd": lambda w: int(w.plan.token[0], 16) % 2,
    "loads_model": lambda w: int(w.plan.token[0], 16) < 5,  # about a third of the requests
    "sequence": ResponseWriter.next_sequence,
    "finish": lambda w: w.finish_reason,
    "status": lambda w: "cancelled" if w.interruption else w.finish_reason,
    "reason": lambda w: w.interruption or ("max_output_tokens" if w.plan.finish == "length" else None),
    "interruption": lambda w: w.interruption,
    "awaits_result": lambda w: w.tool_calls and not w.interruption,
    "hides_reasoning": lambda w: w.plan.reasoning == "hidden",
    "has_finished": lambda w: w.has_finished,
    # usage
    "usage": lambda w: w.usage("usage", w.output_tokens),
    "whole_usage": lambda w: w.usage("whole-usage", w.output_tokens),
    "first_usage": lambda w: w.usage("first-usage", 1),
    "wants_usage": _wants_usage,
    "continuous_usage": lambda w: w.plan.continuous_usage,
    "finish_usage": lambda w: w.plan.continuous_usage or (_wants_usage(w) and w.choice == w.plan.choices - 1),
    "input_tokens": lambda w: w.plan.input_tokens,
    "cached_tokens": lambda w: w.plan.cached_tokens,
    "cache_created_tokens": lambda w: w.plan.cached_tokens // 4,
    "cache_read_tokens": lambda w: w.plan.cached_tokens - w.plan.cached_tokens // 4,
    "fresh_tokens": _fresh_tokens,
    "output_tokens": lambda w: w.output_tokens,
    "reasoning_tokens": lambda w: w.reasoning_tokens,
    "answer_tokens": lambda w: w.output_tokens - w.reasoning_tokens,
    "total_tokens": lambda w: w.plan.input_tokens + w.output_tokens,
    "spoken_tokens": lambda w: w.output_tokens if w.audio_format else 0,
    "written_tokens": lambda w: 0 if w.audio_format else w.output_tokens,
    "cost": lambda w: round(w.output_tokens * 1e-6, 8),
    # times
    "ttft_s": lambda w: round(w.plan.ttft_s, 3),
    "ttft_3": lambda w: f"{w.plan.ttft_s:.3f}",
    "exact_ttft_s": lambda w: w.plan.ttft_s,
    "load_s": lambda w: round(w.plan.ttft_s * 0.5, 3),
    "server_s": lambda w: round(w.plan.ttft_s * 1.5, 3),
    "tokens_per_s": lambda w: round(1 / w.plan.gap_s, 2) if w.plan.gap_s > 0 else 0.0,
    "prompt_ms": _prompt_ms,
    "prompt_token_ms": lambda w: _prompt_ms(w) / max(1, _fresh_tokens(w)),
    "prompt_tokens_per_s": lambda w: _fresh_tokens(w) / _prompt_ms(w) * 1000,
    "predicted_tokens": lambda w: max(1, w.output_tokens),
    "predicted_ms": lambda w: max(1, w.output_tokens) * _token_ms(w),
    "token_ms": _token_ms,
    "predicted_tokens_per_s": lambda w: 1000 / _token_ms(w),
    # the piece and its choice
    "text": _piece_text,
    "obfuscation": _obfuscation,
    "logprobs": ResponseWriter.logprobs,
    "sound": ResponseWriter.sound,
    "choice": lambda w: w.choice,
    "is_last_choice": lambda w: w.choice == w.plan.choices - 1,
    "choice_text": lambda w: w.text_of("text", choice=w.choice),
    "content": lambda w: w.text_of("text", choice=w.choice) or None,
    "reasoning": lambda w: w.text_of("reasoning"),
    "refusal": lambda w: w.text_of("refusal"),
    # the item
    "index": lambda w: list(w.items.values()).index(w.item),
    "item": lambda w: w.stream.blocks[f"item-{w.item.kind}"][0].template.write(w.value),
    "item_text": lambda w: w.item.text,
    "item_status": lambda w: "in_progress" if w.item is w.open_item else "completed",
    "tool": lambda w: w.item.tool,
    "tool_name": lambda w: w.item.name,
    "is_failing_tool": lambda w: w.item.name == "read_gauge",
    "has_arguments": lambda w: w.item.text.endswith("}"),
    "arguments": ResponseWriter.arguments,
    # lists, and what a session says
    "items": ResponseWriter.joined,
    "contents": lambda w: w.joined("text", "reasoning"),
    "calls": lambda w: w.joined("tool"),
    "choices": ResponseWriter.joined_choices,
    "modality": lambda w: "audio" if w.audio_format else "text",
    "audio_format": lambda w: w.audio_format or "audio/pcm",
}
"""Placeholders and conditions of the written streams."""

"""Anthropic Messages, also used by Friendli Dedicated and Fireworks."""

from __future__ import annotations

from typing import Any, ClassVar

from streamgauge.simulator.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Anthropic(ResponseWriter):
    """Content blocks with start and stop, pings, cumulative usage in `message_delta`."""

    vendor = "anthropic"
    pings: ClassVar[bool] = True
    usage_at_start: ClassVar[bool] = True

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"msg_{plan.token[:24]}"
        self.block = -1
        self.block_of: tuple[str, int] | None = None

    def _named(self, body: dict[str, Any]) -> bytes:
        return self.event(body, body["type"])

    def _input(self) -> dict[str, int]:
        """Anthropic excludes cached tokens from `input_tokens`. The input is the sum of the three fields."""
        created = self.plan.cached_tokens // 4
        read = self.plan.cached_tokens - created
        fresh = self.plan.input_tokens - self.plan.cached_tokens
        return {
            "input_tokens": fresh,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": read,
        }

    def _usage(self, output_tokens: int) -> Usage:
        cached = self._input()["cache_read_input_tokens"]
        return Usage(
            input_tokens=self.plan.input_tokens, output_tokens=output_tokens, cached_input_tokens=cached
        )

    def _first_usage(self) -> tuple[dict[str, Any], Usage | None]:
        return {**self._input(), "output_tokens": 1}, self._usage(1)

    def preamble(self) -> list[tuple[float, BodyPart]]:
        raw, usage = self._first_usage()
        message: dict[str, Any] = {
            "id": self.id, "type": "message", "role": "assistant", "model": self.plan.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": raw,
        }  # fmt: skip
        start = self._named({"type": "message_start", "message": message})
        body_parts = [(0.6, BodyPart(data=start, usage=usage))]
        if self.pings:
            body_parts.append((0.7, BodyPart(data=self._named({"type": "ping"}))))
        return body_parts

    def keepalive(self) -> BodyPart | None:
        return BodyPart(data=self._named({"type": "ping"})) if self.pings else None

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        body_parts: list[BodyPart] = []
        block = (piece.kind, piece.tool) if piece.kind == "reasoning" else ("text", 0)
        if piece.kind in ("tool_start", "tool_arguments"):
            block = ("tool", piece.tool)
        if self.block_of != block:
            body_parts += self._end_block()
            self.block += 1
            self.block_of = block
            start = {"type": "content_block_start", "index": self.block, "content_block": self._empty(piece)}
            body_parts.append(
                BodyPart(data=self._named(start), piece=piece if piece.kind == "tool_start" else None)
            )
        if piece.kind != "tool_start":
            delta = {"type": "content_block_delta", "index": self.block, "delta": self._delta(piece)}
            body_parts.append(BodyPart(data=self._named(delta), piece=piece))
        return body_parts

    def _empty(self, piece: Piece) -> dict[str, Any]:
        if piece.kind == "tool_start":
            return {"type": "tool_use", "id": self.tools[piece.tool]["id"], "name": piece.text, "input": {}}
        if piece.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        if piece.kind == "tool_arguments":
            return {"type": "input_json_delta", "partial_json": piece.text}
        if piece.kind == "reasoning":
            return {"type": "thinking_delta", "thinking": piece.text}
        return {"type": "text_delta", "text": piece.text}

    def _end_block(self) -> list[BodyPart]:
        if self.block_of is None:
            return []
        body_parts = []
        if self.block_of[0] == "reasoning":
            signature = {"type": "signature_delta", "signature": f"sig_{self.plan.token}"}
            body = {"type": "content_block_delta", "index": self.block, "delta": signature}
            body_parts.append(BodyPart(data=self._named(body)))
        body_parts.append(BodyPart(data=self._named({"type": "content_block_stop", "index": self.block})))
        self.block_of = None
        return body_parts

    def finish(self) -> list[BodyPart]:
        stop = _STOP[self.plan.finish]
        raw: dict[str, Any] = {"output_tokens": self.output_tokens}
        if self.usage_at_start:
            raw = {**self._input(), **raw}
        delta = {
            "type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": raw
        }  # fmt: skip
        return [
            *self._end_block(),
            BodyPart(
                data=self._named(delta),
                usage=self._usage(self.output_tokens),
                final_usage=True,
                terminal=True,
                finish_reason=stop,
            ),
            BodyPart(data=self._named({"type": "message_stop"}), terminal=True),
        ]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"type": "overloaded_error", "message": "Overloaded"}
        body = {"type": "error", "error": error, "request_id": f"req_{self.plan.token[:24]}"}
        return [BodyPart(data=self._named(body))], "overloaded_error"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        content: list[dict[str, Any]] = []
        if self.reasoning:
            content.append(
                {"type": "thinking", "thinking": self.reasoning, "signature": f"sig_{self.plan.token}"}
            )
        if self.text[0]:
            content.append({"type": "text", "text": self.text[0]})
        for tool in self.tools:
            arguments = self._parsed(tool["arguments"])
            content.append({"type": "tool_use", "id": tool["id"], "name": tool["name"], "input": arguments})
        usage = {**self._input(), "output_tokens": self.output_tokens}
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.plan.model, "content": content,
            "stop_reason": _STOP[self.plan.finish], "stop_sequence": None, "usage": usage,
        }, self._usage(self.output_tokens)  # fmt: skip

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        kind = {
            400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
            404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
        }.get(status, "api_error" if status >= 500 else "invalid_request_error")  # fmt: skip
        return {
            "type": "error",
            "error": {"type": kind, "message": message},
            "request_id": "req_simulated",
        }, kind


class Friendli(Anthropic):
    """No pings, no cache creation; input usage in `message_start`, output usage in `message_delta`."""

    vendor = "friendli"
    pings = False
    usage_at_start = False

    def _input(self) -> dict[str, int]:
        fresh = self.plan.input_tokens - self.plan.cached_tokens
        return {"input_tokens": fresh, "cache_read_input_tokens": self.plan.cached_tokens}

    def _first_usage(self) -> tuple[dict[str, Any], Usage | None]:
        return {**self._input(), "output_tokens": 0}, self._usage(0)

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"type": "invalid_request_error", "message": "The request cannot be continued."}
        return [BodyPart(data=self._named({"type": "error", "error": error, "request_id": None}))], error[
            "type"
        ]


class FireworksMessages(Anthropic):
    vendor = "fireworks_messages"
    pings = False

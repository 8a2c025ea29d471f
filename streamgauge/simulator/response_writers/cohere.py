"""Cohere v2: named events for content and tool calls; finish reason and usage in `message-end`."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.planning.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage

_FINISH = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


class Cohere(ResponseWriter):
    """An error inside the stream is a `message-end` with the finish reason ERROR and no type."""

    vendor = "cohere"

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.index = -1
        self.open: tuple[str, int] | None = None

    def _event(self, kind: str, piece: Piece | None = None, **body: Any) -> BodyPart:
        return BodyPart(data=self.event({"type": kind, **body}, kind), piece=piece)

    def preamble(self) -> list[tuple[float, BodyPart]]:
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return [(0.9, self._event("message-start", id=self.plan.token, delta={"message": message}))]

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        if piece.kind == "tool_start":
            body_parts = self._close()
            self.index += 1
            self.open = ("tool", piece.tool)
            call = {"id": self.tools[piece.tool]["id"], "type": "function",
                    "function": {"name": piece.text, "arguments": ""}}  # fmt: skip
            start = self._event(
                "tool-call-start", piece, index=self.index, delta={"message": {"tool_calls": call}}
            )
            return [*body_parts, start]
        if piece.kind == "tool_arguments":
            delta = {"message": {"tool_calls": {"function": {"arguments": piece.text}}}}
            return [self._event("tool-call-delta", piece, index=self.index, delta=delta)]
        channel = "thinking" if piece.kind == "reasoning" else "text"
        body_parts = []
        if self.open != (channel, 0):
            body_parts = self._close()
            self.index += 1
            self.open = (channel, 0)
            content = {"type": channel, channel: ""}
            body_parts.append(
                self._event("content-start", index=self.index, delta={"message": {"content": content}})
            )
        content = {channel: piece.text}
        body_parts.append(
            self._event("content-delta", piece, index=self.index, delta={"message": {"content": content}})
        )
        return body_parts

    def _close(self) -> list[BodyPart]:
        if self.open is None:
            return []
        kind = "tool-call-end" if self.open[0] == "tool" else "content-end"
        self.open = None
        return [self._event(kind, index=self.index)]

    def usage(self) -> tuple[dict[str, Any], Usage]:
        plan = self.plan
        raw: dict[str, Any] = {
            "billed_units": {"input_tokens": plan.input_tokens, "output_tokens": self.output_tokens},
            "tokens": {"input_tokens": plan.input_tokens, "output_tokens": self.output_tokens},
            "cached_tokens": plan.cached_tokens,
        }
        return raw, Usage(plan.input_tokens, self.output_tokens, None, plan.cached_tokens)

    def finish(self) -> list[BodyPart]:
        raw, usage = self.usage()
        reason = _FINISH[self.plan.finish]
        end = self._event("message-end", delta={"finish_reason": reason, "usage": raw})
        end.usage, end.final_usage, end.terminal, end.finish_reason = usage, True, True, reason
        return [*self._close(), end]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        delta = {"finish_reason": "ERROR", "error": "internal server error"}
        return [self._event("message-end", delta=delta)], "ERROR"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        content: list[dict[str, Any]] = []
        if self.reasoning:
            content.append({"type": "thinking", "thinking": self.reasoning})
        if self.text[0]:
            content.append({"type": "text", "text": self.text[0]})
        calls = [
            {"id": t["id"], "type": "function", "function": {"name": t["name"], "arguments": t["arguments"]}}
            for t in self.tools
        ]
        message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        reason = _FINISH[self.plan.finish]
        return {"id": self.plan.token, "finish_reason": reason, "message": message, "usage": raw}, usage

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        return {"id": "simulated", "message": message}, None

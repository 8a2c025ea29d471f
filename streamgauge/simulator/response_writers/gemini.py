"""Gemini's streamGenerateContent with alt=sse: complete candidates, CRLF, cumulative usage in every chunk."""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.simulator.planning.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage

_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


class Gemini(ResponseWriter):
    """A function call is one part. An error inside the stream is indented JSON without `data:`, like the real service."""

    vendor = "gemini"
    newline = b"\r\n"
    reports_hidden_reasoning = True

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = plan.token[:22]

    def usage(self) -> tuple[dict[str, Any], Usage]:
        plan = self.plan
        raw: dict[str, Any] = {
            "promptTokenCount": plan.input_tokens,
            "candidatesTokenCount": self.output_tokens - self.reasoning_tokens,
            "totalTokenCount": plan.input_tokens + self.output_tokens,
        }
        if self.reasoning_tokens:
            raw["thoughtsTokenCount"] = self.reasoning_tokens
        if plan.cached_tokens:
            raw["cachedContentTokenCount"] = plan.cached_tokens
        return raw, Usage(
            plan.input_tokens, self.output_tokens, self.reasoning_tokens or None, plan.cached_tokens or None
        )

    def _chunk(self, parts: list[dict[str, Any]], finish: str | None = None) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        body = {
            "candidates": [candidate],
            "usageMetadata": raw,
            "modelVersion": self.plan.model,
            "responseId": self.id,
        }
        return body, usage

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        if piece.kind == "tool_start":
            return []
        if piece.kind == "tool_arguments":
            tool = self.tools[piece.tool]
            if not tool["arguments"].endswith("}"):
                return []
            piece = Piece(kind="tool_arguments", text=tool["arguments"], tokens=piece.tokens, tool=piece.tool)
            call = {"name": tool["name"], "args": self._parsed(tool["arguments"])}
            parts: list[dict[str, Any]] = [{"functionCall": call}]
        elif piece.kind == "reasoning":
            parts = [{"text": piece.text, "thought": True}]
        else:
            parts = [{"text": piece.text}]
        body, usage = self._chunk(parts)
        return [BodyPart(data=self.event(body), piece=piece, usage=usage)]

    def finish(self) -> list[BodyPart]:
        reason = _FINISH[self.plan.finish]
        body, usage = self._chunk([{"text": ""}], reason)
        body_part = BodyPart(
            data=self.event(body), usage=usage, final_usage=True, terminal=True, finish_reason=reason
        )
        return [body_part]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
        text = msgspec.json.format(msgspec.json.encode({"error": error}), indent=2)
        return [BodyPart(data=text.replace(b"\n", b"\r\n") + b"\r\n", events=0, unframed=1)], "UNAVAILABLE"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        parts: list[dict[str, Any]] = []
        if self.reasoning:
            parts.append({"text": self.reasoning, "thought": True})
        if self.text[0]:
            parts.append({"text": self.text[0]})
        parts += [
            {"functionCall": {"name": t["name"], "args": self._parsed(t["arguments"])}} for t in self.tools
        ]
        return self._chunk(parts, _FINISH[self.plan.finish])

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        word = {
            400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
            500: "INTERNAL", 503: "UNAVAILABLE",
        }.get(status, "UNKNOWN")  # fmt: skip
        return {"error": {"code": status, "message": message, "status": word}}, word

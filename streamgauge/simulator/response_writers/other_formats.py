"""Formats with one vendor or few events: legacy completions, Cohere v2, Gemini, LM Studio."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from streamgauge.simulator.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.chat import ChatQuirks, ChatWriter, Fireworks
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage


# OpenAI's legacy text completions: `choices[].text`, no roles, no tools, no reasoning channel.
class Completions(ChatWriter):
    """Writes all pieces as text."""

    vendor = "completions"
    quirks = ChatQuirks(id_prefix="cmpl-", object="text_completion", role_chunk=False, reports_cached=False)

    def choice(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"text": delta.get("content", ""), "index": index, "logprobs": None, "finish_reason": finish}

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        texts = (self.text[index] for index in range(self.plan.choices))
        choices = [self.choice(i, {"content": text}, self.plan.finish) for i, text in enumerate(texts)]
        return self.chunk(choices, usage=raw), usage


class FireworksCompletions(Completions, Fireworks):
    """Usage and `perf_metrics` on the finish chunk."""

    vendor = "fireworks_completions"
    quirks = replace(Completions.quirks, usage="finish_chunk", always_usage=True)


# Cohere v2: named events for content and tool calls; finish reason and usage in `message-end`.
_COHERE_FINISH = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


class Cohere(ResponseWriter):
    """An error inside the stream is a `message-end` with the finish reason ERROR and no type."""

    vendor = "cohere"

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.index = -1
        self.open: tuple[str, int] | None = None

    def preamble(self) -> list[tuple[float, BodyPart]]:
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return [(0.9, self.typed_event("message-start", id=self.plan.token, delta={"message": message}))]

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        if piece.kind == "tool_start":
            body_parts = self._close()
            self.index += 1
            self.open = ("tool", piece.tool)
            call = self.function_calls[piece.tool]
            return [*body_parts, self._message_event("tool-call-start", piece, tool_calls=call)]
        if piece.kind == "tool_arguments":
            call = {"function": {"arguments": piece.text}}
            return [self._message_event("tool-call-delta", piece, tool_calls=call)]
        channel = "thinking" if piece.kind == "reasoning" else "text"
        body_parts = []
        if self.open != (channel, 0):
            body_parts = self._close()
            self.index += 1
            self.open = (channel, 0)
            content = {"type": channel, channel: ""}
            body_parts.append(self._message_event("content-start", content=content))
        return [*body_parts, self._message_event("content-delta", piece, content={channel: piece.text})]

    def _message_event(self, kind: str, piece: Piece | None = None, **members: Any) -> BodyPart:
        return self.typed_event(kind, piece, index=self.index, delta={"message": members})

    def _close(self) -> list[BodyPart]:
        if self.open is None:
            return []
        kind = "tool-call-end" if self.open[0] == "tool" else "content-end"
        self.open = None
        return [self.typed_event(kind, index=self.index)]

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
        reason = _COHERE_FINISH[self.plan.finish]
        end = self.typed_event("message-end", delta={"finish_reason": reason, "usage": raw})
        end.usage, end.final_usage, end.terminal, end.finish_reason = usage, True, True, reason
        return [*self._close(), end]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        delta = {"finish_reason": "ERROR", "error": "internal server error"}
        return [self.typed_event("message-end", delta=delta)], "ERROR"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        content: list[dict[str, Any]] = []
        if self.reasoning:
            content.append({"type": "thinking", "thinking": self.reasoning})
        if self.text[0]:
            content.append({"type": "text", "text": self.text[0]})
        calls = {"tool_calls": self.function_calls} if self.tools else {}
        message = {"role": "assistant", "content": content, **calls}
        reason = _COHERE_FINISH[self.plan.finish]
        return {"id": self.plan.token, "finish_reason": reason, "message": message, "usage": raw}, usage

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        return {"id": "simulated", "message": message}, None


# Gemini's streamGenerateContent with alt=sse: complete candidates, CRLF, cumulative usage in every chunk.
_GEMINI_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}


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
            whole = self.whole_arguments(piece)
            if whole is None:
                return []
            piece = whole
            call = {"name": self.tools[piece.tool]["name"], "args": self._parsed(piece.text)}
            parts: list[dict[str, Any]] = [{"functionCall": call}]
        elif piece.kind == "reasoning":
            parts = [{"text": piece.text, "thought": True}]
        else:
            parts = [{"text": piece.text}]
        body, usage = self._chunk(parts)
        return [BodyPart(data=self.event(body), piece=piece, usage=usage)]

    def finish(self) -> list[BodyPart]:
        reason = _GEMINI_FINISH[self.plan.finish]
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
        return self._chunk(parts, _GEMINI_FINISH[self.plan.finish])

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        word = {
            400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
            500: "INTERNAL", 503: "UNAVAILABLE",
        }.get(status, "UNKNOWN")  # fmt: skip
        return {"error": {"code": status, "message": message, "status": word}}, word


# LM Studio's /api/v1/chat: 19 named events, including model load and prompt processing.
_PROVIDER = {"type": "plugin", "plugin_id": "lmstudio/simulated"}


class LMStudio(ResponseWriter):
    """The server runs tool calls: arguments are an object, and a result follows.

    An `error` is followed by `chat.end` with the partial output.
    """

    vendor = "lmstudio"

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"resp_{plan.token}"
        self.open: str | None = None
        self.last_tool: int | None = None
        self.loads = int(plan.token[0], 16) < 5
        """About a third of the requests load the model first."""

    def preamble(self) -> list[tuple[float, BodyPart]]:
        instance: dict[str, Any] = {"model_instance_id": self.plan.model}
        body_parts = [(0.02, self.typed_event("chat.start", **instance))]
        if self.loads:
            body_parts.append((0.05, self.typed_event("model_load.start", **instance)))
            body_parts += [
                (0.05 + 0.5 * step, self.typed_event("model_load.progress", **instance, progress=step))
                for step in (0.25, 0.5, 0.75, 1.0)
            ]
            seconds = round(self.plan.ttft_s * 0.5, 3)
            body_parts.append(
                (0.56, self.typed_event("model_load.end", **instance, load_time_seconds=seconds))
            )
        body_parts.append((0.6, self.typed_event("prompt_processing.start")))
        body_parts += [
            (0.6 + 0.3 * p, self.typed_event("prompt_processing.progress", progress=p))
            for p in (0.0, 0.5, 1.0)
        ]
        body_parts.append((0.95, self.typed_event("prompt_processing.end")))
        return body_parts

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        if piece.kind == "tool_start":
            body_parts = [*self._close(), *self._tool_result()]
            self.last_tool = piece.tool
            return [
                *body_parts,
                self.typed_event("tool_call.start", piece, tool=piece.text, provider_info=_PROVIDER),
            ]
        if piece.kind == "tool_arguments":
            whole = self.whole_arguments(piece)
            if whole is None:
                return []
            body = {"tool": self.tools[piece.tool]["name"], "arguments": self._parsed(whole.text)}
            return [self.typed_event("tool_call.arguments", whole, **body, provider_info=_PROVIDER)]
        channel = "reasoning" if piece.kind == "reasoning" else "message"
        body_parts = []
        if self.open != channel:
            body_parts = [*self._close(), *self._tool_result(), self.typed_event(f"{channel}.start")]
            self.open = channel
        return [*body_parts, self.typed_event(f"{channel}.delta", piece, content=piece.text)]

    def _close(self) -> list[BodyPart]:
        channel, self.open = self.open, None
        return [] if channel is None else [self.typed_event(f"{channel}.end")]

    def _tool_result(self) -> list[BodyPart]:
        if self.last_tool is None:
            return []
        tool, self.last_tool = self.tools[self.last_tool], None
        arguments = self._parsed(tool["arguments"])
        if tool["name"] == "read_gauge":
            metadata = {"type": "invalid_arguments", "tool_name": tool["name"], "arguments": arguments}
            return [self.typed_event("tool_call.failure", reason="No such gauge.", metadata=metadata)]
        body = {"tool": tool["name"], "arguments": arguments, "output": "[]", "provider_info": _PROVIDER}
        return [self.typed_event("tool_call.success", **body)]

    def _result(self) -> dict[str, Any]:
        output: list[dict[str, Any]] = []
        if self.reasoning:
            output.append({"type": "reasoning", "content": self.reasoning})
        if self.text[0]:
            output.append({"type": "message", "content": self.text[0]})
        output += [
            {"type": "tool_call", "tool": t["name"], "arguments": self._parsed(t["arguments"]), "output": "[]",
             "provider_info": _PROVIDER}
            for t in self.tools if t["arguments"].endswith("}")
        ]  # fmt: skip
        speed = round(1 / self.plan.gap_s, 2) if self.plan.gap_s > 0 else 0.0
        return {
            "model_instance_id": self.plan.model, "output": output,
            "stats": {
                "input_tokens": self.plan.input_tokens, "total_output_tokens": self.output_tokens,
                "reasoning_output_tokens": self.reasoning_tokens, "tokens_per_second": speed,
                "time_to_first_token_seconds": round(self.plan.ttft_s, 3),
            },
            "response_id": self.id,
        }  # fmt: skip

    def _usage(self) -> Usage:
        return Usage(self.plan.input_tokens, self.output_tokens, self.reasoning_tokens, None)

    def finish(self) -> list[BodyPart]:
        end = self.typed_event("chat.end", result=self._result())
        end.usage, end.final_usage, end.terminal = self._usage(), True, True
        return [*self._close(), *self._tool_result(), end]

    def inband_error(self) -> tuple[list[BodyPart], str]:
        error = {"type": "internal_error", "message": "The model crashed."}
        end = self.typed_event("chat.end", result=self._result())
        end.usage = self._usage()
        return [self.typed_event("error", error=error), end], "internal_error"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        return self._result(), self._usage()

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        kind = "internal_error" if status >= 500 else "invalid_request"
        return {"error": {"type": kind, "message": message}}, kind

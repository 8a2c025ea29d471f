"""OpenAI chat completions. Differences between vendors are data (`ChatQuirks`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from streamgauge.simulator.planning.response_plan import Piece, ResponsePlan
from streamgauge.simulator.response_writers.response_writer import BodyPart, ResponseWriter, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuirks:
    """Differences between one vendor's chat completions and OpenAI's."""

    id_prefix: str = "chatcmpl-"
    object: str = "chat.completion.chunk"
    done: bool = True
    usage: Literal["own_chunk", "finish_chunk"] = "own_chunk"
    """Usage in a separate chunk with empty `choices`, or in the chunk with the finish reason."""
    always_usage: bool = False
    """Reports usage even if not requested."""
    reasoning_field: str = "reasoning_content"
    reports_reasoning: bool = False
    reports_cached: bool = True
    excludes_reasoning: bool = False
    """`completion_tokens` excludes reasoning (xAI)."""
    role_chunk: bool = True
    role_in_every_chunk: bool = False
    text_in_finish: bool = False
    """The finish chunk contains the last text."""
    obfuscation: bool = False
    comment: bytes | None = None
    comment_first: bool = False
    error: Literal["data", "text", "event_then_done", "finish_error", "object"] = "data"
    chunk_extra: dict[str, Any] = field(default_factory=dict)
    choice_extra: dict[str, Any] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()


_ERROR = {
    "type": "server_error",
    "code": "generation_failed",
    "message": "The model failed while generating.",
}


class ChatWriter(ResponseWriter):
    """Writes chat completions with the vendor's quirks."""

    quirks: ClassVar[ChatQuirks]
    supports_choices = True

    def __init_subclass__(cls) -> None:
        cls.response_headers = cls.quirks.headers

    def __init__(self, plan: ResponsePlan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"{self.quirks.id_prefix}{plan.token[:24]}"
        self.finished = False

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self.head(self.quirks.object), **self.quirks.chunk_extra, "choices": choices, **more}

    def choice(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        if self.quirks.role_in_every_chunk:
            delta = {"role": "assistant", **delta}
        return {"index": index, "delta": delta, **self.quirks.choice_extra, "finish_reason": finish}

    def usage(self) -> tuple[dict[str, Any], Usage]:
        """The totals so far, in the vendor's format and normalised."""
        quirks, plan = self.quirks, self.plan
        completion = self.output_tokens - (self.reasoning_tokens if quirks.excludes_reasoning else 0)
        raw: dict[str, Any] = {
            "prompt_tokens": plan.input_tokens,
            "completion_tokens": completion,
            "total_tokens": plan.input_tokens + self.output_tokens,
        }
        if quirks.reports_cached:
            raw["prompt_tokens_details"] = {"cached_tokens": plan.cached_tokens}
        if quirks.reports_reasoning:
            raw["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return raw, Usage(
            input_tokens=plan.input_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens if quirks.reports_reasoning else None,
            cached_input_tokens=plan.cached_tokens if quirks.reports_cached else None,
        )

    @property
    def wants_usage(self) -> bool:
        return self.plan.include_usage or self.quirks.always_usage or self.plan.continuous_usage

    def preamble(self) -> list[tuple[float, BodyPart]]:
        body_parts: list[tuple[float, BodyPart]] = []
        if self.quirks.comment_first and self.quirks.comment is not None:
            body_parts.append((0.1, BodyPart(data=self.quirks.comment, events=0, comments=1)))
        if self.quirks.role_chunk:
            for index in range(self.plan.choices):
                delta = {"role": "assistant", "content": ""}
                body_parts.append((0.9, self._body_part([self.choice(index, delta)])))
        return body_parts

    def keepalive(self) -> BodyPart | None:
        if self.quirks.comment is None:
            return None
        return BodyPart(data=self.quirks.comment, events=0, comments=1)

    def write_piece(self, piece: Piece, last: bool) -> list[BodyPart]:
        delta = self._delta(piece)
        if last and self.quirks.text_in_finish and self.plan.choices == 1 and piece.kind == "text":
            self.finished = True
            choice = self._with_logprobs(self.choice(0, delta, self.plan.finish), piece)
            body_part = self._body_part([choice], piece=piece)
            body_part.terminal, body_part.finish_reason = True, self.plan.finish
            return [body_part]
        return [self._body_part([self._with_logprobs(self.choice(piece.choice, delta), piece)], piece=piece)]

    def _with_logprobs(self, choice: dict[str, Any], piece: Piece) -> dict[str, Any]:
        if not self.plan.logprobs or piece.kind not in ("text", "refusal"):
            return choice
        tokens = [" " + word for word in piece.text.split(" ")[1:]]
        listed = [
            {"token": t, "logprob": -0.25, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens
        ]
        channel = "content" if piece.kind == "text" else "refusal"
        return {**choice, "logprobs": {"content": None, "refusal": None, channel: listed}}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        if piece.kind == "reasoning":
            return {self.quirks.reasoning_field: piece.text}
        if piece.kind == "refusal":
            return {"refusal": piece.text}
        if piece.kind == "tool_start":
            function = {"name": piece.text, "arguments": ""}
            call = {
                "index": piece.tool,
                "id": self.tools[piece.tool]["id"],
                "type": "function",
                "function": function,
            }
            return {"tool_calls": [call]}
        if piece.kind == "tool_arguments":
            return {"tool_calls": [{"index": piece.tool, "function": {"arguments": piece.text}}]}
        return {"content": piece.text}

    def _body_part(self, choices: list[dict[str, Any]], piece: Piece | None = None, **more: Any) -> BodyPart:
        usage = None
        if self.plan.continuous_usage:
            more["usage"], usage = self.usage()
        if self.quirks.obfuscation and piece is not None:
            more["obfuscation"] = self.plan.token[: 1 + len(piece.text) % 16]
        return BodyPart(data=self.event(self.chunk(choices, **more)), piece=piece, usage=usage)

    def malformed_event(self) -> BodyPart:
        return BodyPart(
            data=self.event(self.chunk([self.choice(0, {"content": ""})]))[:-24] + self.newline * 2
        )

    def finish(self) -> list[BodyPart]:
        body_parts: list[BodyPart] = []
        in_finish = self.quirks.usage == "finish_chunk" and self.wants_usage
        if not self.finished:
            count = self.plan.choices
            for index in range(count):
                choices = [self.choice(index, {}, self.plan.finish)]
                more: dict[str, Any] = {}
                usage = None
                if in_finish and index == count - 1:
                    more, usage = self._final()
                elif self.plan.continuous_usage:
                    raw, usage = self.usage()
                    more = {"usage": raw}
                body_part = BodyPart(
                    data=self.event(self.chunk(choices, **more)), usage=usage, final_usage=usage is not None
                )
                body_part.finish_reason = self.plan.finish
                body_part.terminal = index == count - 1
                body_parts.append(body_part)
        if self.wants_usage and (self.finished or not in_finish):
            more, usage = self._final()
            body_parts.append(
                BodyPart(data=self.event(self.chunk([], **more)), usage=usage, final_usage=True)
            )
        if self.quirks.done:
            body_parts.append(BodyPart(data=self.event("[DONE]")))
        return body_parts

    def _final(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        return {"usage": raw}, usage

    def inband_error(self) -> tuple[list[BodyPart], str]:
        style = self.quirks.error
        done = BodyPart(data=self.event("[DONE]"))
        error: dict[str, Any]
        if style == "event_then_done":
            error = {
                "message": "Backend agent reported an error.",
                "type": "api_error",
                "code": "agent_failed",
            }
            return [BodyPart(data=self.event({"error": error}, "error")), done], "api_error"
        if style == "finish_error":
            error = {"code": 502, "message": "Upstream provider disconnected"}
            body = self.chunk([self.choice(0, {"content": ""}, "error")], error=error)
            return [BodyPart(data=self.event(body)), done], "502"
        if style == "object":
            error = {
                "object": "error",
                "message": "engine is dead",
                "type": "InternalServerError",
                "code": 500,
            }
            return [BodyPart(data=self.event(error)), done], "InternalServerError"
        if style == "text":  # no type or code: the error type is the outcome's name
            return [
                BodyPart(data=self.event({"error": "model runner has unexpectedly stopped"}))
            ], "inband_error"
        return [BodyPart(data=self.event({"error": _ERROR}))], "server_error"

    def whole_body(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        choices = []
        for index in range(self.plan.choices):
            message: dict[str, Any] = {"role": "assistant", "content": self.text[index] or None}
            if self.reasoning and index == 0:
                message[self.quirks.reasoning_field] = self.reasoning
            if self.refusal and index == 0:
                message["refusal"] = self.refusal
            if self.tools and index == 0:
                message["tool_calls"] = [
                    {
                        "id": t["id"],
                        "type": "function",
                        "function": {"name": t["name"], "arguments": t["arguments"]},
                    }
                    for t in self.tools
                ]
            choices.append({"index": index, "message": message, "finish_reason": self.plan.finish})
        return {**self.head("chat.completion"), "choices": choices, "usage": raw}, usage

    @classmethod
    def http_error(cls, status: int, message: str) -> tuple[dict[str, Any], str | None]:
        return openai_error(status, message)


def openai_error(status: int, message: str) -> tuple[dict[str, Any], str | None]:
    """OpenAI's error body, used by most vendors."""
    kind, code = {
        429: ("requests", "rate_limit_exceeded"),
        401: ("invalid_request_error", "invalid_api_key"),
        404: ("invalid_request_error", "model_not_found"),
        503: ("service_unavailable_error", "overloaded"),
    }.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}, kind

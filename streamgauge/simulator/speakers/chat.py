"""OpenAI chat completions and the vendors that speak like it. A vendor's quirks are data (`Vendor`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from streamgauge.simulator.plan import Piece, Plan
from streamgauge.simulator.speakers.speaker import Speaker, Usage, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """How one vendor's chat completions differ from OpenAI's."""

    id_prefix: str = "chatcmpl-"
    object: str = "chat.completion.chunk"
    done: bool = True
    usage: Literal["own_chunk", "finish_chunk"] = "own_chunk"
    """A chunk of its own with empty `choices`, or the chunk that carries the finish reason."""
    always_usage: bool = False
    """Reports usage without being asked."""
    reasoning_field: str = "reasoning_content"
    reports_reasoning: bool = False
    reports_cached: bool = True
    excludes_reasoning: bool = False
    """`completion_tokens` leaves reasoning out (xAI)."""
    role_chunk: bool = True
    role_in_every_chunk: bool = False
    text_in_finish: bool = False
    """The finish chunk carries the last text."""
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


class ChatSpeaker(Speaker):
    """Speaks chat completions as its `vendor` does."""

    vendor: ClassVar[Vendor]
    many = True

    def __init__(self, plan: Plan, created_s: int) -> None:
        super().__init__(plan, created_s)
        self.id = f"{self.vendor.id_prefix}{plan.token[:24]}"
        self.finished = False

    # chunks

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self.head(self.vendor.object), **self.vendor.chunk_extra, "choices": choices, **more}

    def choice(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        if self.vendor.role_in_every_chunk:
            delta = {"role": "assistant", **delta}
        return {"index": index, "delta": delta, **self.vendor.choice_extra, "finish_reason": finish}

    def usage(self) -> tuple[dict[str, Any], Usage]:
        """The totals so far, as the vendor writes them and as a correct reader normalises them."""
        v, plan = self.vendor, self.plan
        completion = self.output_tokens - (self.reasoning_tokens if v.excludes_reasoning else 0)
        raw: dict[str, Any] = {
            "prompt_tokens": plan.input_tokens,
            "completion_tokens": completion,
            "total_tokens": plan.input_tokens + self.output_tokens,
        }
        if v.reports_cached:
            raw["prompt_tokens_details"] = {"cached_tokens": plan.cached_tokens}
        if v.reports_reasoning:
            raw["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return raw, Usage(
            input_tokens=plan.input_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens if v.reports_reasoning else None,
            cached_input_tokens=plan.cached_tokens if v.reports_cached else None,
        )

    @property
    def wants_usage(self) -> bool:
        return self.plan.include_usage or self.vendor.always_usage or self.plan.continuous_usage

    # the stream

    def opening(self) -> list[tuple[float, Wire]]:
        wires: list[tuple[float, Wire]] = []
        if self.vendor.comment_first and self.vendor.comment is not None:
            wires.append((0.1, Wire(data=self.vendor.comment, events=0, comments=1)))
        if self.vendor.role_chunk:
            for index in range(self.plan.choices):
                delta = {"role": "assistant", "content": ""}
                wires.append((0.9, self._wire([self.choice(index, delta)])))
        return wires

    def keepalive(self) -> Wire | None:
        if self.vendor.comment is None:
            return None
        return Wire(data=self.vendor.comment, events=0, comments=1)

    def say(self, piece: Piece, last: bool) -> list[Wire]:
        delta = self._delta(piece)
        if last and self.vendor.text_in_finish and self.plan.choices == 1 and piece.kind == "text":
            self.finished = True
            choice = self._with_logprobs(self.choice(0, delta, self.plan.finish), piece)
            wire = self._wire([choice], piece=piece)
            wire.terminal, wire.finish_reason = True, self.plan.finish
            return [wire]
        return [self._wire([self._with_logprobs(self.choice(piece.choice, delta), piece)], piece=piece)]

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
            return {self.vendor.reasoning_field: piece.text}
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

    def _wire(self, choices: list[dict[str, Any]], piece: Piece | None = None, **more: Any) -> Wire:
        usage = None
        if self.plan.continuous_usage:
            more["usage"], usage = self.usage()
        if self.vendor.obfuscation and piece is not None:
            more["obfuscation"] = self.plan.token[: 1 + len(piece.text) % 16]
        return Wire(data=self.event(self.chunk(choices, **more)), piece=piece, usage=usage)

    def broken(self) -> Wire:
        return Wire(data=self.event(self.chunk([self.choice(0, {"content": ""})]))[:-24] + self.newline * 2)

    def finish(self) -> list[Wire]:
        wires: list[Wire] = []
        in_finish = self.vendor.usage == "finish_chunk" and self.wants_usage
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
                wire = Wire(
                    data=self.event(self.chunk(choices, **more)), usage=usage, final_usage=usage is not None
                )
                wire.finish_reason = self.plan.finish
                wire.terminal = index == count - 1
                wires.append(wire)
        if self.wants_usage and (self.finished or not in_finish):
            more, usage = self._final()
            wires.append(Wire(data=self.event(self.chunk([], **more)), usage=usage, final_usage=True))
        if self.vendor.done:
            wires.append(Wire(data=self.event("[DONE]")))
        return wires

    def _final(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        return {"usage": raw}, usage

    def fail(self) -> tuple[list[Wire], str]:
        style = self.vendor.error
        done = Wire(data=self.event("[DONE]"))
        error: dict[str, Any]
        if style == "event_then_done":
            error = {
                "message": "Backend agent reported an error.",
                "type": "api_error",
                "code": "agent_failed",
            }
            return [Wire(data=self.event({"error": error}, "error")), done], "api_error"
        if style == "finish_error":
            error = {"code": 502, "message": "Upstream provider disconnected"}
            body = self.chunk([self.choice(0, {"content": ""}, "error")], error=error)
            return [Wire(data=self.event(body)), done], "502"
        if style == "object":
            error = {
                "object": "error",
                "message": "engine is dead",
                "type": "InternalServerError",
                "code": 500,
            }
            return [Wire(data=self.event(error)), done], "InternalServerError"
        if style == "text":  # no type, no code: a reader can only call it by the outcome's name
            return [Wire(data=self.event({"error": "model runner has unexpectedly stopped"}))], "inband_error"
        return [Wire(data=self.event({"error": _ERROR}))], "server_error"

    # not streamed

    def answer(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = self.usage()
        choices = []
        for index in range(self.plan.choices):
            message: dict[str, Any] = {"role": "assistant", "content": self.text[index] or None}
            if self.reasoning and index == 0:
                message[self.vendor.reasoning_field] = self.reasoning
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
    """OpenAI's error body, which most of the field copies."""
    kind, code = {
        429: ("requests", "rate_limit_exceeded"),
        401: ("invalid_request_error", "invalid_api_key"),
        404: ("invalid_request_error", "model_not_found"),
        503: ("service_unavailable_error", "overloaded"),
    }.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}, kind

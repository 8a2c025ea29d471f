"""OpenAI chat completions, and the vendors with compatible ones. Differences between vendors are data (`ChatQuirks`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from streamgauge.simulator.response_plan import Piece, ResponsePlan
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
                    more["usage"], usage = self.usage()
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
                message["tool_calls"] = self.function_calls
            choices.append({"index": index, "message": message, "finish_reason": self.plan.finish})
        return {**self.head("chat.completion"), "choices": choices, "usage": raw}, usage


class OpenAI(ChatWriter):
    vendor = "openai"
    has_refusals = reports_hidden_reasoning = True
    quirks = ChatQuirks(
        reports_reasoning=True,
        obfuscation=True,
        chunk_extra={"service_tier": "default", "system_fingerprint": "fp_simulated"},
        choice_extra={"logprobs": None},
        headers=(("openai-processing-ms", "12"), ("openai-version", "2020-10-01")),
    )


class Azure(OpenAI):
    """The first chunk has filter results without choices, id and model; a late choice has no `delta`."""

    vendor = "azure"
    quirks = ChatQuirks(reports_reasoning=True, choice_extra={"logprobs": None, "content_filter_results": {}},
                    headers=(("azureml-model-session", "simulated"), ("x-ms-region", "Sim Central")))  # fmt: skip

    def preamble(self) -> list[tuple[float, BodyPart]]:
        safe = {"hate": {"filtered": False, "severity": "safe"}}
        first = {"id": "", "object": "", "created": 0, "model": "", "choices": [],
                 "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": safe}]}  # fmt: skip
        return [(0.8, BodyPart(data=self.event(first))), *super().preamble()]

    def finish(self) -> list[BodyPart]:
        note = {
            "index": 0,
            "finish_reason": None,
            "content_filter_offsets": {"start_offset": 0, "end_offset": 1},
        }
        return [BodyPart(data=self.event(self.chunk([note]))), *super().finish()]


class Xerotier(ChatWriter):
    vendor = "xerotier"
    has_refusals = True
    quirks = ChatQuirks(
        usage="finish_chunk",
        comment=b": heartbeat\n\n",
        error="event_then_done",
        chunk_extra={"service_tier": None, "system_fingerprint": None},
        reports_reasoning=True,
        headers=(("x-xerotier-worker-id", "worker-7f3a"),),
    )


class Endless(ChatWriter):
    """No [DONE]; `object: chat.completion`, ids like `stream:chat:…`."""

    vendor = "endless"
    quirks = ChatQuirks(
        id_prefix="stream:chat:",
        object="chat.completion",
        done=False,
        role_chunk=False,
        usage="finish_chunk",
        reports_cached=False,
    )


class Fireworks(ChatWriter):
    """`perf_metrics` on the final chunk: hyphenated keys, strings and numbers, seconds."""

    vendor = "fireworks"
    quirks = ChatQuirks(usage="finish_chunk", always_usage=True,
                    headers=(("fireworks-server-time-to-first-token", "0.1"),))  # fmt: skip

    def _final(self) -> tuple[dict[str, Any], Usage]:
        more, usage = super()._final()
        metrics = {
            "prompt-tokens": str(self.plan.input_tokens),
            "cached-prompt-tokens": str(self.plan.cached_tokens),
            "server-time-to-first-token": f"{self.plan.ttft_s:.3f}",
            "server-processing-time": round(self.plan.ttft_s * 1.5, 3),
            "speculation-prompt-tokens": "0",
            "backend-host": "simulated",
        }
        return {**more, "perf_metrics": metrics}, usage


class Vllm(ChatWriter):
    """Reasoning in `reasoning`; usage on every chunk if requested; the last text comes with the finish reason."""

    vendor = "vllm"
    quirks = ChatQuirks(reasoning_field="reasoning", text_in_finish=True, error="object",
                    reports_cached=False, choice_extra={"logprobs": None})  # fmt: skip


class SGLang(ChatWriter):
    vendor = "sglang"
    quirks = ChatQuirks(error="object", reports_reasoning=False, choice_extra={"matched_stop": None})


class LlamaCpp(ChatWriter):
    """Usage and `timings` together; `content: null` in the role chunk."""

    vendor = "llamacpp"
    quirks = ChatQuirks(always_usage=True, chunk_extra={"system_fingerprint": "b10499-sim"},
                    headers=(("server", "llama.cpp"),))  # fmt: skip

    def _final(self) -> tuple[dict[str, Any], Usage]:
        more, usage = super()._final()
        n, gap_ms = max(1, self.output_tokens), max(self.plan.gap_s * 1000, 0.001)
        fresh = self.plan.input_tokens - self.plan.cached_tokens
        ttft_ms = max(self.plan.ttft_s * 1000, 0.001)
        timings = {
            "cache_n": self.plan.cached_tokens, "prompt_n": fresh, "prompt_ms": ttft_ms,
            "prompt_per_token_ms": ttft_ms / max(1, fresh), "prompt_per_second": fresh / ttft_ms * 1000,
            "predicted_n": n, "predicted_ms": gap_ms * n, "predicted_per_token_ms": gap_ms,
            "predicted_per_second": 1000 / gap_ms,
        }  # fmt: skip
        return {**more, "timings": timings}, usage


class Ollama(ChatWriter):
    """A role in every delta, reasoning in `reasoning`."""

    vendor = "ollama"
    quirks = ChatQuirks(reasoning_field="reasoning", role_chunk=False, role_in_every_chunk=True, error="text",
                    reports_cached=False, chunk_extra={"system_fingerprint": "fp_ollama"})  # fmt: skip

    def _delta(self, piece: Piece) -> dict[str, Any]:
        return {"content": "", **super()._delta(piece)}


class OpenRouter(ChatWriter):
    """Keep-alive comments; an error is a top-level `error` with `finish_reason: "error"`."""

    vendor = "openrouter"
    quirks = ChatQuirks(
        id_prefix="gen-",
        always_usage=True,
        usage="finish_chunk",
        reasoning_field="reasoning",
        reports_reasoning=True,
        comment=b": OPENROUTER PROCESSING\n\n",
        comment_first=True,
        error="finish_error",
        chunk_extra={"provider": "Simulated"},
        choice_extra={"native_finish_reason": None, "logprobs": None},
        role_in_every_chunk=True,
        role_chunk=False,
    )

    def usage(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = super().usage()
        return {**raw, "cost": round(self.output_tokens * 1e-6, 8), "is_byok": False}, usage


class DeepSeek(ChatWriter):
    """`reasoning_content`, usage on the finish chunk with cache hits and misses, keep-alive comments."""

    vendor = "deepseek"
    quirks = ChatQuirks(
        always_usage=True, usage="finish_chunk", reports_reasoning=True, comment=b": keep-alive\n\n"
    )

    def usage(self) -> tuple[dict[str, Any], Usage]:
        raw, usage = super().usage()
        raw["prompt_cache_hit_tokens"] = self.plan.cached_tokens
        raw["prompt_cache_miss_tokens"] = self.plan.input_tokens - self.plan.cached_tokens
        return raw, usage


class Groq(ChatWriter):
    """Usage inside `x_groq` on the finish chunk."""

    vendor = "groq"
    quirks = ChatQuirks(always_usage=True, usage="finish_chunk", reports_cached=False,
                    headers=(("x-groq-region", "sim"),))  # fmt: skip

    def _final(self) -> tuple[dict[str, Any], Usage]:
        more, usage = super()._final()
        times = {
            "queue_time": 0.01,
            "prompt_time": self.plan.ttft_s,
            "completion_time": 0.5,
            "total_time": 0.6,
        }
        return {"x_groq": {"id": f"req_{self.plan.token[:20]}", "usage": {**more["usage"], **times}}}, usage


class Mistral(ChatWriter):
    vendor = "mistral"
    quirks = ChatQuirks(id_prefix="", always_usage=True, usage="finish_chunk", reports_cached=False)


class XAI(ChatWriter):
    """`completion_tokens` excludes reasoning."""

    vendor = "xai"
    reports_hidden_reasoning = True
    quirks = ChatQuirks(id_prefix="", always_usage=True, reports_reasoning=True, excludes_reasoning=True)


class Together(ChatWriter):
    """Each chunk repeats its text as `choices[].text`."""

    vendor = "together"
    quirks = ChatQuirks(id_prefix="", always_usage=True, usage="finish_chunk", reports_cached=False)

    def choice(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**super().choice(index, delta, finish), "text": delta.get("content", "")}


CHAT_WRITERS = (
    OpenAI, Azure, Xerotier, Endless, Fireworks, Vllm, SGLang, LlamaCpp, Ollama, OpenRouter, DeepSeek, Groq, Mistral,
    XAI, Together,
)  # fmt: skip

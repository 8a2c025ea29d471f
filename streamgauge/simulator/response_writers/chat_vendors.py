"""Vendors with OpenAI-compatible chat completions."""

from __future__ import annotations

from typing import Any

from streamgauge.simulator.planning.response_plan import Piece
from streamgauge.simulator.response_writers.chat import ChatQuirks, ChatWriter
from streamgauge.simulator.response_writers.response_writer import BodyPart, Usage


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
        return {**more, "perf_metrics": self.perf_metrics()}, usage

    def perf_metrics(self) -> dict[str, Any]:
        return fireworks_metrics(self.plan.input_tokens, self.plan.cached_tokens, self.plan.ttft_s)


def fireworks_metrics(input_tokens: int, cached_tokens: int, ttft_s: float) -> dict[str, Any]:
    return {
        "prompt-tokens": str(input_tokens),
        "cached-prompt-tokens": str(cached_tokens),
        "server-time-to-first-token": f"{ttft_s:.3f}",
        "server-processing-time": round(ttft_s * 1.5, 3),
        "speculation-prompt-tokens": "0",
        "backend-host": "simulated",
    }


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

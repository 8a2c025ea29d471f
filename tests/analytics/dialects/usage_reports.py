"""Usage reports made at random from the schemas that providers document, each with the counts that follow from its schema.

An independent statement of the schemas: nothing of it is taken from `streamgauge.analytics.dialects`. `SCHEMAS` has a generator for
each kind of report, and `response_of` a whole response with it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Report:
    """A report and what it says."""

    usage: dict[str, Any]
    input_tokens: int
    output_tokens: int
    total: str | None = None
    """Member with the total. None: the schema has none."""
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    is_consistent: bool = True


def _some(rng: random.Random, most: int) -> int:
    return rng.choice((0, rng.randint(0, most)))


def _of(rng: random.Random, members: dict[str, int]) -> dict[str, int]:
    """The members. Servers may omit those that are 0."""
    return members if rng.random() < 0.5 else {name: value for name, value in members.items() if value}


def chat(rng: random.Random) -> Report:
    """OpenAI: total = prompt + completion. Cached, audio and image tokens are in the prompt, and reasoning in the completion."""
    prompt, completion = rng.randint(1, 200_000), rng.randint(1, 20_000)
    cached, reasoning = rng.randint(0, prompt), rng.randint(0, completion)
    details = {"cached_tokens": cached, "audio_tokens": _some(rng, prompt - cached)}
    usage = {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": details, "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }  # fmt: skip
    return Report(usage, prompt, completion, "total_tokens", cached, reasoning)


def deepseek(rng: random.Random) -> Report:
    """The prompt is the sum of cache hits and misses."""
    hit, miss, completion = rng.randint(0, 50_000), rng.randint(1, 50_000), rng.randint(1, 8_000)
    usage = {
        "prompt_tokens": hit + miss, "completion_tokens": completion, "total_tokens": hit + miss + completion,
        "prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": miss,
    }  # fmt: skip
    return Report(usage, hit + miss, completion, "total_tokens", hit)


def xai(rng: random.Random) -> Report:
    """The completion leaves out reasoning, and the total contains it."""
    prompt, completion, reasoning = rng.randint(1, 90_000), rng.randint(1, 9_000), _some(rng, 30_000)
    usage = {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion + reasoning,
        "completion_tokens_details": {"reasoning_tokens": reasoning}, "num_sources_used": 0,
        "cost_in_usd_ticks": rng.randint(0, 10**9),
    }  # fmt: skip
    return Report(usage, prompt, completion + reasoning, "total_tokens", None, reasoning)


def perplexity(rng: random.Random) -> Report:
    """Deep research: completion and total exclude reasoning."""
    prompt, completion, reasoning = rng.randint(1, 900), rng.randint(1, 9_000), rng.randint(0, 90_000)
    usage = {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "citation_tokens": rng.randint(0, 20_000), "num_search_queries": rng.randint(1, 80), "reasoning_tokens": reasoning,
    }  # fmt: skip
    return Report(usage, prompt, completion + reasoning, "total_tokens", None, reasoning)


def responses(rng: random.Random) -> Report:
    inputs, outputs = rng.randint(1, 200_000), rng.randint(1, 20_000)
    cached, reasoning = rng.randint(0, inputs), rng.randint(0, outputs)
    usage = {
        "input_tokens": inputs, "output_tokens": outputs, "total_tokens": inputs + outputs,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": _some(rng, inputs - cached)},
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }  # fmt: skip
    return Report(usage, inputs, outputs, "total_tokens", cached, reasoning)


def realtime(rng: random.Random) -> Report:
    """Each count is the sum of its modalities, and so is the cached one."""
    text, audio, image, out_text, out_audio = (rng.randint(0, 5_000) for _ in range(5))
    cached = {
        "text_tokens": _some(rng, text),
        "audio_tokens": _some(rng, audio),
        "image_tokens": _some(rng, image),
    }
    inputs, outputs = text + audio + image + 1, out_text + out_audio + 1
    usage = {
        "total_tokens": inputs + outputs, "input_tokens": inputs, "output_tokens": outputs,
        "input_token_details": {
            "text_tokens": text + 1, "audio_tokens": audio, "image_tokens": image, "cached_tokens": sum(cached.values()),
            "cached_tokens_details": cached,
        },
        "output_token_details": {"text_tokens": out_text + 1, "audio_tokens": out_audio},
    }  # fmt: skip
    return Report(usage, inputs, outputs, "total_tokens", sum(cached.values()))


def images(rng: random.Random) -> Report:
    text, image, output = rng.randint(1, 500), _some(rng, 5_000), rng.randint(1, 8_000)
    usage = {
        "input_tokens": text + image, "input_tokens_details": {"text_tokens": text, "image_tokens": image},
        "output_tokens": output, "output_tokens_details": {"image_tokens": output, "text_tokens": 0},
        "total_tokens": text + image + output,
    }  # fmt: skip
    return Report(usage, text + image, output, "total_tokens")


def transcription(rng: random.Random) -> Report:
    audio, output = rng.randint(1, 5_000), rng.randint(1, 800)
    usage = {
        "type": "tokens", "input_tokens": audio, "input_token_details": {"text_tokens": 0, "audio_tokens": audio},
        "output_tokens": output, "total_tokens": audio + output,
    }  # fmt: skip
    return Report(usage, audio, output, "total_tokens")


def anthropic(rng: random.Random) -> Report:
    """No total. With iterations, the billed counts are their sums; the top-level counts exclude compactions."""
    iterations: list[dict[str, Any]] = []
    for kind in rng.choice(
        (["message"], ["compaction", "message"], ["message", "message"], ["message", "fallback_message"])
    ):
        an_hour, five_minutes = _some(rng, 900), _some(rng, 900)
        iterations.append({
            "type": kind, "input_tokens": rng.randint(1, 9_000), "output_tokens": rng.randint(1, 900),
            "cache_read_input_tokens": _some(rng, 90_000), "cache_creation_input_tokens": an_hour + five_minutes,
            "cache_creation": {"ephemeral_5m_input_tokens": five_minutes, "ephemeral_1h_input_tokens": an_hour},
        })  # fmt: skip
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    messages = [one for one in iterations if one["type"] != "compaction"]
    usage: dict[str, Any] = {name: sum(one[name] for one in messages) for name in counts}
    billed = iterations
    if len(iterations) > 1 or rng.random() < 0.5:
        usage["iterations"] = iterations
    usage["service_tier"] = "standard"
    return Report(
        usage,
        sum(one[name] for one in billed for name in counts[:3]),
        sum(one["output_tokens"] for one in billed),
        None,
        sum(one["cache_read_input_tokens"] for one in billed),
    )


def _gemini_parts(rng: random.Random) -> tuple[int, int, int, int, int]:
    prompt = rng.randint(1, 90_000)
    return prompt, _some(rng, 30_000), rng.randint(1, 9_000), _some(rng, 9_000), _some(rng, prompt)


def gemini(rng: random.Random) -> Report:
    """Total = prompt + tool use + candidates + thoughts. The cached part is in the prompt."""
    prompt, tool_use, candidates, thoughts, cached = _gemini_parts(rng)
    image = _some(rng, prompt)
    usage: dict[str, Any] = _of(rng, {
        "promptTokenCount": prompt, "toolUsePromptTokenCount": tool_use, "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts, "cachedContentTokenCount": cached,
    })  # fmt: skip
    usage = usage | {"totalTokenCount": prompt + tool_use + candidates + thoughts}
    usage["promptTokensDetails"] = [
        {"modality": "TEXT", "tokenCount": prompt - image}, {"modality": "IMAGE", "tokenCount": image},
    ]  # fmt: skip
    return Report(usage, prompt + tool_use, candidates + thoughts, "totalTokenCount")


def interactions(rng: random.Random) -> Report:
    prompt, tool_use, outputs, thoughts, cached = _gemini_parts(rng)
    usage: dict[str, Any] = {
        "total_input_tokens": prompt, "total_tool_use_tokens": tool_use, "total_output_tokens": outputs,
        "total_thought_tokens": thoughts, "total_cached_tokens": cached, "total_tokens": prompt + tool_use + outputs + thoughts,
    }  # fmt: skip
    return Report(usage, prompt + tool_use, outputs + thoughts, "total_tokens", cached, thoughts)


def bedrock(rng: random.Random) -> Report:
    """The input leaves out what is read from the cache and written to it, and the total contains both."""
    fresh, read, written, outputs = (
        rng.randint(1, 9_000),
        _some(rng, 90_000),
        _some(rng, 9_000),
        rng.randint(1, 900),
    )
    usage = {
        "inputTokens": fresh, "outputTokens": outputs, "totalTokens": fresh + read + written + outputs,
        "cacheReadInputTokens": read, "cacheWriteInputTokens": written,
    }  # fmt: skip
    return Report(usage, fresh + read + written, outputs, "totalTokens", read)


def cohere(rng: random.Random) -> Report:
    """Tokens of the model, and those that are billed. No total."""
    inputs, outputs = rng.randint(1, 9_000), rng.randint(1, 900)
    usage = {
        "tokens": {"input_tokens": inputs, "output_tokens": outputs, "reasoning_tokens": _some(rng, outputs)},
        "billed_units": {"input_tokens": rng.randint(0, inputs), "output_tokens": rng.randint(0, outputs)},
        "cached_tokens": _some(rng, inputs),
    }  # fmt: skip
    return Report(usage, inputs, outputs)


SCHEMAS: dict[str, Callable[[random.Random], Report]] = {
    one.__name__: one
    for one in (
        chat, deepseek, xai, perplexity, responses, realtime, images, transcription, anthropic, gemini, interactions, bedrock,
        cohere,
    )
}  # fmt: skip


def wrong(report: Report, rng: random.Random) -> Report:
    """The report with a total that none of its parts explain; itself if it has no total."""
    if report.total is not None:
        # A part of 1 token may be in its whole or beside it, which explains a difference of 1.
        has_one = re.search(r"\b1\b", json.dumps(report.usage)) is not None
        total = report.usage[report.total] + rng.choice((10**6 + 3,) if has_one else (-1, 1, 10**6 + 3))
        return replace(report, usage=report.usage | {report.total: total}, is_consistent=False)
    return report


def response_of(schema: str, usage: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path of a request, and a whole response with this report."""
    finished = {"status": "completed", "id": "r", "model": "m", "usage": usage}
    message = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "responses": ("/v1/responses", {"object": "response", "output": [], **finished}),
        "images": ("/v1/images/generations", {"data": [{"b64_json": "AA"}], "usage": usage}),
        "transcription": ("/v1/audio/transcriptions", {"text": "Hi", "usage": usage}),
        "anthropic": ("/v1/messages", {"type": "message", "stop_reason": "end_turn", "usage": usage, **message}),
        "gemini": (
            "/v1beta/models/m:generateContent",
            {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}], "usageMetadata": usage},
        ),
        "interactions": ("/v1beta/interactions", {"object": "interaction", "outputs": [], **finished}),
        "bedrock": (
            "/model/m/converse",
            {"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn", "usage": usage},
        ),
        "cohere": ("/v2/chat", {"id": "r", "finish_reason": "COMPLETE", "message": message, "usage": usage}),
        "realtime": ("/v1/realtime", {"object": "realtime.response", "output": [], **finished}),
    }  # fmt: skip
    choices = [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]
    return bodies.get(schema, ("/v1/chat/completions", {"choices": choices, "usage": usage}))


def body_of(schema: str, usage: dict[str, Any]) -> tuple[str, bytes]:
    path, body = response_of(schema, usage)
    return path, json.dumps(body).encode()

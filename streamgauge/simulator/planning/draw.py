"""Draw the plan of a response from the model's profile, a seed and the request.

The draw is keyed by seed and request id, so it does not depend on the order of requests. Values that the request forces
replace drawn ones. Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from streamgauge.simulator.planning.profiles import Profile, Reasoning
from streamgauge.simulator.planning.response_plan import ResponsePlan
from streamgauge.simulator.planning.simulate_header import ForcedValues

FAULT_WEIGHTS = {
    "http_429": 24, "http_500": 6, "http_503": 8, "inband_error": 12, "truncate": 10, "reset": 6, "cut": 4, "malformed": 2,
    "malformed_event": 4, "stall": 10, "burst": 7, "linger": 3, "slow_first_byte": 4, "reset_before_head": 3,
}  # fmt: skip
_PROMPT_FIELDS = ("messages", "prompt", "input", "contents", "system", "instructions", "tools", "systemInstruction")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Drawn:
    token: str
    fault: str
    ttft_s: float
    text_tokens: int
    reasoning_tokens: int
    tool_calls: int
    refusal: bool
    cached_share: float
    stall_s: float
    fault_position: float
    """Where the fault occurs, as a share of the output events."""


def draw_plan(
    *,
    seed: str,
    request_id: str,
    profile: Profile,
    body: dict[str, Any],
    streamed: bool,
    forced: ForcedValues,
    rate_faults: float,
    time_scale: float,
) -> ResponsePlan:
    """Plan the response to one request. `rate_faults` is the share of requests that draw a fault."""
    key = f"{seed}/{request_id}"
    drawn = _draw(key, profile, body, rate_faults)
    fault = drawn.fault if forced == ForcedValues() else forced.fault or "none"
    content = _content(drawn, profile, body, forced)
    chunk_tokens = max(1, forced.chunk_tokens or profile.chunk_tokens)
    fault_after = forced.fault_after
    if fault_after is None:
        fault_after = int(drawn.fault_position * max(1, _expected_events(content, chunk_tokens)))
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return ResponsePlan(
        request_id=request_id,
        token=drawn.token,
        vendor=forced.speaker or profile.vendor,
        model=str(body.get("model") or profile.model),
        streamed=streamed,
        **content,
        chunk_tokens=chunk_tokens,
        include_usage=bool(options.get("include_usage")) if forced.usage is None else forced.usage,
        continuous_usage=bool(options.get("continuous_usage_stats")),
        logprobs=body.get("logprobs") is True,
        **_timing(drawn, profile, forced, fault, content, time_scale),
        fault=fault,
        fault_after=fault_after,
        coding=forced.coding or "identity",
        framing=forced.framing or "chunked",
        exact_chunks=forced.chunk_tokens is not None,
        seed=key,
    )


def _draw(key: str, profile: Profile, body: dict[str, Any], rate_faults: float) -> _Drawn:
    """Draw all values in a fixed order, even unused ones, so forcing one value does not change the others."""
    rng = Random(key)  # noqa: S311
    token = f"{rng.getrandbits(128):032x}"
    has_fault = rng.random() < rate_faults
    fault = rng.choices(list(FAULT_WEIGHTS), list(FAULT_WEIGHTS.values()))[0] if has_fault else "none"
    ttft_s = rng.lognormvariate(math.log(profile.ttft_s), profile.ttft_sigma)
    text_tokens = 1 + int(rng.lognormvariate(math.log(profile.tokens), profile.tokens_sigma))
    reasoning_tokens = 0
    if profile.reasoning != "none":
        reasoning_tokens = 1 + int(rng.lognormvariate(math.log(max(1, profile.reasoning_tokens)), 0.5))
    wants_tools = bool(body.get("tools")) and rng.random() < profile.tool_share
    return _Drawn(
        token=token,
        fault=fault,
        ttft_s=ttft_s,
        text_tokens=text_tokens,
        reasoning_tokens=reasoning_tokens,
        tool_calls=rng.choice((1, 1, 2)) if wants_tools else 0,
        refusal=rng.random() < 0.01,
        cached_share=rng.choice((0.0, 0.0, 0.5, 0.9)),
        stall_s=rng.uniform(2.5, 5.0),
        fault_position=rng.random(),
    )


def _content(drawn: _Drawn, profile: Profile, body: dict[str, Any], forced: ForcedValues) -> dict[str, Any]:
    """The plan's fields for kinds and amounts of generated content."""
    text_tokens, tool_calls, refusal = drawn.text_tokens, drawn.tool_calls, drawn.refusal
    reasoning_tokens = drawn.reasoning_tokens
    if tool_calls:
        text_tokens = min(text_tokens, 8)
    limit = _token_limit(body)
    length_finish = limit is not None and text_tokens > limit
    if limit is not None:
        text_tokens = min(text_tokens, limit)
    if forced.finish is not None:
        length_finish = forced.finish == "length"
    if forced.tokens is not None:
        text_tokens, tool_calls, refusal = forced.tokens, 0, False
        if forced.reasoning_tokens is None:
            reasoning_tokens = 0
    if forced.tool_calls is not None:
        tool_calls = forced.tool_calls
    reasoning: Reasoning = profile.reasoning
    if forced.reasoning_tokens is not None:
        reasoning_tokens = forced.reasoning_tokens
        reasoning = profile.reasoning if profile.reasoning != "none" else "visible"
    if forced.reasoning is not None:
        reasoning = forced.reasoning
    if reasoning == "none" or reasoning_tokens == 0:
        reasoning, reasoning_tokens = "none", 0
    input_tokens = forced.input_tokens if forced.input_tokens is not None else _prompt_tokens(body)
    cached_tokens = int(input_tokens * drawn.cached_share)
    if forced.cached_tokens is not None:
        cached_tokens = min(forced.cached_tokens, input_tokens)
    choices = body.get("n")
    return {
        "input_tokens": input_tokens,
        "cached_tokens": cached_tokens,
        "text_tokens": text_tokens,
        "reasoning": reasoning,
        "reasoning_tokens": reasoning_tokens,
        "tool_calls": tool_calls,
        "refusal": refusal if forced.refusal is None else forced.refusal,
        "choices": choices if isinstance(choices, int) and 1 <= choices <= 128 else 1,
        "length_finish": length_finish,
    }


def _expected_events(content: dict[str, Any], chunk_tokens: int) -> int:
    tokens_per_event = max(1, (chunk_tokens + 1) // 2)
    events: int = content["text_tokens"] * content["choices"] // tokens_per_event + 4 * content["tool_calls"]
    if content["reasoning"] == "visible":
        events += content["reasoning_tokens"] // tokens_per_event
    return events


def _timing(
    drawn: _Drawn, profile: Profile, forced: ForcedValues, fault: str, content: dict[str, Any], scale: float
) -> dict[str, Any]:
    """The plan's times in seconds. Forced times are not scaled."""
    gap_sigma = profile.gap_sigma if forced.gap_ms is None else 0.0
    if forced.ttft_ms is not None:
        ttft_s = forced.ttft_ms / 1000
    else:
        ttft_s = drawn.ttft_s
        ttft_s += (content["input_tokens"] - content["cached_tokens"]) / profile.prefill_tokens_per_s
        if content["reasoning"] == "hidden":
            ttft_s += content["reasoning_tokens"] * profile.gap_s
        ttft_s *= (4 if fault == "slow_first_byte" else 1) * scale
    return {
        "ttft_s": ttft_s,
        "head_s": ttft_s * (1.0 if fault == "slow_first_byte" else profile.head_fraction),
        "gap_s": profile.gap_s * scale if forced.gap_ms is None else forced.gap_ms / 1000,
        "gap_sigma": gap_sigma if forced.jitter is None else forced.jitter,
        "stall_s": drawn.stall_s * scale if forced.stall_ms is None else forced.stall_ms / 1000,
    }


def _prompt_tokens(body: dict[str, Any]) -> int:
    """Estimate the prompt tokens at four bytes per token."""
    return max(1, len(msgspec.json.encode({key: body[key] for key in _PROMPT_FIELDS if key in body})) // 4)


def _token_limit(body: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None

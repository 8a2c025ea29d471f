"""Normalise usage objects: `usage_of` those of the OpenAI family, `usage_in` those with names of their own. `details_in` reads the
parts of a count that have prices of their own.

Reasoning tokens are part of output tokens. xAI reports completion tokens without them; they are added where the total shows it.
Cached input is part of the input.
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects.events import Usage
from streamgauge.analytics.dialects.tolerant_json import whole_number

_INPUT_DETAILS = (
    "prompt_tokens_details",
    "input_tokens_details",
    "prompt_token_details",
    "input_token_details",
)
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_INPUT_PARTS = (*_INPUT_DETAILS, "promptTokensDetails", "input_tokens_by_modality")
_OUTPUT_PARTS = (
    *_OUTPUT_DETAILS,
    "output_token_details",
    "candidatesTokensDetails",
    "output_tokens_by_modality",
)
_CACHED_PARTS = ("cached_tokens_details", "cacheTokensDetails", "cached_tokens_by_modality")
_WRITES = (
    "cache_creation_input_tokens",
    "cacheWriteInputTokens",
    "cache_write_tokens",
    "cache_creation_tokens",
)
_WRITES_BY_LIFETIME = ("cache_creation", "cache_creation_token_details", "cacheDetails")
_DETAILED = frozenset({
    *_INPUT_PARTS, *_OUTPUT_PARTS, *_CACHED_PARTS, *_WRITES, *_WRITES_BY_LIFETIME, "server_tool_use",
})  # fmt: skip
"""Members of a report that has details."""
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens")


def usage_of(raw: Any) -> Usage | None:
    """The normalised report; None for an empty object and other types."""
    if not isinstance(raw, dict) or not raw:
        return None
    inputs, outputs = raw.get("prompt_tokens"), raw.get("completion_tokens")
    if len(raw) == 3 and inputs is None is outputs:
        inputs, outputs = raw.get("input_tokens"), raw.get("output_tokens")
    if (
        len(raw) == 3
        and type(inputs) is type(outputs) is int
        and "total_tokens" in raw
        and inputs >= 0 <= outputs
    ):
        return Usage(inputs, outputs, None, None, raw)  # fast path: the usual report on every chunk
    inputs, outputs = whole_number(inputs), whole_number(outputs)
    if inputs is None:
        inputs = whole_number(raw.get("input_tokens"))
    if outputs is None:
        outputs = whole_number(raw.get("output_tokens"))
    reasoning = _first(raw, _OUTPUT_DETAILS, ("reasoning_tokens",))
    if reasoning is None:
        reasoning = whole_number(raw.get("reasoning_tokens"))
    cached = _first(raw, _INPUT_DETAILS, ("cached_tokens",))
    if cached is None:
        cached = next((n for key in _CACHED if (n := whole_number(raw.get(key))) is not None), None)
    if outputs is not None and inputs is not None and reasoning:
        total = whole_number(raw.get("total_tokens"))
        if total == inputs + outputs + reasoning:
            outputs += reasoning
    return Usage(inputs, outputs, reasoning, cached, raw)


def usage_in(
    raw: Any,
    input_tokens: str,
    output_tokens: str,
    *,
    reasoning_tokens: str = "",
    cached_input_tokens: str = "",
) -> Usage | None:
    """The report in an object whose members have these names; None for other types.

    Every count passes `whole_number`, so text, negative and fractional numbers are unknown.
    """
    if not isinstance(raw, dict):
        return None
    inputs, outputs, reasoning, cached = (
        whole_number(raw.get(member))
        for member in (input_tokens, output_tokens, reasoning_tokens, cached_input_tokens)
    )
    return Usage(inputs, outputs, reasoning, cached, raw)


def details_in(raw: Any) -> dict[str, int | None]:
    """Columns of `streams` with parts of the counts of a report. A missing column, or None, is not reported."""
    if not isinstance(raw, dict) or _DETAILED.isdisjoint(raw):
        return {}
    inputs, outputs = _parts(raw, _INPUT_PARTS), _parts(raw, _OUTPUT_PARTS)
    every = raw | inputs
    cached, written = _parts(every, _CACHED_PARTS), _parts(every, _WRITES_BY_LIFETIME)
    server_tools = raw.get("server_tool_use")
    five_minutes, an_hour = (
        whole_number(written.get(f"ephemeral_{life}_input_tokens", written.get(f"{life}_tokens")))
        for life in ("5m", "1h")
    )
    writes = next((n for key in _WRITES if (n := whole_number(every.get(key))) is not None), None)
    if writes is None and five_minutes is not None:
        writes = five_minutes + (an_hour or 0)
    return {
        "cached_audio_tokens": whole_number(cached.get("audio_tokens")),
        "cache_write_tokens": writes,
        "cache_write_1h_tokens": an_hour,
        "input_audio_tokens": whole_number(inputs.get("audio_tokens")),
        "input_image_tokens": whole_number(inputs.get("image_tokens")),
        "output_audio_tokens": whole_number(outputs.get("audio_tokens")),
        "output_image_tokens": whole_number(outputs.get("image_tokens")),
        "web_searches": whole_number(server_tools.get("web_search_requests"))
        if isinstance(server_tools, dict)
        else None,
    }


def _parts(raw: dict[str, Any], members: tuple[str, ...]) -> dict[str, Any]:
    """The first of these members as an object. Gemini and Bedrock have a list with an object for each part."""
    found = next((raw[member] for member in members if member in raw), None)
    if isinstance(found, dict):
        return found
    parts = [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    return {
        f"{str(part.get('modality', part.get('ttl'))).lower()}_tokens": next(
            (part[key] for key in ("tokenCount", "tokens", "inputTokens") if key in part), None
        )
        for part in parts
    }


def _first(raw: dict[str, Any], members: tuple[str, ...], keys: tuple[str, ...]) -> int | None:
    for member in members:
        inner = raw.get(member)
        if isinstance(inner, dict):
            for key in keys:
                number = whole_number(inner.get(key))
                if number is not None:
                    return number
    return None

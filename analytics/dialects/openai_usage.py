"""Read the usage object of the OpenAI family: chat, completions and their many speakers.

Reasoning tokens are inside output tokens. xAI reports completion tokens without them: there the total tells, and they are
added. Cached input is a part of the input.
"""

from __future__ import annotations

from typing import Any

from analytics.decoded.decoded_event import Usage
from analytics.dialects.numbers import whole_number

_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details", "prompt_token_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens")


def usage_of(raw: Any) -> Usage | None:
    """The report, None when it says nothing."""
    if not isinstance(raw, dict) or not raw:
        return None
    given, made = raw.get("prompt_tokens"), raw.get("completion_tokens")
    if len(raw) == 3 and given is None is made:
        given, made = raw.get("input_tokens"), raw.get("output_tokens")
    if len(raw) == 3 and type(given) is type(made) is int and "total_tokens" in raw and given >= 0 <= made:
        return Usage(given, made, None, None, raw)  # the usual report of servers that give one on every chunk
    given, made = whole_number(given), whole_number(made)
    if given is None:
        given = whole_number(raw.get("input_tokens"))
    if made is None:
        made = whole_number(raw.get("output_tokens"))
    reasoning = _first(raw, _OUTPUT_DETAILS, ("reasoning_tokens",))
    if reasoning is None:
        reasoning = whole_number(raw.get("reasoning_tokens"))
    cached = _first(raw, _INPUT_DETAILS, ("cached_tokens",))
    if cached is None:
        cached = next((n for key in _CACHED if (n := whole_number(raw.get(key))) is not None), None)
    if made is not None and given is not None and reasoning:
        total = whole_number(raw.get("total_tokens"))
        if total == given + made + reasoning:
            made += reasoning
    return Usage(given, made, reasoning, cached, raw)


def _first(raw: dict[str, Any], places: tuple[str, ...], keys: tuple[str, ...]) -> int | None:
    for place in places:
        inner = raw.get(place)
        if isinstance(inner, dict):
            for key in keys:
                number = whole_number(inner.get(key))
                if number is not None:
                    return number
    return None

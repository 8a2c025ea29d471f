"""Normalise usage objects: `usage_of` those of the OpenAI family, `usage_in` those with names of their own. `details_in` reads the
parts of a count that have prices of their own and what else a report states about the price. `faults_in` checks a report
against itself.

Cached input is part of the input, and reasoning part of the output. Some providers count a part separately, so it is added:
- The report's total shows it (xAI's reasoning).
- The part is larger than its whole (Perplexity's and Vercel's reasoning). Perplexity's deep research always counts it so.
- Sakana documents it (orchestration).

Rules of the totals, as documented. OpenAI and its family: input + output. xAI: plus reasoning. Gemini: prompt + tool use +
candidates (+ thoughts). Bedrock: input + cache reads + cache writes + output. Anthropic and Cohere have none.
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.events import Usage
from streamgauge.analytics.dialects.tolerant_json import finite_number, member_of, string_of, whole_number
from streamgauge.ingest.identifiers import is_name, name

LOOKED_UP = kept.members(
    name="modality ttl inference_geo search_context_size trafficType serviceTier service_tier speed"
)
_INPUT_DETAILS = (
    "prompt_tokens_details",
    "input_tokens_details",
    "prompt_token_details",
    "input_token_details",
)
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_INPUT_PARTS = (*_INPUT_DETAILS, "promptTokensDetails", "input_tokens_by_modality")
_TOOL_USE_PARTS = ("toolUsePromptTokensDetails", "tool_use_tokens_by_modality")
_OUTPUT_PARTS = (
    *_OUTPUT_DETAILS,
    "candidatesTokensDetails",
    "responseTokensDetails",
    "output_tokens_by_modality",
)
_CACHED_PARTS = ("cached_tokens_details", "cacheTokensDetails", "cached_tokens_by_modality")
_WRITES = (
    "cache_creation_input_tokens",
    "cacheWriteInputTokens",
    "cacheWriteInputTokenCount",
    "cache_write_tokens",
    "cache_creation_tokens",
)
_WRITES_BY_LIFETIME = ("cache_creation", "cache_creation_token_details", "cacheDetails")
_SEARCHES = {
    # object of a report → its counts of searches
    "server_tool_use": ("web_search_requests",),  # Anthropic, OpenRouter
    "server_side_tool_usage_details": ("web_search_calls", "x_search_calls"),  # xAI: both have the same price
    "plugins": ("search",),  # DashScope
    "web_search": ("num_requests",),  # the Responses API, in `tool_usage`
}
_SEARCH_COUNTS = ("num_search_queries", "num_sources_used")
"""Perplexity's deep research; xAI's former live search."""
_COSTS = ("cost", "cost_in_usd_ticks", "estimated_cost")
_TICKS_PER_USD = 1e10
_TIERS = ("service_tier", "serviceTier", "trafficType")
_ITERATIONS = "iterations"
_DETAILED = frozenset({
    *_INPUT_PARTS, *_TOOL_USE_PARTS, *_OUTPUT_PARTS, *_CACHED_PARTS, *_WRITES, *_WRITES_BY_LIFETIME, *_SEARCHES, *_SEARCH_COUNTS,
    *_COSTS, *_TIERS, _ITERATIONS, "tool_usage", "grounding_tool_count", "billed_units", "speed", "inference_geo",
})  # fmt: skip
"""Members of a report that has details."""
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens")
_TOTALS = ("total_tokens", "totalTokenCount", "totalTokens")
_ORCHESTRATION = (
    (_INPUT_DETAILS, "orchestration_input_tokens"),
    (_INPUT_DETAILS, "orchestration_input_cached_tokens"),
    (_OUTPUT_DETAILS, "orchestration_output_tokens"),
)
"""Sakana's tokens of other agents, in the details but beside the counts, at the same prices. The total contains them."""
_IMAGE_TOOL = ("tool_usage", "image_gen")
"""The tokens of OpenAI's image tool, which another model has counted. The counts and the total leave them out."""
_DEEP_RESEARCH = frozenset({"citation_tokens", "num_search_queries"})
"""Members of Perplexity's deep research, whose completion excludes reasoning and whose prompt excludes citations."""


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
    reasoning = _first_inner(raw, _OUTPUT_DETAILS, "reasoning_tokens")
    if reasoning is None:
        reasoning = whole_number(raw.get("reasoning_tokens"))
    cached = _first_inner(raw, _INPUT_DETAILS, "cached_tokens")
    if not cached:  # gateways that convert a report leave 0 in one of the places
        beside = _first(raw, _CACHED)
        cached = beside or (beside if cached is None else cached)
    total = whole_number(raw.get("total_tokens"))
    if inputs is not None and outputs is not None and total != inputs + outputs:
        of_inputs, of_cached, of_outputs = (_first_inner(raw, *of) or 0 for of in _ORCHESTRATION)
        inputs, outputs = inputs + of_inputs, outputs + of_outputs
        cached = cached + of_cached if cached is not None else of_cached or None
    usage = Usage(inputs, outputs, reasoning, cached, raw)
    if inputs is not None and outputs is not None and (reasoning or cached):
        _add_separate_parts(usage, inputs, outputs, total)
    if "tool_usage" in raw and usage.input_tokens is not None and usage.output_tokens is not None:
        of_images = _of_image_tool(raw)
        usage.input_tokens += of_images.get("input_tokens", 0)
        usage.output_tokens += of_images.get("output_tokens", 0)
        usage.beyond_total += of_images.get("input_tokens", 0) + of_images.get("output_tokens", 0)
    return usage


def with_tools(raw: Any, tool_usage: Any) -> Any:
    """The report of a response with the tokens of its image tool, which are beside the report."""
    if not isinstance(raw, dict):
        return raw
    with_images = raw | {_IMAGE_TOOL[0]: tool_usage}
    return with_images if any(_of_image_tool(with_images).values()) else raw


def _of_image_tool(raw: dict[str, Any]) -> dict[str, int]:
    found = member_of(raw, *_IMAGE_TOOL)
    return _sums([found]) if isinstance(found, dict) else {}


def _add_separate_parts(usage: Usage, inputs: int, outputs: int, total: int | None) -> None:
    """Add reasoning and cached input that the report's output and input exclude."""
    reasoning, cached, whole = usage.reasoning_tokens or 0, usage.cached_input_tokens or 0, inputs + outputs
    if (
        reasoning > outputs
        or (reasoning and total == whole + reasoning)
        or not _DEEP_RESEARCH.isdisjoint(usage.raw)
    ):
        usage.output_tokens = outputs + reasoning
        usage.beyond_total = reasoning if total == whole else 0
    elif cached and (total == whole + cached or (total is None and cached > inputs)):
        usage.input_tokens = inputs + cached


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


def bedrock_metrics(raw: Any) -> Usage | None:
    """The counts that Bedrock adds to the last chunk of a model's own format. The input leaves out the cache."""
    usage = usage_in(
        raw, "inputTokenCount", "outputTokenCount", cached_input_tokens="cacheReadInputTokenCount"
    )
    if usage is not None and usage.input_tokens is not None:
        written = whole_number(raw.get("cacheWriteInputTokenCount"))
        usage.input_tokens += (usage.cached_input_tokens or 0) + (written or 0)
    return usage


def details_in(raw: Any) -> dict[str, Any]:
    """Columns of `streams` from the other members of a report. A missing column, or None, is not reported."""
    if not isinstance(raw, dict) or _DETAILED.isdisjoint(raw):
        return {}
    others = _of_other_models(raw)
    raw = with_iterations(raw)
    inputs, outputs = _parts(raw, _INPUT_PARTS), _parts(raw, _OUTPUT_PARTS)
    for part, tokens in _parts(raw, _TOOL_USE_PARTS).items():
        inputs = inputs | {part: (whole_number(tokens) or 0) + (whole_number(inputs.get(part)) or 0)}
    every = raw | inputs
    cached, written = _parts(every, _CACHED_PARTS), _parts(every, _WRITES_BY_LIFETIME)
    five_minutes, an_hour = (
        whole_number(written.get(f"ephemeral_{life}_input_tokens", written.get(f"{life}_tokens")))
        for life in ("5m", "1h")
    )
    writes = _first(every, _WRITES)
    if writes is None and five_minutes is not None:
        writes = five_minutes + (an_hour or 0)
    billed_input, billed_output = (
        whole_number(member_of(raw.get("billed_units"), member))
        for member in ("input_tokens", "output_tokens")
    )
    citations = whole_number(raw.get("citation_tokens"))
    if citations is not None and (prompt := whole_number(raw.get("prompt_tokens"))) is not None:
        billed_input = prompt + citations  # Perplexity bills the pages that it read as input
    tier = next((found for key in _TIERS if (found := term(raw.get(key))) is not None), None)
    media = {
        f"{whole}_{kind}_tokens": whole_number(parts.get(f"{kind}_tokens"))
        for whole, parts in (("cached", cached), ("input", inputs), ("output", outputs))
        for kind in ("audio", "image")
    }
    of_all = {
        "cache_write_tokens": writes,
        "cache_write_1h_tokens": an_hour,
        "web_searches": searches_in(raw),
        "billed_input_tokens": billed_input,
        "billed_output_tokens": billed_output,
        "reported_cost": cost_in(raw),
        "service_tier": tier,
        "speed": term(raw.get("speed")),
        "inference_region": term(raw.get("inference_geo")),
    }
    return media | others | of_all


def searches_in(raw: Any) -> int | None:
    """Web searches that a report, or an object in it, counts."""
    if not isinstance(raw, dict):
        return None
    for member, names in _SEARCHES.items():
        counts = [member_of(raw, member, counter) for counter in names]
        numbers = [whole_number(count.get("count") if isinstance(count, dict) else count) for count in counts]
        if known := [number for number in numbers if number is not None]:
            return sum(known)
    grounding = raw.get("grounding_tool_count")
    if isinstance(grounding, list):  # Interactions
        searches = [tool for tool in grounding if member_of(tool, "type") == "google_search"]
        return sum(whole_number(search.get("count")) or 0 for search in searches)
    return _first(raw, _SEARCH_COUNTS)


def cost_in(raw: dict[str, Any]) -> float | None:
    """The cost in USD as the provider states it.

    OpenRouter and Vercel: `cost`, plus what the upstream bills to the customer's own key (`is_byok`). Perplexity:
    `cost.total_cost`. Venice: `cost.usd`. DeepInfra: `estimated_cost`. xAI: `cost_in_usd_ticks`, 10^10 ticks per USD.
    """
    cost = raw.get("cost")
    if isinstance(cost, dict):
        cost = cost.get("total_cost", cost.get("usd"))
    elif cost is not None and raw.get("is_byok") is True:
        upstream = finite_number(member_of(raw.get("cost_details"), "upstream_inference_cost"))
        cost = (finite_number(cost) or 0) + (upstream or 0)
    if cost is None and (ticks := finite_number(raw.get("cost_in_usd_ticks"))):
        cost = ticks / _TICKS_PER_USD  # Azure always sends 0
    amount = finite_number(raw.get("estimated_cost") if cost is None else cost)
    return amount if amount is not None and amount >= 0 else None


def cache_miss(reason: str | None, tokens: Any) -> dict[str, Any] | None:
    """Columns of `streams` with the provider's own reason for a miss of the prompt cache. None without a reason."""
    if not (reason and is_name(reason)):
        return None
    return {
        "cache_miss_reason": reason,
        "cache_miss_source": "provider",
        "cache_missed_tokens": whole_number(tokens),
    }


def term(value: Any) -> str | None:
    """A service tier, speed or region in lower case. None if it is unknown, left to the provider (`auto`) or no identifier.

    Vertex AI names a tier as its type of traffic (`ON_DEMAND_PRIORITY`), Bedrock in an object with its type.
    """
    if not value:
        return None
    word = string_of(member_of(value, "type") if isinstance(value, dict) else value)
    word = word.lower().removeprefix("on_demand_")
    if word in ("auto", "not_available") or word.endswith("unspecified"):
        return None
    word = "standard" if word == "standard_only" else word
    return word if is_name(word) else None


def with_iterations(raw: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's report with the sums of its iterations, which are billed. Its own counts leave out compactions and advisors."""
    iterations = _iterations(raw)
    if not iterations:
        return raw
    summed = raw | _sums(iterations)
    for member in ("cache_creation", "output_tokens_details"):
        inner = [found for one in iterations if isinstance(found := one.get(member), dict)]
        # Iterations without the detail may contain tokens of any kind.
        if inner and (member == "cache_creation" or len(inner) == len(iterations)):
            summed[member] = _sums(inner)
    return summed


def _iterations(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that are billed: an attempt that was refused before any output is free."""
    listed = raw.get(_ITERATIONS)
    iterations = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [one for one in iterations if one.get("output_tokens") != 0]


def hidden_output(raw: Any) -> int:
    """Output tokens that were not sent as text: of orchestration, of the image tool, and of iterations that the report's own count
    leaves out."""
    if not isinstance(raw, dict):
        return 0
    hidden = _first_inner(raw, *_ORCHESTRATION[-1]) or 0
    hidden += whole_number(member_of(raw, *_IMAGE_TOOL, "output_tokens")) or 0
    own = whole_number(raw.get("output_tokens"))
    if own is None:
        return hidden
    return hidden + max(0, (whole_number(with_iterations(raw).get("output_tokens")) or 0) - own)


def _of_other_models(raw: dict[str, Any]) -> dict[str, Any]:
    """Columns of the tokens of other models, which have their prices: of iterations that name another model than that of the message,
    and of the image tool, whose model the report does not name."""
    if of_images := _of_image_tool(raw):
        return {f"other_{of}_tokens": of_images.get(f"{of}_tokens", 0) for of in ("input", "output")}
    iterations = _iterations(raw)
    own = next((one.get("model") for one in iterations if one.get("type") == "message"), None)
    named = [one for one in iterations if one.get("model") not in (None, "", own)]
    if not named:
        return {}
    counts = with_iterations({_ITERATIONS: named})
    read, written = (counts.get(f"cache_{of}_input_tokens") for of in ("read", "creation"))
    models = {name(string_of(one["model"])) for one in named}
    return {
        "other_model": models.pop() if len(models) == 1 else None,
        "other_input_tokens": sum((counts.get("input_tokens", 0), read or 0, written or 0)),
        "other_cached_input_tokens": read,
        "other_cache_write_tokens": written,
        "other_cache_write_1h_tokens": member_of(counts.get("cache_creation"), "ephemeral_1h_input_tokens"),
        "other_output_tokens": counts.get("output_tokens"),
    }


def _sums(objects: list[dict[str, Any]]) -> dict[str, int]:
    """The sum of each count of these objects."""
    sums: dict[str, int] = {}
    for counts in objects:
        for member, value in counts.items():
            if (number := whole_number(value)) is not None:
                sums[member] = sums.get(member, 0) + number
    return sums


def faults_in(usage: Usage, details: dict[str, Any]) -> dict[str, int]:
    """Members by which a report contradicts itself: a total that is not the sum of its parts, parts that are above their whole.

    The value of a total is how many tokens it has beyond its parts, and 0 for parts. `details` are those of the report. Parts have the
    names of the columns of `streams`.
    """
    raw, inputs, outputs = usage.raw, usage.input_tokens, usage.output_tokens
    if not isinstance(raw, dict):
        return {}
    found: dict[str, int] = {}
    if inputs is not None and outputs is not None:
        member = next((m for m in _TOTALS if m in raw), "")
        total = whole_number(raw.get(member))
        beyond = 0 if total is None else total - inputs - outputs
        found |= {member: beyond} if beyond not in (0, -usage.beyond_total) else {}
    if usage.unclear:
        found[usage.unclear] = 0
    if not details and usage.reasoning_tokens is usage.cached_input_tokens is None:
        return found
    of = details | {
        "input_tokens": inputs, "output_tokens": outputs, "reasoning_tokens": usage.reasoning_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
    }  # fmt: skip
    for whole, groups in _PARTS.items():
        limit = of.get(whole)
        found |= {
            parts[0]: 0
            for parts in groups
            if limit is not None and sum(of.get(p) or 0 for p in parts) > limit
        }
    billed = with_iterations(raw)
    for member in ("input_tokens", "output_tokens"):
        own, summed = (whole_number(of.get(member)) or 0 for of in (raw, billed))
        if own > summed:
            found[_ITERATIONS] = found.get(_ITERATIONS, 0) + own - summed
    return found | ({"total_cost": 0} if _is_wrong_cost(raw.get("cost")) else {})


_PARTS = {
    "input_tokens": (
        ("cached_input_tokens", "cache_write_tokens"),
        ("input_audio_tokens", "input_image_tokens"),
    ),
    "output_tokens": (("reasoning_tokens",), ("output_audio_tokens", "output_image_tokens")),
    "cached_input_tokens": (("cached_audio_tokens", "cached_image_tokens"),),
    "cache_write_tokens": (("cache_write_1h_tokens",),),
}
"""Whole → groups of parts that do not overlap."""


def _is_wrong_cost(cost: Any) -> bool:
    """Perplexity's amounts add up to their total. Some of its models round each amount to a tenth of a cent."""
    total = finite_number(member_of(cost, "total_cost"))
    if total is None:
        return False
    amounts = [finite_number(cost[m]) or 0 for m in cost if m.endswith("_cost") and m != "total_cost"]
    step = 1e-3 if all(round(amount, 3) == amount for amount in (*amounts, total)) else 1e-6
    return bool(amounts) and abs(sum(amounts) - total) > step * len(amounts)


def _parts(raw: dict[str, Any], members: tuple[str, ...]) -> dict[str, Any]:
    """The first of these members as an object. Gemini and Bedrock have a list with an object for each part."""
    found = next((raw[member] for member in members if member in raw), None)
    if isinstance(found, dict):
        return found
    parts = [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    return _sums(
        [
            {f"{str(part.get('modality', part.get('ttl'))).lower()}_tokens": part.get(key)}
            for part in parts
            for key in ("tokenCount", "tokens", "inputTokens")
        ]
    )


def _first(raw: dict[str, Any], members: tuple[str, ...]) -> int | None:
    """The first of these members that is a count."""
    for member in members:
        if member in raw and (number := whole_number(raw[member])) is not None:
            return number
    return None


def _first_inner(raw: dict[str, Any], objects: tuple[str, ...], member: str) -> int | None:
    """The first count with this name in these objects."""
    numbers = [whole_number(inner.get(member)) for of in objects if isinstance(inner := raw.get(of), dict)]
    return next((number for number in numbers if number is not None), None)

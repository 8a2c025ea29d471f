"""Rows of the price file from the price catalogs of LiteLLM and models.dev. No I/O.

LiteLLM: `model_prices_and_context_window.json`, an object with a model per member, prices per token. models.dev: `api.json`, an
object with a provider per member, prices per million tokens. Both are in USD. Models without a price per token are left out, and so
are prices that follow from the time of day.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from streamgauge.analytics.schema.prices import RATES, SERVED

LITELLM, MODELS_DEV = "litellm", "models.dev"
_LITELLM = dict(
    zip(
        RATES[:-1],
        (
            "input_cost_per_token", "cache_read_input_token_cost", "cache_read_input_audio_token_cost",
            "cache_creation_input_token_cost", "cache_creation_input_token_cost_above_1hr", "input_cost_per_audio_token",
            "input_cost_per_image_token", "output_cost_per_token", "output_cost_per_reasoning_token",
            "output_cost_per_audio_token", "output_cost_per_image_token",
        ),
        strict=True,
    )
)  # fmt: skip
_MODELS_DEV = {
    "input": "input", "cached_input": "cache_read", "cache_write_5m": "cache_write", "input_audio": "input_audio",
    "output": "output", "reasoning": "reasoning", "output_audio": "output_audio",
}  # fmt: skip
_THRESHOLD = re.compile(r"_above_(\d+)(k?)_tokens$")
_TIERS = ("priority", "flex", "batches", "balanced", "ultrafast")
"""Ends of the names of LiteLLM's prices: service tiers, but for `batches`."""
_UPLIFTS = {f"regional_processing_uplift_multiplier_{of}": ("inference_region", of) for of in ("us", "eu")}
_ANTHROPIC_UPLIFTS = {"us": ("inference_region", "us"), "fast": ("speed", "fast")}
"""LiteLLM's factor on all prices of tokens → what it is for. Those of Anthropic are in the member `provider_specific_entry`."""
_FIREWORKS_CACHED_SHARE = 0.5
"""LiteLLM's price of cached input at Fireworks, relative to other input, where its map has none."""
MAKERS = (
    "openai", "anthropic", "gemini", "google", "mistral", "xai", "deepseek", "cohere", "cohere_chat", "moonshotai", "moonshot",
    "alibaba", "dashscope", "zai", "minimax",
)  # fmt: skip
"""Providers whose prices a model's name without a provider has, in this order."""

Row = dict[str, Any]


def catalog_rows(catalog: Any, providers: tuple[str, ...]) -> tuple[str, list[Row]]:
    """The name of the catalog, and its rows by name, those for a longer context first. Raises ValueError for another content.

    A model has its name in the catalog, and the name without the provider if that is unambiguous: the first of `providers`, else of
    `MAKERS`, else any if all have the same prices. Only `providers` are read, unless there are none.
    """
    if not isinstance(catalog, dict) or not all(isinstance(entry, dict) for entry in catalog.values()):
        raise ValueError("it is no object of models or providers")
    if any(isinstance(entry.get("models"), dict) for entry in catalog.values()):
        source, found = MODELS_DEV, _models_dev(catalog)
    elif any(_LITELLM["input"] in entry for entry in catalog.values()):
        source, found = LITELLM, _litellm(catalog)
    else:
        raise ValueError(
            f"it is neither LiteLLM's price map nor models.dev's api.json: no {_LITELLM['input']!r}"
        )
    order = [*providers, *(MAKERS if not providers else ())]
    by_name = dict[str, list[Row]]()
    by_bare_name = defaultdict[str, list[tuple[str, list[Row]]]](list)
    for provider, name, rows in found:
        if rows and (not providers or provider in providers):
            by_name[name] = rows
            prefix, _, bare_name = name.partition("/")
            if bare_name and provider.startswith(prefix):
                by_bare_name[bare_name].append((provider, rows))
    for name, offers in by_bare_name.items():
        made = [rows for provider in order for offering, rows in offers if offering == provider]
        if name not in by_name and (made or all(rows == offers[0][1] for _, rows in offers)):
            by_name[name] = (made or [offers[0][1]])[0]
    return source, [
        {"model": name, "currency": "USD", "source": source, **row}
        for name in sorted(by_name)
        for row in by_name[name]
    ]


def _litellm(catalog: Mapping[str, Row]) -> Iterator[tuple[str, str, list[Row]]]:
    for name, entry in catalog.items():
        provider = str(entry.get("litellm_provider"))
        searches = entry.get("search_context_cost_per_query")
        search = (
            _cost(searches.get("search_context_size_medium"), 1e3) if isinstance(searches, dict) else None
        )
        base = _rates(entry, _LITELLM, 1e6) | ({} if search is None else {"web_search": search})
        if ("input" not in base and "tiered_pricing" not in entry) or name == "sample_spec":
            continue
        # Models of images have a price of these alone.
        base["output"] = base.get("output") or base.get("output_image", 0.0)
        if provider == "fireworks_ai" and "input" in base:
            base.setdefault("cached_input", _FIREWORKS_CACHED_SHARE * base["input"])
        yield provider, name, [*_litellm_served(entry, provider, base)]


def _litellm_served(entry: Row, provider: str, base: Row) -> Iterator[Row]:
    """The rows of a model. Those for a way of service come before those for any, and those for a longer context first."""
    own = entry.get("provider_specific_entry") if provider == "anthropic" else None
    factors = {"inference_region": dict[str, float](), "speed": dict[str, float]()}
    for keys, source in ((_UPLIFTS, entry), (_ANTHROPIC_UPLIFTS, own or {})):
        for key, (column, value) in keys.items():
            if (factor := _cost(source.get(key), 1)) is not None:
                factors[column][value] = factor
    tiers = [tier for tier in _TIERS if any(f"{key}_{tier}" in entry for key in _LITELLM.values())]
    for region, speed, tier in product(
        [*factors["inference_region"], None], [*factors["speed"], None], [*tiers, None]
    ):
        factor = factors["inference_region"].get(region or "", 1) * factors["speed"].get(speed or "", 1)
        how = "batch" if tier == "batches" else tier, speed, region
        served = {name: value for name, value in zip(SERVED, how, strict=True) if value is not None}
        for row in reversed([*_litellm_contexts(entry, provider, base, tier)]):
            yield {
                name: _cost(rate, factor) if name in _LITELLM else rate for name, rate in row.items()
            } | served


def _litellm_contexts(entry: Row, provider: str, base: Row, tier: str | None) -> Iterator[Row]:
    """Rows from the shortest context to the longest. A price that a context lacks is that of the one before.

    A service tier has the prices of no tier where it has none, but for long contexts of batches.
    """
    if isinstance(entry.get("tiered_pricing"), list):
        # These tiers are complete: other prices of input follow from their own.
        kept = {
            name: rate
            for name, rate in base.items()
            if name in ("output", "input_audio", "output_audio", "web_search")
        }
        for tier in entry["tiered_pricing"]:
            if isinstance(tier, dict) and len(tier.get("range") or ()) == 2:
                yield kept | _rates(tier, _LITELLM, 1e6) | _above(int(tier["range"][0]))
        return
    end = f"_{tier}" if tier else ""
    base = _of_tier(base, _rates(entry, {name: key + end for name, key in _LITELLM.items()}, 1e6))
    yield base
    thresholds = {
        int(m[1]) * (1000 if m[2] else 1): m[0]
        for key in entry
        if (m := _THRESHOLD.search(key.removesuffix(end))) and (tier != "batches" or key.endswith(end))
    }
    for tokens, ending in sorted(thresholds.items()):
        if tier != "batches":
            base = base | _rates(entry, {name: key + ending for name, key in _LITELLM.items()}, 1e6)
        base = base | _rates(entry, {name: key + ending + end for name, key in _LITELLM.items()}, 1e6)
        yield base | _above(tokens - (provider == "xai"))  # xAI's higher price begins at the threshold


def _of_tier(base: Row, own: Row) -> Row:
    """The prices of a service tier. Reasoning costs the tier's output if it has no own price."""
    return {name: rate for name, rate in base.items() if name != "reasoning" or "output" not in own} | own


def _models_dev(catalog: Mapping[str, Row]) -> Iterator[tuple[str, str, list[Row]]]:
    for provider, entry in catalog.items():
        models = entry.get("models")
        for name, model in models.items() if isinstance(models, dict) else ():
            cost = model.get("cost") if isinstance(model, dict) else None
            if not isinstance(cost, dict) or {"input", "output"} - cost.keys():
                continue
            tiers = cost.get("tiers") or [
                {**(cost.get("context_over_200k") or {}), "tier": {"size": 200_000}}
            ]
            base = _rates(cost, _MODELS_DEV, 1)
            rows = [
                base | rates | _above(tier["tier"]["size"])
                for tier in sorted(tiers, key=lambda tier: -tier["tier"]["size"])
                if (rates := _rates(tier, _MODELS_DEV, 1))
            ]
            modes = [*_models_dev_modes(model, base)]
            yield provider, f"{provider}/{name}", [*modes, *rows, base]


def _models_dev_modes(model: Row, base: Row) -> Iterator[Row]:
    """Rows of the modes whose request names a service tier or speed."""
    experimental = model.get("experimental")
    modes = experimental.get("modes") if isinstance(experimental, dict) else None
    for mode in modes.values() if isinstance(modes, dict) else ():
        match mode:
            case {"cost": dict(cost), "provider": {"body": dict(body)}}:
                if served := {name: body[name] for name in SERVED if isinstance(body.get(name), str)}:
                    yield base | _rates(cost, _MODELS_DEV, 1) | served


def _above(tokens: int) -> Row:
    return {"above": tokens} if tokens > 0 else {}


def _rates(entry: Row, keys: Mapping[str, str], factor: float) -> Row:
    found = ((name, _cost(entry.get(key), factor)) for name, key in keys.items())
    return {name: cost for name, cost in found if cost is not None}


def _cost(value: Any, factor: float) -> float | None:
    """Without the rounding error of the factor."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(f"{float(value) * factor:.12g}")
    except ValueError:
        return None


def merged(
    own: Iterable[Mapping[str, Any]], imported: Iterable[Row], source: str, day: str
) -> tuple[list[Row], int]:
    """The rows of a price file after an import, and how many prices changed.

    Rows of others stay, and before those of the catalog. A price that changed is valid from `day`, and the former one until then.
    Models that the catalog has no more keep their prices.
    """
    kept, former = list[Row](), defaultdict[tuple[Any, ...], list[Row]](list)
    for row in own:
        found = {name: value for name, value in row.items() if value is not None}
        if found.get("source") == source:
            former[_place(found)].append(found)
        else:
            kept.append(found)
    result, changed = list[Row](), 0
    for row in imported:
        before = former.pop(_place(row), [])
        current = next((old for old in before if "valid_until" not in old), None)
        if current is not None and _prices(current) != _prices(row):
            changed += 1
            # Two imports on a day leave the last price of it.
            before = [
                old | {"valid_until": day} if old is current else old
                for old in before
                if old.get("valid_from") != day
            ]
            current, row = None, row | {"valid_from": day}
        result += before if current is not None else [row, *before]
    return [*kept, *result, *(row for rows in former.values() for row in rows)], changed


def _place(row: Row) -> tuple[Any, ...]:
    """What a price of the catalog is for. Its time is our own."""
    return row["model"], _number(row.get("above")), *(row.get(name) for name in SERVED)


def _prices(row: Row) -> dict[str, float | None]:
    return {name: _number(row.get(name)) for name in RATES}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)

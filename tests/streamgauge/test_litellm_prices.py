"""Costs of the view `spend` with LiteLLM's imported price map, against LiteLLM's own `completion_cost`."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import defaultdict
from dataclasses import astuple
from typing import Any

import duckdb
import polars as pl
import pytest

from streamgauge.analytics.dialects import anthropic, gemini
from streamgauge.analytics.dialects.usage import details_in, usage_of
from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.model_names import spellings
from streamgauge.analytics.schema.tables import PRICES
from streamgauge.settings.price_catalogs import catalog_rows
from streamgauge.settings.price_file import check_rows
from tests.e2e.running import ROOT
from tests.litellm_proxy import ENVIRONMENT, PYTHON

MODELS, REPORTS = 200, 60
FURTHER_PRICES = (
    "_above_",
    "audio_token",
    "reasoning_token",
    "tiered_pricing",
    "cache_creation",
    "image_token",
    "_flex",
    "_priority",
    "_uplift_",
    "provider_specific_entry",
)
TIERS = ("default", "flex", "priority")
WITH_TIERS = ("openai", "azure", "azure_ai", "anthropic", "bedrock", "gemini", "vertex_ai")
"""Starts of the providers for which LiteLLM's calculation reads the tier."""


def form_of(name: str, provider: str) -> str:
    if "claude" in name:
        return "anthropic"
    return "gemini" if provider.startswith(("gemini", "vertex_ai")) else "openai"


def report(form: str, provider: str, rng: random.Random) -> dict[str, Any]:
    """A usage report as the vendor sends it: short and long contexts, with any of its parts."""

    def some(most: int) -> int:
        return rng.randint(0, most) if rng.random() < 0.5 else 0

    total = rng.choice(
        (
            rng.randint(1, 5_000),
            rng.randint(1, 120_000),
            rng.randint(120_000, 600_000),
            128_000,
            200_000,
            272_000,
        )
    )
    cached = some(total // 2)
    output, reasoning, audio_out = rng.randint(1, 9_000), some(3_000), 0
    if form == "anthropic":
        an_hour, five_minutes = some(total // 6), some(total // 6)
        found = {
            "input_tokens": total - cached - an_hour - five_minutes, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": an_hour + five_minutes, "output_tokens": output,
        }  # fmt: skip
        if rng.random() < 0.7:
            found["cache_creation"] = {
                "ephemeral_5m_input_tokens": five_minutes,
                "ephemeral_1h_input_tokens": an_hour,
            }
        if provider == "anthropic":  # only its own API searches
            found["server_tool_use"] = {"web_search_requests": rng.randint(0, 4)}
        return found
    audio = some((total - cached) // 2)
    image = some((total - cached - audio) // 2)
    cached_audio, cached_image = min(audio, cached) // 2, min(image, cached // 2)
    cached_text = cached - cached_audio - cached_image
    if form == "gemini":
        audio_out = some(output)
        return {
            "promptTokenCount": total, "candidatesTokenCount": output, "totalTokenCount": total + output + reasoning,
            "thoughtsTokenCount": reasoning, "cachedContentTokenCount": cached,
            "promptTokensDetails": of_modality(TEXT=total - audio - image, AUDIO=audio, IMAGE=image),
            "cacheTokensDetails": of_modality(TEXT=cached_text, AUDIO=cached_audio, IMAGE=cached_image),
            "candidatesTokensDetails": of_modality(TEXT=output - audio_out, AUDIO=audio_out),
        }  # fmt: skip
    audio_out = some(output)
    cached_parts = {"audio_tokens": cached_audio, "image_tokens": cached_image, "text_tokens": cached_text}
    return {
        "prompt_tokens": total, "completion_tokens": output + reasoning, "total_tokens": total + output + reasoning,
        "prompt_tokens_details": {
            "cached_tokens": cached, "audio_tokens": audio, "image_tokens": image,
            **({"cache_write_tokens": some((total - cached - audio - image) // 2)} if rng.random() < 0.4 else {}),
            **({"cached_tokens_details": cached_parts} if audio or image else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": audio_out},
    }  # fmt: skip


def of_modality(**counts: int) -> list[dict[str, Any]]:
    return [{"modality": name, "tokenCount": count} for name, count in counts.items()]


def served(form: str, provider: str, rng: random.Random) -> dict[str, str]:
    """How a request was served: columns of `streams`."""
    found = {"service_tier": rng.choice(TIERS)} if provider.startswith(WITH_TIERS) else {}
    if provider in ("openai", "anthropic") and rng.random() < 0.5:
        found["inference_region"] = rng.choice(("us", "eu", "global"))
    if provider == "anthropic" and rng.random() < 0.3:
        found["speed"] = rng.choice(("standard", "fast"))
    return found


def costs_by_litellm(cases: list[Any]) -> list[float | str]:
    found = subprocess.run(
        [PYTHON, ROOT / "tests/streamgauge/litellm_costs.py"],
        input=json.dumps(cases), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    costs: list[float | str] = json.loads(found.stdout)
    return costs


def costs_by_spend(catalog: dict[str, Any], cases: list[Any]) -> list[float | None]:
    _, rows = catalog_rows(catalog, ())
    prices = check_rows([(row["model"], row) for row in rows])
    con = duckdb.connect()
    tables, views, _ = statements()
    con.execute(tables).execute(views)
    con.register(
        "price_rows",
        frame_of_rows(PRICES, [(number, *astuple(price)) for number, price in enumerate(prices)]),
    )
    con.execute("INSERT INTO prices FROM price_rows")
    readers = {"anthropic": anthropic.normalised, "gemini": gemini.normalised, "openai": usage_of}
    streams = []
    for number, (model, form, raw, how) in enumerate(cases):
        usage = readers[form](raw)
        counts = {
            name: getattr(usage, name)
            for name in ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens")
        }
        streams.append(
            {
                "response_index": number,
                "request_model": model,
                **counts,
                **details_in(raw),
                **how,
            }
        )
    con.register("reported", pl.DataFrame(streams, infer_schema_length=None))
    con.execute("""
        INSERT INTO streams BY NAME
        SELECT uuid() AS stream_id, now() AS started_at, 'ok' AS outcome, 'usage' AS token_source, * FROM reported""")
    found = con.execute(
        "SELECT total FROM spend JOIN streams USING (stream_id) ORDER BY response_index"
    ).fetchall()
    return [total for (total,) in found]


def price_map() -> dict[str, Any]:
    [path] = ENVIRONMENT.glob(
        "lib/python3*/site-packages/litellm/model_prices_and_context_window_backup.json"
    )
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


MAKERS = {"openai": "openai", "anthropic": "anthropic", "vertex_ai-language-models": "google"}
"""LiteLLM's provider → its name at OpenRouter."""


@pytest.mark.litellm
def test_names_of_gateways_find_the_models_of_the_map() -> None:
    catalog = price_map()
    written = dict[str, str]()
    for name, entry in catalog.items():
        if "/" not in name and "input_cost_per_token" in entry and not name.startswith("ft:"):
            if maker := MAKERS.get(entry["litellm_provider"]):
                written |= {
                    f"{maker}/{name}": name,
                    f"openrouter/{maker}/{name}": name,
                    f"litellm_proxy/{name}": name,
                }
                written |= {f"{name}:nitro": name, f"models/{name}": name}
            if name.startswith("anthropic."):
                arn = "arn:aws:bedrock:eu-west-1::inference-profile/"
                written |= {
                    f"{arn}eu.{name}": name,
                    f"bedrock/{name}": name,
                    f"bedrock/eu-west-1/{name}": name,
                }
    found = duckdb.execute(
        f"SELECT name, {spellings('name')} FROM (SELECT unnest(?) AS name)", [[*written]]
    ).fetchall()
    assert len(found) > 1000
    assert [name for name, names in found if written[name] not in names] == []


@pytest.mark.litellm
def test_version_with_a_date_has_the_price_of_its_model() -> None:
    prices = {
        name: entry.get("input_cost_per_token") for name, entry in price_map().items() if "/" not in name
    }
    sql = f"SELECT name, {spellings('name')} FROM (SELECT unnest(?) AS name)"
    different = {
        (name, other)
        for name, names in duckdb.execute(sql, [[*prices]]).fetchall()
        for other in names
        if other in prices and prices[other] != prices[name] and not re.match(r"[a-z-]+\.[a-z]", name)
    }
    assert different == {("gpt-4o-2024-05-13", "gpt-4o")}  # it has a price of its own, which is found first


@pytest.mark.litellm
def test_costs_are_those_of_litellm() -> None:
    catalog = price_map()
    rng = random.Random(39)
    # GitHub Copilot's models need a log-in.
    priced = sorted(
        name for name, entry in catalog.items()
        if entry.get("mode") in ("chat", "responses", "completion", "realtime") and "output_cost_per_token" in entry
        and entry["litellm_provider"] != "github_copilot" and name != "sample_spec"
    )  # fmt: skip
    special = [
        name for name in priced if any(word in key for key in catalog[name] for word in FURTHER_PRICES)
    ]
    # Every second one has further prices.
    pairs = zip(rng.sample(special, MODELS), rng.sample(sorted({*priced} - {*special}), MODELS), strict=True)
    models = [name for pair in pairs for name in pair][: MODELS * 5 // 4]
    cases = [
        (
            name,
            form := form_of(name, provider := catalog[name]["litellm_provider"]),
            report(form, provider, rng),
            served(form, provider, rng),
        )
        for name in models
        for _ in range(REPORTS)
    ]
    compared, different = set[str](), defaultdict[str, list[Any]](list)
    for (name, *case), expected, found in zip(
        cases, costs_by_litellm(cases), costs_by_spend(catalog, cases), strict=True
    ):
        if isinstance(expected, str) or (name not in compared and len(compared) == MODELS):
            continue  # LiteLLM does not know the provider of some models in its map
        compared.add(name)
        if found != pytest.approx(expected, rel=1e-6, abs=1e-12):
            different[name].append((case, expected, found))
    assert len(compared) == MODELS
    assert len(different) <= 8, {name: (len(found), found[0]) for name, found in different.items()}
    for name, found_of_model in different.items():  # docs/how-to/spend.md has these reasons
        entry = catalog[name]
        if "off_peak_pricing" in entry or entry["litellm_provider"] == "perplexity":
            continue
        for (_, raw, how), *costs in found_of_model:
            has_audio = any(
                part["modality"] == "AUDIO" and part["tokenCount"]
                for part in raw.get("promptTokensDetails", ())
            )
            has_price = (
                f"input_cost_per_audio_token_{how.get('service_tier')}" in entry
                or "cache_read_input_audio_token_cost" in entry
            )
            assert has_price, (name, raw, how, costs)
            assert has_audio, (name, raw, how, costs)

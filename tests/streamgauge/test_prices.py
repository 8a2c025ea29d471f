"""`streamgauge prices`: catalogs become rows of the price file; own rows and former prices stay; unpriced models are shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from streamgauge.analytics.schema.prices import Price
from streamgauge.analytics.schema.tables import PRICES
from streamgauge.analytics.storage.replaced_tables import replace_rows
from streamgauge.cli import cli
from streamgauge.settings.price_file import read_prices
from tests.analytics.schema.prices import price
from tests.analytics.stores import ask, new_store

LITELLM = {
    "sample_spec": {"input_cost_per_token": 0.0},
    "gpt-x": {
        "litellm_provider": "openai", "input_cost_per_token": 1e-6, "output_cost_per_token": 8e-6, "cache_read_input_token_cost": 1e-7,
        "output_cost_per_reasoning_token": 9e-6, "input_cost_per_token_above_200k_tokens": 2e-6,
        "input_cost_per_token_priority": 5e-6, "search_context_cost_per_query": {"search_context_size_medium": 0.01},
    },
    "groq/llama": {"litellm_provider": "groq", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6},
    "azure/gpt-x": {"litellm_provider": "azure", "input_cost_per_token": 3e-6, "output_cost_per_token": 8e-6},
    "whisper": {"litellm_provider": "openai", "input_cost_per_second": 1e-4},
    "xai/grok": {
        "litellm_provider": "xai", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6,
        "output_cost_per_token_above_128k_tokens": 4e-6,
    },
    "dashscope/qwen": {
        "litellm_provider": "dashscope",
        "tiered_pricing": [
            {"range": [0, 1000], "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6},
            {"range": [1000, 9000], "input_cost_per_token": 3e-6, "output_cost_per_token": 4e-6},
        ],
    },
}  # fmt: skip
MODELS_DEV = {
    "openai": {"models": {"gpt-x": {"cost": {
        "input": 1, "output": 8, "cache_read": 0.1, "cache_write": 1.25, "reasoning": 9, "input_audio": 4, "output_audio": 5,
        "tiers": [{"tier": {"type": "context", "size": 272_000}, "input": 2, "output": 12}],
    }}}},
    "reseller": {"models": {"gpt-x": {"cost": {"input": 7, "output": 7}}, "own": {"cost": {
        "input": 1, "output": 1, "context_over_200k": {"input": 2, "output": 2},
    }}, "free": {}}},
}  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["prices", *map(str, arguments)], standalone_mode=False)


def imported(tmp_path: Path, catalog: dict[str, Any], *more: str) -> dict[str, list[Price]]:
    """The prices of the file after an import, by model."""
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    result = run("import", tmp_path / "catalog.json", "--price-file", tmp_path / "p.csv", *more)
    assert result.exception is None, result.exception
    found: dict[str, list[Price]] = {}
    for row in read_prices(tmp_path / "p.csv"):
        found.setdefault(row.model, []).append(row)
    return found


def test_price_map_of_litellm(tmp_path: Path) -> None:
    found = imported(tmp_path, LITELLM)
    of = {"cached_input": 0.1, "reasoning": 9, "web_search": 10, "source": "litellm"}
    assert found["gpt-x"] == [
        price("gpt-x", 2, 8, **of, above=200_000, service_tier="priority"),
        price("gpt-x", 5, 8, **of, service_tier="priority"),
        price("gpt-x", 2, 8, **of, above=200_000),
        price("gpt-x", 1, 8, **of),
    ]
    assert found["llama"] == [price("llama", 1, 2, source="litellm")]
    assert [(row.above, row.output) for row in found["xai/grok"]] == [(127_999, 4), (None, 2)]
    assert [(row.above, row.input, row.output) for row in found["qwen"]] == [(1000, 3, 4), (None, 1, 2)]
    assert not {"sample_spec", "whisper"} & found.keys()


def test_prices_of_litellm_by_tier_speed_and_region(tmp_path: Path) -> None:
    base = {"input_cost_per_token": 1e-6, "output_cost_per_token": 8e-6}
    catalog = {
        "gpt-y": {
            **base, "litellm_provider": "openai", "output_cost_per_reasoning_token": 9e-6, "regional_processing_uplift_multiplier_eu": 1.1,
            "input_cost_per_token_flex": 5e-7, "output_cost_per_token_flex": 4e-6, "input_cost_per_token_batches": 4e-7,
            "input_cost_per_token_above_272k_tokens": 2e-6, "input_cost_per_token_above_272k_tokens_flex": 1.5e-6,
        },
        "claude-y": {
            **base, "litellm_provider": "anthropic", "provider_specific_entry": {"us": 1.1, "fast": 6},
            "search_context_cost_per_query": {"search_context_size_medium": 0.01},
        },
        "other": {**base, "litellm_provider": "minimax", "provider_specific_entry": {"minimax_free_input_images": 5}},
    }  # fmt: skip
    found = imported(tmp_path, catalog)
    of_gpt = [
        (row.inference_region, row.service_tier, row.above, row.input, row.output, row.reasoning) for row in found["gpt-y"]
    ]  # fmt: skip
    anywhere = [
        (None, "flex", 272_000, 1.5, 4, 4), (None, "flex", None, 0.5, 4, 4), (None, "batch", None, 0.4, 8, 9),
        (None, None, 272_000, 2, 8, 9), (None, None, None, 1, 8, 9),
    ]  # fmt: skip
    in_europe = [
        ("eu", tier, above, *(pytest.approx(1.1 * rate) for rate in rates))
        for _, tier, above, *rates in anywhere
    ]
    assert of_gpt == [*in_europe, *anywhere]
    of_claude = [(row.inference_region, row.speed, row.input, row.web_search) for row in found["claude-y"]]
    assert of_claude == [
        ("us", "fast", 6.6, 10),
        ("us", None, 1.1, 10),
        (None, "fast", 6, 10),
        (None, None, 1, 10),
    ]
    assert len(found["other"]) == 1


def test_modes_of_models_dev_are_tiers_and_speeds(tmp_path: Path) -> None:
    modes = {
        "fast": {"cost": {"input": 6, "output": 30}, "provider": {"body": {"speed": "fast"}}},
        "priority": {"cost": {"input": 2}, "provider": {"body": {"service_tier": "priority"}}},
        "long": {"cost": {"input": 4}, "provider": {"headers": {"beta": "1m"}}},
        "unpriced": {"provider": {"body": {"speed": "slow"}}},
    }
    model = {"cost": {"input": 1, "output": 5}, "experimental": {"modes": modes}}
    found = imported(tmp_path, {"maker": {"models": {"x": model}}})["x"]
    assert [(row.speed, row.service_tier, row.input, row.output) for row in found] == [
        ("fast", None, 6, 30), (None, "priority", 2, 5), (None, None, 1, 5),
    ]  # fmt: skip


def test_changed_price_of_a_tier_has_a_day(tmp_path: Path) -> None:
    model = {"litellm_provider": "openai", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    imported(tmp_path, {"m": {**model, "input_cost_per_token_flex": 5e-7}})
    found = imported(
        tmp_path, {"m": {**model, "input_cost_per_token_flex": 6e-7}}, "--valid-from", "2026-12-01"
    )["m"]
    day = datetime(2026, 12, 1, tzinfo=UTC)
    assert [(row.service_tier, row.input, row.valid_from, row.valid_until) for row in found] == [
        ("flex", 0.6, day, None), ("flex", 0.5, None, day), (None, 1, None, None),
    ]  # fmt: skip


def test_catalog_of_models_dev(tmp_path: Path) -> None:
    found = imported(tmp_path, MODELS_DEV)
    of = {
        "cached_input": 0.1, "cache_write_5m": 1.25, "input_audio": 4, "output_audio": 5, "source": "models.dev",
    }  # fmt: skip
    assert found["openai/gpt-x"] == [
        price("openai/gpt-x", 2, 12, **of, reasoning=9, above=272_000),
        price("openai/gpt-x", 1, 8, **of, reasoning=9),
    ]
    # A name without a provider has the price of the maker, else that of the only provider.
    assert [row.input for row in found["gpt-x"]] == [2, 1]
    assert [(row.above, row.input) for row in found["own"]] == [(200_000, 2), (None, 1)]


def test_chosen_provider_has_the_bare_names(tmp_path: Path) -> None:
    found = imported(tmp_path, MODELS_DEV, "--provider", "reseller")
    assert {name: rows[-1].input for name, rows in found.items()} == {
        "reseller/gpt-x": 7, "gpt-x": 7, "reseller/own": 1, "own": 1,
    }  # fmt: skip


def test_own_rows_stay_and_a_changed_price_has_a_day(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("model,input,output,currency\ngpt-x,5,5,EUR\n")
    assert imported(tmp_path, LITELLM)["gpt-x"][0] == price("gpt-x", 5, 5, currency="EUR")
    changed = {**LITELLM, "groq/llama": {**LITELLM["groq/llama"], "input_cost_per_token": 4e-6}}  # type: ignore[dict-item]
    del changed["xai/grok"]
    for _ in range(2):
        found = imported(tmp_path, changed, "--valid-from", "2026-12-01")
    day = datetime(2026, 12, 1, tzinfo=UTC)
    assert found["llama"] == [
        price("llama", 4, 2, valid_from=day, source="litellm"),
        price("llama", 1, 2, valid_until=day, source="litellm"),
    ]
    assert found["gpt-x"][0] == price("gpt-x", 5, 5, currency="EUR")
    assert found["xai/grok"][-1].input == 1  # its former requests keep their price


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("p.csv", "{", "it is no JSON: Expecting property name"),
        ("p.csv", "[]", "it is no object of models or providers. Check the file."),
        ("p.csv", '{"a": {}}', "it is neither LiteLLM's price map nor models.dev's api.json"),
        ("p.csv", '{"a": {"models": {}}}', "it has no prices per token. Check --provider."),
        ("p.toml", json.dumps(MODELS_DEV), "comments of TOML would be lost. Use a CSV file."),
    ],
)
def test_bad_import_is_reported_and_changes_nothing(
    file: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "catalog.json").write_text(text)
    (tmp_path / file).write_text("model,input,output,currency\n")
    found = run("import", tmp_path / "catalog.json", "--price-file", tmp_path / file)
    assert message in str(found.exception)
    assert (tmp_path / file).read_text() == "model,input,output,currency\n"


def test_import_without_a_price_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "catalog.json").write_text("{}")
    assert "no price file is set. Pass --price-file" in str(
        run("import", tmp_path / "catalog.json").exception
    )


def test_check_shows_models_without_a_price(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = new_store(tmp_path)
    try:
        cursor = store.cursor()
        for model, advisor in (
            ("priced", None),
            ("new", None),
            ("new", "priced"),
            ("priced", "advisor"),
            (None, None),
        ):
            cursor.execute(
                "INSERT INTO streams BY NAME SELECT uuidv7() AS stream_id, ? AS request_model, ? AS other_model, 'ok' AS outcome, "
                "'2026-11-30'::TIMESTAMPTZ AS started_at, 5 AS input_tokens, if(other_model IS NULL, 0, 2) AS other_input_tokens, "
                "'usage' AS token_source",
                [model, advisor],
            )
        cursor.close()
        until = datetime(2026, 12, 1, tzinfo=UTC)
        prices = [price("priced", 1, 2, valid_until=until), price("priced", 2, 2)]
        replace_rows(store, PRICES, prices)
        replace_rows(store, PRICES, prices)
        assert ask(store, "SELECT count(*) FROM prices") == [(2,)]
        assert caplog.text.count("the store has 2 prices") == 1  # equal rows are not written again
    finally:
        store.close()
    found = run("check", "--data", tmp_path, "--format", "json")
    missing = [(row["model"], row["requests"]) for row in json.loads(found.output)]
    assert missing == [("new", 2), ("(no model)", 1), ("advisor", 1)]
    assert found.return_value == 1

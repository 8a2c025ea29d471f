"""The profiles match the conventions, and only `semconv.py` contains `gen_ai.*` names."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, openai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from streamgauge.analytics.telemetry import semconv
from streamgauge.analytics.telemetry.metric_definitions import SERVER_HISTOGRAMS, convention_metrics
from streamgauge.analytics.telemetry.semconv import PROFILES, Names, names_of

ROOT = Path(__file__).resolve().parents[3]

# Names that we use from the repository of the GenAI conventions: docs/gen-ai/client-inference.md at
# 024a4f944a12, docs/gen-ai/gen-ai-token-metrics.md at 066d4a7f356f, docs/gen-ai/non-normative/migration.md.
GENAI_MAIN_ATTRIBUTES = frozenset(
    (
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.conversation.id",
        "gen_ai.agent.id",
        "gen_ai.output.type",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.request.model",
        "gen_ai.request.choice.count",
        "gen_ai.request.frequency_penalty",
        "gen_ai.request.max_tokens",
        "gen_ai.request.presence_penalty",
        "gen_ai.request.reasoning.level",
        "gen_ai.request.seed",
        "gen_ai.request.stop_sequences",
        "gen_ai.request.stream",
        "gen_ai.request.temperature",
        "gen_ai.request.top_k",
        "gen_ai.request.top_p",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.request.previous_response.id",
        "gen_ai.usage.audio.cache_read.input_tokens",
        "gen_ai.usage.audio.input_tokens",
        "gen_ai.usage.audio.output_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.image.input_tokens",
        "gen_ai.usage.image.output_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.token.modality",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
    )
)
SECONDS, TOKENS = semconv.SECONDS_BOUNDS, semconv.TOKEN_BOUNDS
METRICS = {
    # metric → (kind, unit, bounds)
    "1.41": {
        "gen_ai.client.operation.duration": ("histogram", "s", SECONDS),
        "gen_ai.client.operation.time_to_first_chunk": ("histogram", "s", SECONDS),
        "gen_ai.client.operation.time_per_output_chunk": ("histogram", "s", SECONDS),
        "gen_ai.client.token.usage": ("histogram", "{token}", TOKENS),
    },
    "genai-main": {
        "gen_ai.client.operation.duration": ("histogram", "s", SECONDS),
        "gen_ai.client.inference.duration": ("histogram", "s", SECONDS),
        "gen_ai.client.inference.time_to_first_chunk": ("histogram", "s", SECONDS),
        "gen_ai.client.inference.time_per_output_chunk": ("histogram", "s", SECONDS),
        "gen_ai.client.inference.operation.input_tokens": ("histogram", "{token}", TOKENS),
        "gen_ai.client.inference.operation.output_tokens": ("histogram", "{token}", TOKENS),
        "gen_ai.client.inference.usage.input_tokens": ("counter", "{token}", ()),
        "gen_ai.client.inference.usage.output_tokens": ("counter", "{token}", ()),
        "gen_ai.client.inference.usage.cache_read.input_tokens": ("counter", "{token}", ()),
        "gen_ai.client.inference.usage.cache_write.input_tokens": ("counter", "{token}", ()),
        "gen_ai.client.inference.usage.reasoning.output_tokens": ("counter", "{token}", ()),
    },
}


def attributes_of(names: Names) -> set[str]:
    """Every attribute name of a profile."""
    fields = [
        f
        for f in names.__slots__
        if not f.endswith(("_metric", "_event")) and f not in ("profile", "schema_url")
    ]
    found = {v for f in fields if isinstance(v := getattr(names, f), str) and "." in v}
    return found | set(semconv.REQUEST_PARAMETERS.values())


def test_released_profile_has_only_released_names() -> None:
    released = {v for m in (gen_ai_attributes, openai_attributes) for k, v in vars(m).items() if k.isupper()}
    assert attributes_of(PROFILES["1.41"]) <= released
    metrics = {v for k, v in vars(gen_ai_metrics).items() if k.startswith("GEN_AI_")}
    assert {i.name for i in (*convention_metrics(PROFILES["1.41"]), *SERVER_HISTOGRAMS)} <= metrics


def test_main_profile_has_only_names_of_the_documented_revision() -> None:
    found = attributes_of(PROFILES["genai-main"])
    assert {n for n in found if n.startswith("gen_ai.")} <= GENAI_MAIN_ATTRIBUTES
    assert {n for n in found if not n.startswith("gen_ai.")} == {
        "openai.api.type",
        "openai.request.service_tier",
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_metrics_have_the_kind_unit_and_bounds_of_the_conventions(profile: str) -> None:
    found = {i.name: (i.kind, i.unit, i.bounds) for i in convention_metrics(PROFILES[profile])}
    assert found == METRICS[profile]


def test_both_profiles_have_every_metric_once() -> None:
    found = [i.name for i in convention_metrics(names_of("1.41+genai-main"))]
    assert sorted(found) == sorted(METRICS["1.41"].keys() | METRICS["genai-main"].keys())


def test_bounds_double_and_quadruple() -> None:
    assert all(b == pytest.approx(2 * a) for a, b in pairwise(SECONDS))
    assert all(b == 4 * a for a, b in pairwise(TOKENS))
    assert (SECONDS[0], len(SECONDS), TOKENS[0], len(TOKENS)) == (0.01, 14, 1, 14)


def test_unknown_profile_error_lists_the_profiles() -> None:
    with pytest.raises(ValueError, match=r"1\.41 or genai-main"):
        names_of("2.0")


def strings_of(path: Path) -> set[str]:
    """The string constants of a file without docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    docstrings |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    }


def test_only_semconv_contains_convention_names() -> None:
    for path in sorted((ROOT / "streamgauge").rglob("*.py")):
        if path.name != "semconv.py":
            known = {s for s in strings_of(path) if "gen_ai." in s}
            assert not known, path.relative_to(ROOT)

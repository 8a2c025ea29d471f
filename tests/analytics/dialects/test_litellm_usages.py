"""Token counts of random reports, against LiteLLM's own readers of the same reports."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.dialects import anthropic, bedrock, gemini
from streamgauge.analytics.dialects.events import Usage
from streamgauge.analytics.dialects.usage import usage_of
from tests.analytics.dialects.usage_reports import SCHEMAS
from tests.litellm_proxy import PYTHON

ROOT = Path(__file__).parents[3]
READERS: dict[str, Any] = {
    "anthropic": anthropic.normalised,
    "gemini": gemini.normalised,
    "bedrock": bedrock._usage,
    "chat": usage_of,
    "deepseek": usage_of,
}
"""Schemas that LiteLLM reads too. It bills xAI's and Perplexity's reasoning in its prices, not in its counts."""
REPORTS = 1_000


@pytest.mark.litellm
def test_counts_are_those_of_litellm() -> None:
    rng = random.Random(51)
    cases = [(schema, SCHEMAS[schema](rng).usage) for schema in READERS for _ in range(REPORTS)]
    found = subprocess.run(
        [PYTHON, ROOT / "tests/analytics/dialects/litellm_usages.py"],
        input=json.dumps(cases), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    for (schema, report), expected in zip(cases, json.loads(found.stdout), strict=True):
        usage: Usage = READERS[schema](report)
        counts = [usage.input_tokens, usage.output_tokens, usage.cached_input_tokens or 0]
        assert counts == expected, (schema, report)

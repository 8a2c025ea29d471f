"""Costs by LiteLLM's own `completion_cost`, for usage reports on standard input. Runs in LiteLLM's environment.

Input: JSON list of [model, format, report, how it was served]. Output: JSON list of costs in USD, or the error as text.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # type: ignore[import-not-found]
from litellm.llms.anthropic.chat.transformation import AnthropicConfig  # type: ignore[import-not-found]
from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import (  # type: ignore[import-not-found]
    VertexGeminiConfig,
)


def usage_of(form: str, report: dict[str, Any]) -> Any:
    if form == "anthropic":
        return AnthropicConfig().calculate_usage(usage_object=report, reasoning_content=None)
    if form == "gemini":
        return VertexGeminiConfig._calculate_usage({"usageMetadata": report})
    return litellm.Usage(**report)


def cost(model: str, form: str, report: dict[str, Any], served: dict[str, str]) -> float | str:
    tier, region, speed = (served.get(name) for name in ("service_tier", "inference_region", "speed"))
    if form == "anthropic":
        report = report | {"inference_geo": region, "speed": speed}
    response = litellm.ModelResponse(model=model, usage=usage_of(form, report))
    try:
        return float(
            litellm.completion_cost(
                completion_response=response, model=model, service_tier=tier, data_residency=region
            )
        )
    except Exception as e:
        return f"{type(e).__name__}: {e}"


with contextlib.redirect_stdout(sys.stderr):
    costs = [cost(*case) for case in json.load(sys.stdin)]
json.dump(costs, sys.stdout)

"""Token counts by LiteLLM's own readers of usage reports. Runs in LiteLLM's environment.

Input: JSON list of [schema, report]. Output: JSON list of [input, output, cached input] tokens.
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
from litellm.llms.bedrock.chat.converse_transformation import AmazonConverseConfig  # type: ignore[import-not-found]
from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import (  # type: ignore[import-not-found]
    VertexGeminiConfig,
)


def counts(schema: str, report: dict[str, Any]) -> list[int]:
    if schema == "anthropic":
        usage = AnthropicConfig().calculate_usage(usage_object=report, reasoning_content=None)
    elif schema == "gemini":
        usage = VertexGeminiConfig._calculate_usage({"usageMetadata": report})
    elif schema == "bedrock":
        usage = AmazonConverseConfig().transform_usage(report)
    else:
        usage = litellm.Usage(**report)
    details = usage.prompt_tokens_details
    return [usage.prompt_tokens, usage.completion_tokens, (details and details.cached_tokens) or 0]


with contextlib.redirect_stdout(sys.stderr):
    found = [counts(*case) for case in json.load(sys.stdin)]
json.dump(found, sys.stdout)

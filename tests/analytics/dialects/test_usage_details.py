"""Parts of a usage report that have prices of their own, as vendors report them."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.analytics.dialects.usage import details_in


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}, {}, id="plain"),
        pytest.param(
            {
                "cache_creation_input_tokens": 30, "server_tool_use": {"web_search_requests": 2},
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            },
            {"cache_write_tokens": 30, "cache_write_1h_tokens": 20, "web_searches": 2},
            id="Anthropic",
        ),
        pytest.param(
            {"cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}},
            {"cache_write_tokens": 30, "cache_write_1h_tokens": 20},
            id="Anthropic, without a sum",
        ),
        pytest.param(
            {
                "prompt_tokens_details": {"audio_tokens": 5, "image_tokens": 6, "cache_write_tokens": 7},
                "completion_tokens_details": {"audio_tokens": 8, "image_tokens": 9},
            },
            {
                "input_audio_tokens": 5, "input_image_tokens": 6, "cache_write_tokens": 7, "output_audio_tokens": 8,
                "output_image_tokens": 9,
            },
            id="OpenAI",
        ),
        pytest.param(
            {
                "input_token_details": {"audio_tokens": 5, "cached_tokens_details": {"audio_tokens": 2}},
                "output_token_details": {"audio_tokens": 8},
            },
            {"input_audio_tokens": 5, "cached_audio_tokens": 2, "output_audio_tokens": 8},
            id="Realtime",
        ),
        pytest.param(
            {
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1}, {"modality": "AUDIO", "tokenCount": 5}],
                "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 9}],
                "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 2}],
            },
            {"input_audio_tokens": 5, "output_image_tokens": 9, "cached_audio_tokens": 2},
            id="Gemini",
        ),
        pytest.param(
            {"cacheWriteInputTokens": 30, "cacheDetails": [{"ttl": "1h", "inputTokens": 20}, {"ttl": "5m", "inputTokens": 10}]},
            {"cache_write_tokens": 30, "cache_write_1h_tokens": 20},
            id="Bedrock",
        ),
        pytest.param(
            {"prompt_tokens_details": "x", "cache_creation_input_tokens": -1, "server_tool_use": [1], "cacheDetails": [3, {}]},
            {},
            id="nonsense",
        ),
        pytest.param("text", {}, id="no object"),
    ],
)  # fmt: skip
def test_parts_of_a_report(raw: Any, expected: dict[str, int]) -> None:
    assert {name: value for name, value in details_in(raw).items() if value is not None} == expected

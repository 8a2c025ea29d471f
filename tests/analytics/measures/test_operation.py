"""Operations by path."""

from __future__ import annotations

import pytest

from streamgauge.analytics.measures.operation import is_side_call, operation_of


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "text_completion"),
        ("/inference/v1/responses", "chat"),
        ("/v1/messages", "chat"),
        ("/api/v1/chat", "chat"),
        ("/v2/chat", "chat"),
        ("/v1/embeddings/", "embeddings"),
        ("/v1beta/models/g:streamGenerateContent?alt=sse", "generate_content"),
        ("/v1/messages/count_tokens?beta=true", "count_tokens"),
        ("/v1beta/models/g:countTokens", "count_tokens"),
        ("/v1/responses/input_tokens", "count_tokens"),
        ("/v1/models", None),
        ("/", None),
    ],
)
def test_operation_by_path(path: str, operation: str | None) -> None:
    assert operation_of(path) == operation


@pytest.mark.parametrize(
    ("operation", "app", "has_tools", "expected"),
    [
        ("chat", "claude-cli/2.1.90", False, True),
        ("generate_content", "GeminiCLI-tui/0.61.0", False, True),
        ("chat", "codex_exec/0.169.0", False, True),
        ("chat", "claude-cli/2.1.90", True, False),
        ("chat", "claude-cli/2.1.90", None, False),
        ("chat", "OpenAI/Python/2.8.0", False, False),
        ("chat", None, False, False),
        ("count_tokens", "claude-cli/2.1.90", False, False),
    ],
)
def test_request_of_an_agent_without_tools_is_a_side_call(
    operation: str, app: str | None, has_tools: bool | None, expected: bool
) -> None:
    assert is_side_call(operation, app, has_tools) is expected

"""Operations by path."""

from __future__ import annotations

import pytest

from streamgauge.analytics.measures.operation import is_side_call, is_web, operation_of
from tests.analytics.stream_records import head, opened


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


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type", "expected"),
    [
        ("HEAD", "/", 200, "application/json", True),  # Claude Code looks for the host
        ("HEAD", "/v1/messages", 404, "application/json", True),
        ("OPTIONS", "/v1/chat/completions", 204, "", True),
        ("GET", "/", 200, "text/html; charset=utf-8", True),
        ("GET", "/", 404, "application/json", True),
        ("GET", "/favicon.ico", 404, "application/json", True),
        ("GET", "/assets/index-B4.js", 200, "application/octet-stream", True),
        ("GET", "/ui", 200, "text/html", True),
        ("GET", "/fonts/a", 200, "font/woff2", True),
        ("GET", "/", 200, "text/event-stream", False),
        ("GET", "/v1/models", 200, "application/json", False),
        ("GET", "/v1/models", 502, "text/html", False),
        ("GET", "/v1/responses/resp_1", 200, "application/json", False),
        ("GET", "/health", 200, "text/plain", False),
        ("POST", "/v1/chat/completions", 200, "text/html", False),
    ],
)
def test_pages_and_preflights_are_no_requests(
    method: str, path: str, status: int, content_type: str, expected: bool
) -> None:
    assert is_web(opened("s", method=method, path=path), head(status, content_type), None) is expected


def test_get_of_mcp_and_websockets_are_no_pages() -> None:
    listening = opened("s", method="GET", path="/")
    assert not is_web(listening, head(405, "text/html"), "mcp")
    upgrade = opened("s", method="GET", path="/", headers=[("upgrade", "websocket")])
    assert not is_web(upgrade, None, None)
    assert is_web(listening, None, None)

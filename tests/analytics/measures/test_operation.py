"""Operations by path."""

from __future__ import annotations

import pytest

from streamgauge.analytics.measures.operation import operation_of


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
        ("/v1/models", None),
        ("/", None),
    ],
)
def test_operation_by_path(path: str, operation: str | None) -> None:
    assert operation_of(path) == operation

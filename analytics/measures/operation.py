"""The operation of a request (`gen_ai.operation.name`) by its path alone."""

from __future__ import annotations

from functools import lru_cache

_OPERATIONS: tuple[tuple[str, str], ...] = (
    # end of the path → operation
    ("/chat/completions", "chat"),
    ("/completions", "text_completion"),
    ("/responses", "chat"),
    ("/messages", "chat"),
    ("/chat", "chat"),
    ("/complete", "text_completion"),
    ("/embeddings", "embeddings"),
    ("/embed", "embeddings"),
    ("/generate", "text_completion"),
    ("/generate_stream", "text_completion"),
    (":generatecontent", "generate_content"),
    (":streamgeneratecontent", "generate_content"),
    (":embedcontent", "embeddings"),
    (":batchembedcontents", "embeddings"),
    ("/converse", "chat"),
    ("/converse-stream", "chat"),
    ("/invoke-with-response-stream", "chat"),
    ("/images/generations", "generate_content"),
    ("/audio/speech", "generate_content"),
    ("/audio/transcriptions", "generate_content"),
    ("/audio/translations", "generate_content"),
    ("/realtime", "generate_content"),
    (".bidigeneratecontent", "generate_content"),
)


@lru_cache(4096)
def operation_of(path: str) -> str | None:
    """None if the path belongs to no known API."""
    bare = path.partition("?")[0].rstrip("/").lower()
    return next((operation for end, operation in _OPERATIONS if bare.endswith(end)), None)

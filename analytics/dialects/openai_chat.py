"""OpenAI's chat completions and compatible servers: `data: {chat.completion.chunk}` up to `[DONE]`.

A finish reason ends the stream too: some servers name their objects `chat.completion` and send no `[DONE]`. `openai_choices`
decodes the chunks with the vendors' additions.
"""

from __future__ import annotations

import re

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.openai_choices import ChoicesReader

_OBJECT = re.compile(rb'"object"\s*:\s*"chat\.completion')
_CHOICES = re.compile(rb'"choices"\s*:\s*(\[\s*\{|\[\s*\]|null)')


class OpenAIChat:
    name = "openai_chat"
    provider = "openai"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        path = exchange.route
        if path.endswith("/chat/completions"):
            return 5
        return 1 if path.endswith("/chat") or "/serving-endpoints/" in path else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name not in ("", "message", "error", "completion", "chunk"):
            return 0
        if _OBJECT.search(data):
            return 8
        choices = _CHOICES.search(data)
        if choices is None:
            return 0
        return 6 if b'"delta"' in data or b'"message"' in data else 2

    def reader(self, exchange: ExchangeInfo) -> ChoicesReader:
        return ChoicesReader()


DIALECT = OpenAIChat()

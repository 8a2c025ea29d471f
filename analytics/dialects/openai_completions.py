"""OpenAI's legacy text completions and compatible servers (vLLM, Fireworks, Together …): `choices[].text`."""

from __future__ import annotations

import re

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.openai_choices import ChoicesReader

_OBJECT = re.compile(rb'"object"\s*:\s*"text_completion')
_TEXT = re.compile(rb'"choices"\s*:\s*\[\s*\{[^\[{]*"text"\s*:')


class OpenAICompletions:
    name = "openai_completions"
    provider = "openai"
    operation = "text_completion"

    def claims(self, exchange: ExchangeInfo) -> int:
        path = exchange.route
        return 5 if path.endswith("/completions") and not path.endswith("/chat/completions") else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name not in ("", "message", "error"):
            return 0
        if _OBJECT.search(data):
            return 8
        return 5 if b'"delta"' not in data and _TEXT.search(data) else 0

    def reader(self, exchange: ExchangeInfo) -> ChoicesReader:
        return ChoicesReader()


DIALECT = OpenAICompletions()

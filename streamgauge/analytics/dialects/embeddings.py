"""Embeddings: one JSON body with a usage report of the input.

The vectors are not output. OpenAI and its family report `usage.prompt_tokens`, Voyage and Jina `usage.total_tokens` alone, Cohere
`meta.billed_units`, Gemini `usageMetadata`, Ollama's own API `prompt_eval_count`.

Systems:

| Embeddings of OpenAI and its family, Voyage, Jina, Cohere, Gemini, Ollama | `openai` | `embeddings` | `/v1/embeddings`, `/v2/embed`,
    `/api/embed`, `:embedContent` | the body | the body |
"""

from __future__ import annotations

import re

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, by_path
from streamgauge.analytics.dialects.events import DecodedEvent, Usage
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.tolerant_json import member_of, string_of, whole_number
from streamgauge.analytics.dialects.usage import details_in


class _Body(Event):
    model: kept.Term = None
    usage: kept.Report = None
    meta: kept.Report = None
    google: kept.Report = msgspec.field(default=None, name="usageMetadata")
    prompt_eval_count: kept.Count = None
    embedding: msgspec.Raw = msgspec.Raw()
    embeddings: msgspec.Raw = msgspec.Raw()
    """Members that identify a body."""


_VECTORS = re.compile(rb'"embeddings?"\s*:\s*[\[{"]')


def _recognises(name: str, data: bytes) -> int:
    return 2 if _VECTORS.search(data, 0, 4096) else 0


class EmbeddingsReader(JSONReader, event=_Body):
    """Decodes one body."""

    def event(self, event: _Body, kind: str) -> DecodedEvent:
        reports = (event.usage, member_of(event.meta, "billed_units"), event.google)
        raw = next((report for report in reports if isinstance(report, dict)), {})
        counts = (
            *map(raw.get, ("prompt_tokens", "input_tokens", "promptTokenCount", "total_tokens")),
            event.prompt_eval_count,
        )
        tokens = next((count for count in map(whole_number, counts) if count is not None), None)
        return DecodedEvent(
            usage=None if tokens is None else Usage(tokens, raw=raw),
            model=string_of(event.model) or None,
            billing=details_in(raw),
        )


_claims = by_path(r"/(embeddings|embed)$|:(embedContent|batchEmbedContents)$")
DIALECT = Dialect("embeddings", "openai", "embeddings", _claims, _recognises, EmbeddingsReader)

"""Bedrock's InvokeModelWithResponseStream: events of the model's vendor. Those of Anthropic select their own dialect.

Bedrock adds `amazon-bedrock-invocationMetrics` to the last event of every model: the terminal, and usage. Text is decoded of
models whose event has it in one member: `generation` (Llama), `outputText` (Titan).
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.anthropic_messages import bedrock_stats
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.errors import failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, Usage
from streamgauge.analytics.dialects.tolerant_json import decode_or_none, whole_number


class _Event(msgspec.Struct):
    generation: str | None = None
    outputText: str | None = None
    stop_reason: str | None = None
    completionReason: str | None = None
    error: Any = None
    metrics: dict[str, Any] | None = msgspec.field(default=None, name="amazon-bedrock-invocationMetrics")


_event = msgspec.json.Decoder(_Event)


class BedrockInvoke:
    name = "bedrock_invoke"
    provider = "aws.bedrock"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if exchange.route.endswith("/invoke-with-response-stream") else 0

    def recognises(self, name: str, data: bytes) -> int:
        return 0

    def reader(self, exchange: ExchangeInfo) -> BedrockInvokeReader:
        return BedrockInvokeReader()


class BedrockInvokeReader:
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent:
        event = decode_or_none(_event, data)
        if event is None or event.error:
            return failed_event(event, data, name)
        text = event.generation or event.outputText or ""
        reason = event.stop_reason or event.completionReason
        delta = ChoiceDelta(text=text, finish_reason=reason) if text or reason else None
        found = DecodedEvent(
            kind="finish" if reason else "other", deltas=[delta] if delta is not None else None
        )
        if event.metrics is not None:
            found.terminal = True
            found.server_stats = bedrock_stats(event.metrics)
            found.usage = Usage(
                input_tokens=whole_number(event.metrics.get("inputTokenCount")),
                output_tokens=whole_number(event.metrics.get("outputTokenCount")),
                raw=event.metrics,
            )
            if delta is None:
                found.kind = "terminal"
        return found

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return [self.read("", body)]


DIALECT = BedrockInvoke()

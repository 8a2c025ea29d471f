"""The dialect of Acme: `/acme/talk` streams one word per event, and ends with a token count."""

from __future__ import annotations

import msgspec

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta, Usage
from streamgauge.analytics.dialects.tolerant_json import decode_or_none


class _Event(msgspec.Struct):
    word: str | None = None
    count: int | None = None


_decoder = msgspec.json.Decoder(_Event)


class Acme:
    name = "acme_talk"
    provider = "acme"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5 if exchange.route.endswith("/acme/talk") else 0

    def recognises(self, name: str, data: bytes) -> int:
        return 6 if data.startswith(b'{"word"') else 0

    def reader(self, exchange: ExchangeInfo) -> AcmeReader:
        return AcmeReader()


class AcmeReader:
    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return DecodedEvent(kind="malformed")
        if event.word:
            return TextDelta("text", event.word)
        if event.count is None:
            return DecodedEvent(kind="other")
        return DecodedEvent(
            kind="finish",
            deltas=[ChoiceDelta(finish_reason="end")],
            usage=Usage(output_tokens=event.count, raw={"count": event.count}),
        )

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return []


DIALECT = Acme()

"""The dialect of Acme: `/acme/talk` streams one word per event, and ends with a token count."""

from __future__ import annotations

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta, Usage
from streamgauge.analytics.dialects.tolerant_json import decode_or_none


class _Event(msgspec.Struct):
    word: str | None = None
    count: int | None = None


_decoder = msgspec.json.Decoder(_Event)


class AcmeReader(DialectReader):
    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        event = decode_or_none(_decoder, data)
        if event is None:
            return DecodedEvent(kind="malformed")
        if event.word:
            return TextDelta("text", event.word)
        if event.count is None:
            return DecodedEvent(kind="other")
        return DecodedEvent(
            deltas=[ChoiceDelta(finish_reason="end")],
            usage=Usage(output_tokens=event.count, raw={"count": event.count}),
        )

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return []


def _recognises(name: str, data: bytes) -> int:
    return 6 if data.startswith(b'{"word"') else 0


DIALECT = Dialect("acme_talk", "acme", "chat", by_path("/acme/talk$"), _recognises, AcmeReader)

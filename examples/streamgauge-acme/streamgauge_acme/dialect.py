"""The dialect of Acme: `/acme/talk` streams one word per event, and ends with a token count."""

from __future__ import annotations

from streamgauge.analytics.dialects.dialect import Dialect, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, TextDelta
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.usage import usage_in


class _Event(Event):
    word: str | None = None
    count: int | None = None


class AcmeReader(JSONReader, event=_Event):
    def event(self, event: _Event, kind: str) -> DecodedEvent | TextDelta:
        if event.word:
            return TextDelta("text", event.word)
        if event.count is None:
            return DecodedEvent()
        return DecodedEvent(
            deltas=[ChoiceDelta(finish_reason="end")], usage=usage_in({"count": event.count}, "", "count")
        )


def _recognises(name: str, data: bytes) -> int:
    return 6 if data.startswith(b'{"word"') else 0


DIALECT = Dialect("acme_talk", "acme", "chat", by_path("/acme/talk$"), _recognises, AcmeReader)

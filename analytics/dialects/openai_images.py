"""OpenAI's image endpoints (generations, edits, variations): `image_generation.*` and `image_edit.*` events, or one body.

Images and their previews are output. `*.completed` carries the usage and finishes the stream (finish reason `completed`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, by_path
from streamgauge.analytics.dialects.errors import error_event, failed_event
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent
from streamgauge.analytics.dialects.tolerant_json import decode_or_none
from streamgauge.analytics.dialects.usage import usage_of

_TYPES = ("image_generation.", "image_edit.")


class _Event(msgspec.Struct):
    type: str | None = None
    data: list[msgspec.Raw] | None = None
    usage: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


def _recognises(name: str, data: bytes) -> int:
    return 8 if name.startswith(_TYPES) else 0


class ImagesReader(DialectReader):
    """Decodes one stream."""

    def read(self, name: str, data: bytes) -> DecodedEvent:
        event = decode_or_none(_event, data)
        if event is None:
            return failed_event(None, data, name)
        kind = event.type or name
        if kind == "error" or event.error:
            return error_event(data)
        if not kind.startswith(_TYPES):
            return DecodedEvent(kind="other")
        if not kind.endswith(".completed"):
            return DecodedEvent(deltas=[ChoiceDelta(images=1)])
        return _images(event, 1)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        whole = decode_or_none(_event, body)
        if whole is None or whole.error:
            return [failed_event(whole, body)]
        return [_images(whole, len(whole.data or ()))]


def _images(event: _Event, count: int) -> DecodedEvent:
    delta = ChoiceDelta(images=count, finish_reason="completed")
    return DecodedEvent(deltas=[delta], usage=usage_of(event.usage), terminal=True)


_claims = by_path(r"/images/(generations|edits|variations)$")
DIALECT = Dialect("openai_images", "openai", "generate_content", _claims, _recognises, ImagesReader)

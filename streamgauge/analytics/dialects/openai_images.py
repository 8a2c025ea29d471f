"""OpenAI's image endpoints (generations, edits, variations): `image_generation.*` and `image_edit.*` events, or one body.

Images and their previews are output. `*.completed` carries the usage and finishes the stream (finish reason `completed`).
Without details of the output, all of its tokens are those of images.

Systems:

| OpenAI images | `openai` | `openai_images` | `/v1/images/generations`, `/v1/images/edits` | the completed event | the completed event |
"""

from __future__ import annotations

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, by_path
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent
from streamgauge.analytics.dialects.json_reader import Event, JSONReader
from streamgauge.analytics.dialects.usage import usage_of

_TYPES = ("image_generation.", "image_edit.")


class _Event(Event):
    data: list[msgspec.Raw] | None = None
    usage: kept.Report = None


def _recognises(name: str, data: bytes) -> int:
    return 8 if name.startswith(_TYPES) else 0


class ImagesReader(JSONReader, event=_Event):
    """Decodes one stream."""

    def event(self, event: _Event, kind: str) -> DecodedEvent:
        if not kind.startswith(_TYPES):
            return DecodedEvent(kind="other")
        if not kind.endswith(".completed"):
            return DecodedEvent(deltas=[ChoiceDelta(images=1)])
        return _images(event, 1)

    def body(self, whole: _Event) -> list[DecodedEvent]:
        return [_images(whole, len(whole.data or ()))]


def _images(event: _Event, count: int) -> DecodedEvent:
    delta = ChoiceDelta(images=count, finish_reason="completed")
    usage = usage_of(event.usage)
    of_images = (
        usage.output_tokens if usage is not None and "output_tokens_details" not in usage.raw else None
    )
    return DecodedEvent(
        deltas=[delta],
        usage=usage,
        terminal=True,
        billing={"output_image_tokens": of_images} if of_images else None,
    )


_claims = by_path(r"/images/(generations|edits|variations)$")
DIALECT = Dialect("openai_images", "openai", "generate_content", _claims, _recognises, ImagesReader)

"""Base of readers whose events are one JSON object each: decodes an event or a body, and finds errors."""

from __future__ import annotations

from functools import cache
from types import NoneType
from typing import Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import DialectReader
from streamgauge.analytics.dialects.error_bodies import ERROR_KINDS, failed_event
from streamgauge.analytics.dialects.events import DecodedEvent, TextDelta, as_decoded_event
from streamgauge.analytics.dialects.tolerant_json import FAULTS, decode_or_none, json_or_none

_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class Event(msgspec.Struct, gc=False):
    """Base of the types of events and bodies. A type with another base declares these members; nested objects do not have them.

    A member of another name with the kind of an event is declared as `type` with this name.
    """

    type: kept.Title = None
    error: None = None


class JSONReader(DialectReader):
    """`class AcmeReader(JSONReader, event=_Event, body=_Body)`. Without `body`, a body has the type of an event.

    The kind of an event is its member `type`, else its name. An event of the kind or name `error`, or with a value in `error` or
    `errors` that is declared as None, is an error. `event` and `body` decode the others. With `lists=True`, a body may be a
    list of such objects.
    """

    _event_decoder: msgspec.json.Decoder[Any]
    _body_decoder: msgspec.json.Decoder[Any]
    _decode: Any  # a bound method of C, which a class does not bind again
    _lists: bool

    def __init_subclass__(
        cls,
        *,
        event: type[msgspec.Struct] | None = None,
        body: type[msgspec.Struct] | None = None,
        lists: bool = False,
    ) -> None:
        if event is not None:
            cls._lists = lists
            cls._event_decoder = msgspec.json.Decoder(event)
            cls._body_decoder = msgspec.json.Decoder(body or event)
            cls._decode = cls._event_decoder.decode

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        try:
            event = self._decode(data)  # fails for an error, which the type has not
        except FAULTS:
            event = _repaired(self._event_decoder, data)
            if event is None:
                return failed_event(name, data)
        kind = event.type or name
        if kind and (kind in ERROR_KINDS or name in ERROR_KINDS):
            return failed_event("error", data)
        return self.event(event, kind)

    def event(self, event: Any, kind: str) -> DecodedEvent | TextDelta:
        """Decode an event of the type `event`."""
        raise TypeError(f"{type(self).__name__} has no method `event`")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        items = decode_or_none(_LIST, body) if self._lists and body.lstrip()[:1] == b"[" else None
        if items is None:
            return self._read_object(body)
        return [event for item in items for event in self._read_object(bytes(item))]

    def _read_object(self, body: bytes) -> list[DecodedEvent]:
        try:
            whole = self._body_decoder.decode(body)
        except FAULTS:
            whole = _repaired(self._body_decoder, body)
        if whole is None or whole.type == "error":
            return [failed_event("", body)]
        return self.body(whole)

    def body(self, whole: Any) -> list[DecodedEvent]:
        """Decode a body of the type `body`. Unless overridden, it has the form of one event."""
        return [as_decoded_event(self.event(whole, ""))]


def _repaired(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """The data as the decoder's type, if it has no error."""
    value = json_or_none(data)
    if not isinstance(value, dict) or any(value.pop(member, None) for member in _errors(decoder)):
        return None
    return decode_or_none(decoder, msgspec.json.encode(value))


@cache
def _errors(decoder: msgspec.json.Decoder[Any]) -> list[str]:
    """The members that are declared as None."""
    return [field.encode_name for field in msgspec.structs.fields(decoder.type) if field.type is NoneType]

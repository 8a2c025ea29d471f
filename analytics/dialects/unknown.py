"""Decode a stream of an unknown dialect: events and errors labelled as such, without output."""

from __future__ import annotations

from streamgauge.analytics.decoded.event import DecodedEvent
from streamgauge.analytics.decoded.tolerant_json import json_or_none
from streamgauge.analytics.dialects.errors import error_in

NAME = "unknown"


class UnknownReader:
    """Decodes pings and labelled errors. Every other event is `other`."""

    def read(self, name: str, data: bytes) -> DecodedEvent:
        if name == "ping":
            return DecodedEvent(kind="ping")
        if b"error" in data[:65536] or name == "error":
            value = json_or_none(data)
            error = error_in(value)
            if error is None and name == "error":
                error = error_in({"error": value if value else data.decode("utf-8", "replace")[:4096]})
            if error is not None:
                return DecodedEvent(kind="error", error=error)
        return DecodedEvent()

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return [self.read("", body)] if body.lstrip()[:1] == b"{" else []

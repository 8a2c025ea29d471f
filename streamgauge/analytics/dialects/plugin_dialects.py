"""Dialects of plugins. An error in one counts as malformed events, as bad data does, and is reported once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.events import DecodedEvent, TextDelta
from streamgauge.ingest.plugins import DIALECTS, load_plugins

T = TypeVar("T")
log = logging.getLogger(__name__)
_TEXTS = ("name", "provider", "operation")
_METHODS = ("claims", "recognises", "reader")


def plugin_dialects(taken: Collection[str]) -> list[Dialect]:
    """The dialects of installed plugins whose names are not `taken`."""
    known = set(taken)

    def check(found: object) -> Dialect:
        wrong = [name for name in _TEXTS if not isinstance(getattr(found, name, None), str)]
        wrong += [name for name in _METHODS if not callable(getattr(found, name, None))]
        if wrong:
            raise TypeError(f"it has no valid {', '.join(wrong)}")
        dialect = guarded(found)
        if dialect.name in known:
            raise ValueError(f"there is a dialect {dialect.name!r}")
        known.add(dialect.name)
        return dialect

    return list(load_plugins(DIALECTS, check).values())


def guarded(found: Any) -> Dialect:
    """The dialect of a plugin: its errors are caught."""
    plugin = _PluginDialect(found)
    return Dialect(
        found.name, found.provider, found.operation, plugin.claims, plugin.recognises, plugin.reader
    )


class _PluginDialect:
    """Calls the dialect of a plugin and catches its errors."""

    def __init__(self, dialect: Any) -> None:
        self._dialect = dialect
        self._has_failed = False

    def claims(self, exchange: ExchangeInfo) -> int:
        return self.call("claims", lambda: int(self._dialect.claims(exchange)), 0)

    def recognises(self, name: str, data: bytes) -> int:
        return self.call("recognises", lambda: int(self._dialect.recognises(name, data)), 0)

    def reader(self, exchange: ExchangeInfo) -> DialectReader:
        return PluginReader(self, self.call("reader", lambda: self._dialect.reader(exchange), None))

    def call(self, method: str, function: Callable[[], T], otherwise: T) -> T:
        """The result of a call of the plugin. The first error is logged."""
        try:
            return function()
        except Exception as e:
            if not self._has_failed:
                self._has_failed = True
                log.warning(
                    "the dialect plugin %s failed in %s: %s. Its events count as malformed. Correct or uninstall the plugin",
                    self._dialect.name, method, type(e).__name__,  # the message may quote text of a stream
                )  # fmt: skip
            return otherwise


class PluginReader:
    """Calls the reader of a plugin. After an error, or without a reader, the event is malformed."""

    def __init__(self, dialect: _PluginDialect, reader: Any) -> None:
        self._dialect, self._reader = dialect, reader

    @property
    def operation(self) -> str | None:
        return getattr(self._reader, "operation", None)

    @property
    def open_ended(self) -> bool:
        return bool(getattr(self._reader, "open_ended", False))

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        def checked() -> DecodedEvent | TextDelta:
            event = self._reader.read(name, data)
            if isinstance(event, DecodedEvent | TextDelta):
                return event
            raise TypeError(f"{type(event).__name__} is not an event")

        malformed: DecodedEvent | TextDelta = DecodedEvent(kind="malformed")
        return malformed if self._reader is None else self._dialect.call("read", checked, malformed)

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        malformed = [DecodedEvent(kind="malformed")]
        if self._reader is None:
            return malformed
        return self._dialect.call("read_body", lambda: list(self._reader.read_body(body)), malformed)

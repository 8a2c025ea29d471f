"""Dialects of plugins. An error in one counts as malformed events, as bad data does, and is reported once."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from streamgauge.analytics.dialects.dialect import Dialect, DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.events import DecodedEvent, TextDelta
from streamgauge.ingest.plugins import DIALECTS, load_plugins

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

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._has_failed = False

    def claims(self, exchange: ExchangeInfo) -> int:
        try:
            return int(self._dialect.claims(exchange))
        except Exception as e:
            return self._failed("claims", e)

    def recognises(self, name: str, data: bytes) -> int:
        try:
            return int(self._dialect.recognises(name, data))
        except Exception as e:
            return self._failed("recognises", e)

    def reader(self, exchange: ExchangeInfo) -> DialectReader:
        try:
            return PluginReader(self, self._dialect.reader(exchange))
        except Exception as e:
            self._failed("reader", e)
            return PluginReader(self, None)

    def _failed(self, method: str, error: Exception) -> int:
        """Log the first error. Returns 0, the score of another dialect."""
        if not self._has_failed:
            self._has_failed = True
            log.warning(
                "the dialect plugin %s failed in %s: %s. Its events count as malformed. Correct or uninstall the plugin",
                self._dialect.name, method, type(error).__name__,  # the message may quote text of a stream
            )  # fmt: skip
        return 0


class PluginReader:
    """Calls the reader of a plugin. After an error, or without a reader, the event is malformed."""

    def __init__(self, dialect: _PluginDialect, reader: DialectReader | None) -> None:
        self._dialect, self._reader = dialect, reader

    @property
    def operation(self) -> str | None:
        return getattr(self._reader, "operation", None)

    @property
    def open_ended(self) -> bool:
        return bool(getattr(self._reader, "open_ended", False))

    def read(self, name: str, data: bytes) -> DecodedEvent | TextDelta:
        try:
            if self._reader is not None:
                event = self._reader.read(name, data)
                if isinstance(event, DecodedEvent | TextDelta):
                    return event
                raise TypeError(f"{type(event).__name__} is not an event")
        except Exception as e:
            self._dialect._failed("read", e)
        return DecodedEvent(kind="malformed")

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        try:
            if self._reader is not None:
                return self._reader.read_body(body)
        except Exception as e:
            self._dialect._failed("read_body", e)
        return [DecodedEvent(kind="malformed")]

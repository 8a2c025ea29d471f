"""Instants as Python datetimes from DuckDB without the package pytz.

DuckDB's Python client converts TIMESTAMPTZ values to datetimes with pytz, which it does not require, so `fetchall` raises where
pytz is not installed. DuckDB imports pytz once per process and keeps it. `use_zoneinfo` has it keep a replacement with the
function that DuckDB calls (`timezone`), based on the standard library's `zoneinfo`. The replacement is in `sys.modules` only
for that import, so other packages do not see it.
"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta, tzinfo
from importlib.util import find_spec
from types import ModuleType
from zoneinfo import ZoneInfo

import duckdb

_lock = threading.Lock()
_is_done = False


class _Zone(tzinfo):
    """A zone of pytz, as far as DuckDB uses it. Datetimes that it converts have the `ZoneInfo` itself."""

    def __init__(self, name: str) -> None:
        self._zone: tzinfo = UTC if name == "UTC" else ZoneInfo(name)

    def localize(self, value: datetime) -> datetime:
        return value.replace(tzinfo=self)

    def fromutc(self, value: datetime) -> datetime:
        return value.replace(tzinfo=UTC).astimezone(self._zone)

    def utcoffset(self, value: datetime | None) -> timedelta | None:
        return self._zone.utcoffset(value)

    def dst(self, value: datetime | None) -> timedelta | None:
        return self._zone.dst(value)

    def tzname(self, value: datetime | None) -> str | None:
        return self._zone.tzname(value)


def use_zoneinfo() -> None:
    """Let DuckDB convert instants in this process, with `zoneinfo` unless pytz is installed."""
    global _is_done
    with _lock:
        if _is_done or "pytz" in sys.modules or find_spec("pytz") is not None:
            return
        replacement = ModuleType("pytz")
        replacement.__dict__["timezone"] = _Zone
        sys.modules["pytz"] = replacement
        try:
            with duckdb.connect() as connection:
                connection.execute("SELECT to_timestamp(0)").fetchall()
        finally:
            del sys.modules["pytz"]
        _is_done = True

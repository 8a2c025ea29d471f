"""Quote text, names and instants for SQL statements, and add durations to instants."""

from __future__ import annotations

from datetime import UTC, datetime


def literal(text: str) -> str:
    """A VARCHAR literal. Removes NUL characters, which SQL text cannot contain."""
    return "'" + text.replace("\x00", "").replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A quoted name of a table or column."""
    return '"' + name.replace('"', '""') + '"'


def instant(at: datetime) -> str:
    """A TIMESTAMPTZ literal, exact to the microsecond."""
    return f"TIMESTAMPTZ '{at.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"


def later(at: str, ns: str) -> str:
    """SQL that adds a duration in ns to an instant, in whole microseconds. Four times as fast as adding an INTERVAL."""
    return f"make_timestamptz(epoch_us({at}) + ({ns}) // 1000)"

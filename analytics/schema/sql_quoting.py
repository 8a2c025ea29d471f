"""Quote text and names for SQL statements."""

from __future__ import annotations


def literal(text: str) -> str:
    """A VARCHAR literal. Removes NUL characters, which SQL text cannot contain."""
    return "'" + text.replace("\x00", "").replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A quoted name of a table or column."""
    return '"' + name.replace('"', '""') + '"'

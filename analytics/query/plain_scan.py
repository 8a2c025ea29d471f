"""Recognise a plain scan: `SELECT columns FROM table`, the statement that an ATTACH client sends for each table it reads.

The SQL server streams a plain scan from the table and composes the statement itself. So the process that listens never
parses a reader's text. Every other statement runs in the query pool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from streamgauge.analytics.schema.sql_quoting import identifier
from streamgauge.analytics.storage.location import ALIAS

_NAME = r'(?:"(?:[^"]|"")+"|[A-Za-z_]\w*)'
_ITEM = rf"(?:{_NAME}|#\d{{1,4}})"
_STATEMENT = re.compile(
    rf"\s*(?:SELECT\s+(?P<items>\*|NULL::BOOLEAN|{_ITEM}(?:\s*,\s*{_ITEM})*)\s+)?"
    rf"FROM\s+(?:(?:{ALIAS}\s*\.\s*)?main\s*\.\s*)?(?P<table>{_NAME})\s*;?\s*",
    re.IGNORECASE,
)
_PLACE = re.compile(_ITEM)
_WHOLE_ROWS = (None, "*")
_NO_COLUMNS = "NULL::BOOLEAN"
"""What a client reads to count rows."""


def plain_scan(sql: str, columns_of: Callable[[str], Sequence[str] | None]) -> str | None:
    """The scan of one stored table, None for any other statement.

    `columns_of` gives the columns of a table (lower-case name) in order, None if it is not a stored table.
    """
    found = _STATEMENT.fullmatch(sql)
    if found is None:
        return None
    table = _unquoted(found["table"])
    columns = columns_of(table)
    if columns is None:
        return None
    items: str | None = found["items"]
    if items in _WHOLE_ROWS:
        selected = "*"
    elif items.upper() == _NO_COLUMNS:
        selected = _NO_COLUMNS
    else:
        names = [_column(item, columns) for item in _PLACE.findall(items)]
        if len(set(names)) < len(names) or None in names:  # repeated columns could make rows of any width
            return None
        selected = ", ".join(identifier(name) for name in names if name)
    return f"SELECT {selected} FROM {ALIAS}.main.{identifier(table)}"


def _column(item: str, columns: Sequence[str]) -> str | None:
    if item.startswith("#"):
        place = int(item[1:])
        return columns[place - 1] if 0 < place <= len(columns) else None
    name = _unquoted(item)
    return next((column for column in columns if column.lower() == name), None)


def _unquoted(name: str) -> str:
    """In lower case, because names are compared without case."""
    return (name[1:-1].replace('""', '"') if name.startswith('"') else name).lower()

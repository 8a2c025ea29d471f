"""Tables of the settings, each stated once: a dataclass is the table of the configuration file, the row, and the table of the store.

The docstring of a field describes its column. Its annotation has the check of its key in the file, and what messages say is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from streamgauge.analytics.schema.stream_columns import field_texts, table_sql

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_TEXT = 256
_SQL_TYPES = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", datetime: "TIMESTAMPTZ"}
"""Type of a field → SQL type. All others are texts."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text in quotes")
    return text


def _glob(text: str) -> str:
    # `fnmatch` would take […] as a set of characters, and only * and ? are documented.
    if set(text) & set("[]\\"):
        raise ValueError("a name with the wildcards * and ?")
    return text


def _label_glob(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[a-z][a-z0-9_]*=.+", text):
        raise ValueError("a label and a glob, such as team=search-*")
    return text if text is None else _glob(text)


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError("a time zone such as Europe/Berlin") from None
    return name


def as_utc(value: object) -> object:
    """A date or time as a time, in UTC unless it has an offset. Other values are returned unchanged."""
    try:
        found = datetime.fromisoformat(str(value)) if value is not None else None
    except ValueError:
        return value
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


Text = Annotated[
    str, Field(min_length=1, max_length=MAX_TEXT, description="text in quotes"), AfterValidator(_printable)
]
Glob = Annotated[Text, AfterValidator(_glob)]
LabelGlob = Annotated[Text | None, AfterValidator(_label_glob)]
TimeZone = Annotated[Text, AfterValidator(_time_zone)]
Severity = Annotated[Literal["page", "ticket", "none"], Field(description="page, ticket or none")]


def name_of(globs: Mapping[str, str]) -> str:
    """The default name of a table that applies to what its globs match."""
    texts = (glob if key == "label" else f"{key}={glob}" for key, glob in globs.items() if glob != "*")
    return " ".join(texts) or "all"


def changed(row: DataclassInstance) -> dict[str, Any]:
    """The values of a row that differ from their defaults."""
    values = {field: getattr(row, field.name) for field in fields(row)}
    return {field.name: value for field, value in values.items() if value != field.default}


def create_table(name: str, row: type[DataclassInstance], priority: str = "") -> str:
    """SQL of a table. `priority` describes the column of the order, if it has one."""
    kinds, texts = get_type_hints(row), field_texts(row)
    columns = [("priority INTEGER NOT NULL", priority)] if priority else []
    columns += [(f"{field.name} {_sql_type(kinds[field.name])}", texts[field.name]) for field in fields(row)]
    return table_sql(name, row.__doc__ or "", columns)


def _sql_type(kind: Any) -> str:
    known = [_SQL_TYPES.get(one, "VARCHAR") for one in get_args(kind) or (kind,) if one is not type(None)]
    return known[0] if type(None) in get_args(kind) else f"{known[0]} NOT NULL"

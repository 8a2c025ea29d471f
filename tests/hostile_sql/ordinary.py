"""The recipes of the SQL page, which docs/how-to/query.md shows too, as they are and with parts replaced."""

from __future__ import annotations

import re

from streamgauge.dashboard.sql_statements import RECIPES
from tests.hostile_sql.draw import Draw
from tests.hostile_sql.expressions import expression
from tests.hostile_sql.values import literal_of

COOKBOOK = tuple(recipe.sql for recipe in RECIPES)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
_NAME = re.compile(r"\b[a-z_]{4,}\b")
_CALLED = re.compile(r"\b[a-z_]+(?=\()")


def ordinary(draw: Draw) -> str:
    """A documented query. Two of three have one to four parts replaced, and may be wrapped in another query."""
    text = draw.one(COOKBOOK)
    if draw.chance(0.33):
        return text
    for _ in range(draw.size(4)):
        text = draw.one((_replace_number, _replace_name, _replace_function, _wrap))(draw, text)
    return text


def _replace(draw: Draw, text: str, pattern: re.Pattern[str], by: str) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    match = draw.one(found)
    return text[: match.start()] + by + text[match.end() :]


def _replace_number(draw: Draw, text: str) -> str:
    return _replace(draw, text, _NUMBER, literal_of(draw, "BIGINT"))


def _replace_name(draw: Draw, text: str) -> str:
    table = draw.table()
    return _replace(draw, text, _NAME, draw.one((table, draw.column(table), expression(draw, 1, table))))


def _replace_function(draw: Draw, text: str) -> str:
    return _replace(draw, text, _CALLED, draw.function("scalar", "aggregate", "macro").name)


def _wrap(draw: Draw, text: str) -> str:
    text = text.strip().rstrip(";")
    return draw.one(
        (
            f"SELECT count(*) FROM ({text})",
            f"SUMMARIZE ({text})",
            f"DESCRIBE ({text})",
            f"({text}) UNION ALL ({text})",
            f"SELECT * FROM ({text}) a, ({text}) b",
            f"SELECT COLUMNS(*)::VARCHAR FROM ({text})",
            f"FROM ({text}) ORDER BY ALL LIMIT 3",
            f"{text};;",
        )
    )

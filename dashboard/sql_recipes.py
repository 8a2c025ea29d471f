"""The recipes of the SQL page, from `sql_recipes.sql`. docs/how-to/query.md is generated from the same file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR

_RECIPE = re.compile(
    r"^-- name: (?P<name>\w+)\n-- group: (?P<group>.+)\n-- title: (?P<title>.+)\n-- answers: (?P<answers>.+)\n(?P<sql>[^;]+);\n",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Recipe:
    """A ready query."""

    name: str
    group: str
    title: str
    answers: str
    """The question that it answers."""
    sql: str


def _read() -> tuple[Recipe, ...]:
    text = Path(__file__).with_suffix(".sql").read_text()
    text = text.replace("{IS_ERROR}", IS_ERROR).replace("{IS_COUNTED}", IS_COUNTED)
    return tuple(Recipe(**found.groupdict()) for found in _RECIPE.finditer(text))


RECIPES = _read()
FIRST = RECIPES[0]


def by_group() -> list[tuple[str, list[Recipe]]]:
    """The recipes of each group, in the order of the file."""
    groups = dict.fromkeys(recipe.group for recipe in RECIPES)
    return [(group, [recipe for recipe in RECIPES if recipe.group == group]) for group in groups]

"""Statements of the SQL page: the recipes that it offers, their place in the address, and messages for those that fail. Pure.

- The recipes are in `sql_recipes.sql`. docs/how-to/query.md is generated from the same file.
- A message has the form `what failed: why. What to do.` DuckDB's own messages begin with a kind, such as "Binder Error", and some
  list candidates after the sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

PARAMETER = "sql"
MAX_EDITOR_CHARS = 20_000
"""Longest statement in the editor."""
MAX_CHARS = 6_000
"""Longest statement in an address, as it is encoded there. Proxies commonly accept request lines of 8 KiB."""
MAX_CANDIDATES = 2
_RECIPE = re.compile(
    r"^-- name: (?P<name>\w+)\n-- group: (?P<group>.+)\n-- title: (?P<title>.+)\n-- answers: (?P<answers>.+)\n(?P<sql>[^;]+);\n",
    re.MULTILINE,
)
_KIND = re.compile(r"^[A-Z][\w ]* Error: ")
_OURS = ("cannot ", "query ", "the answer ", "the query ", "busy", "too many")
_NO_COLUMN = re.compile(
    r"^(?:Referenced column (?P<column>\".*?\")|Referenced table (?P<table>\".*?\")"
    r"|Table (?P<of>\".*?\") does not have a column named (?P<member>\".*?\"))"
)
_CANDIDATES = re.compile(r" ?Candidate (?:bindings|tables): :? ?(?P<names>.*)$")
_SIGNATURES = re.compile(r"^No function matches the given name and argument types '(?P<call>.*?)'\.")
_CONVERSION = re.compile(r"^Could not convert (?P<what>.*)$")


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
    text = Path(__file__).with_name("sql_recipes.sql").read_text()
    return tuple(Recipe(**found.groupdict()) for found in _RECIPE.finditer(text))


RECIPES = _read()
FIRST = RECIPES[0]


def by_group() -> list[tuple[str, list[Recipe]]]:
    """The recipes of each group, in the order of the file."""
    groups = dict.fromkeys(recipe.group for recipe in RECIPES)
    return [(group, [recipe for recipe in RECIPES if recipe.group == group]) for group in groups]


def encoded_chars(sql: str) -> int:
    """The length of the statement in an address, encoded as browsers do (`URLSearchParams`)."""
    return (
        len(urlencode({PARAMETER: sql}, safe="*", errors="replace").replace("~", "%7E")) - len(PARAMETER) - 1
    )


def fits(sql: str) -> bool:
    """Whether an address can contain the statement."""
    return encoded_chars(sql) <= MAX_CHARS


def too_long(sql: str) -> str:
    """The message for a statement that the address does not contain."""
    return (
        f"The address does not contain the query: it takes {encoded_chars(sql):,} characters there; the limit is "
        f"{MAX_CHARS:,}. Shorten the query to share it as a link."
    )


@dataclass(frozen=True)
class SqlProblem:
    """Why a statement has no answer."""

    text: str
    line: int | None = None
    column: int | None = None
    """Counted from 1."""
    position: int | None = None
    """As in QueryError."""


def problem_of(message: str, sql: str, position: int | None) -> SqlProblem:
    """The problem that a `QueryError` describes. `position` as in QueryError."""
    line = column = None
    if position is not None:
        before = sql[:position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return SqlProblem(_text(message), line, column, position)


def _text(message: str) -> str:
    if message.startswith(_OURS):
        return message
    text = _KIND.sub("", message)
    if text.startswith(("syntax error", "unterminated")):
        return f"cannot parse the statement: {text}. Check the SQL at and before this place."
    if found := _NO_COLUMN.match(text):
        return _missing(found, text)
    if found := _SIGNATURES.match(text):
        call = found["call"]
        return (
            f"cannot run the statement: no function takes the arguments of {call}. "
            "Cast them, for example with ::DOUBLE, or pass other arguments."
        )
    if found := _CONVERSION.match(text):
        what = found["what"].rstrip(".")
        return f"cannot run the statement: a conversion failed, {what}. Use TRY_CAST to get NULL for such values."
    return f"cannot run the statement: {text[:1].lower()}{text[1:]}"


def _missing(found: re.Match[str], text: str) -> str:
    names = _CANDIDATES.search(text)
    near = re.findall(r'"[^"]*"', names["names"])[:MAX_CANDIDATES] if names else []
    hint = f"Did you mean {' or '.join(near)}?" if near else "The list of tables shows the names."
    if found["table"]:
        what = f"the FROM clause has no table {found['table']}"
    elif found["member"]:
        what = f"{found['of']} has no column {found['member']}"
    else:
        what = f"the tables of the FROM clause have no column {found['column']}"
    return f"cannot run the statement: {what}. {hint}"

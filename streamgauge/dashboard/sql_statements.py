"""Statements of the SQL page: recipes, variables, their place in the address, and messages for those that fail. Pure.

- `$from`, `$to`, `$model`, `$gateway` and `$client` are variables: the time range and the filters of the page.
- The recipes are in `sql_recipes.sql`. docs/how-to/query.md is generated from the same file.
- A message has the form `what failed: why. What to do.` DuckDB's own messages begin with a kind, such as "Binder Error", and some
  list candidates after the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
COLUMNS = {"model": "request_model", "gateway": "gateway", "client": "client_id", "app": "client_app"}
"""Variable with the values of a filter → its column."""
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
    rf"|\$(?P<variable>from|to|{'|'.join(COLUMNS)})\b",
    re.DOTALL,
)
"""Texts and comments, in which nothing is a variable, and variables."""
MEANINGS = {
    "client": ("client_id",),
    "cost": ("output_tokens", "input_tokens"),
    "created_at": ("started_at",),
    "duration": ("end_ns",),
    "error": ("error_type", "outcome"),
    "id": ("stream_id", "trace_id"),
    "latency": ("ttft_ns", "end_ns"),
    "model": ("request_model", "response_model"),
    "name": ("request_model",),
    "time": ("started_at",),
    "timestamp": ("started_at",),
    "tokens": ("output_tokens", "input_tokens"),
    "tpot": ("itl_ns",),
    "user": ("client_id",),
}
"""Names that columns have elsewhere → columns with this meaning, the most likely first."""
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


def variables(sql: str) -> set[str]:
    """The names of the variables of a statement, without `$`."""
    return {found["variable"] for found in _variables(sql)}


def _variables(sql: str) -> Iterator[re.Match[str]]:
    return (found for found in _TOKEN.finditer(sql) if found["variable"])


def with_values(sql: str, values: Mapping[str, str]) -> str:
    """The statement with SQL instead of its variables."""
    return _TOKEN.sub(lambda found: values[found["variable"]] if found["variable"] else found[0], sql)


def position_before(sql: str, values: Mapping[str, str], position: int) -> int:
    """The position in a statement of a position in `with_values` of it. Inside a value, that of its variable."""
    longer = 0
    for found in _variables(sql):
        value = values[found["variable"]]
        if position < found.start() + longer + len(value):
            return min(position - longer, found.start())
        longer += len(value) - len(found[0])
    return position - longer


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


def problem_of(message: str, sql: str, position: int | None, columns: Iterable[str] = ()) -> SqlProblem:
    """The problem that a `QueryError` describes. `position` as in QueryError. `columns`: those of the tables of the statement."""
    line = column = None
    if position is not None:
        before = sql[:position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return SqlProblem(_text(message, list(columns)), line, column, position)


def _text(message: str, columns: list[str]) -> str:
    if message.startswith(_OURS):
        return message
    text = _KIND.sub("", message)
    if text.startswith(("syntax error", "unterminated")):
        return f"cannot parse the statement: {text}. Check the SQL at and before this place."
    if found := _NO_COLUMN.match(text):
        return _missing(found, text, columns)
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


def _missing(found: re.Match[str], text: str, columns: list[str]) -> str:
    names = _CANDIDATES.search(text)
    near = re.findall(r'"[^"]*"', names["names"]) if names else []
    if unknown := found["column"] or found["member"]:
        near = [f'"{name}"' for name in _of_meaning(unknown.strip('"').lower(), columns)] + near
    near = list(dict.fromkeys(near))[:MAX_CANDIDATES]
    hint = f"Did you mean {' or '.join(near)}?" if near else "The list of tables shows the names."
    if found["table"]:
        what = f"the FROM clause has no table {found['table']}"
    elif found["member"]:
        what = f"{found['of']} has no column {found['member']}"
    else:
        what = f"the tables of the FROM clause have no column {found['column']}"
    return f"cannot run the statement: {what}. {hint}"


def _of_meaning(unknown: str, columns: list[str]) -> list[str]:
    """The columns that mean the same, then those that have the name as one of their words."""
    known = [name for name in MEANINGS.get(unknown, ()) if name in columns]
    return known + [name for name in columns if unknown in name.lower().split("_")]

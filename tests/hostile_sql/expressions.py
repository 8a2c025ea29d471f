"""Random expressions: calls with edge values, casts between all types, CASE, lambdas, subscripts, subqueries."""

from __future__ import annotations

import re

from tests.hostile_sql.draw import Draw, Function
from tests.hostile_sql.values import TYPES, literal_of, small_number

OPERATORS = (
    "+", "-", "*", "/", "//", "%", "**", "^", "||", "&", "|", "<<", ">>", "=", "<>", "<", ">=", "AND", "OR", "LIKE", "ILIKE",
    "NOT LIKE", "GLOB", "SIMILAR TO", "~", "!~", "~~~", "IS DISTINCT FROM", "->", "->>", "@>", "<@", "&&", "<->", "<=>", "^@", "IN",
    "BETWEEN 1 AND", "COLLATE", "AT TIME ZONE",
)  # fmt: skip
POSTFIX = (
    "IS NULL",
    "ISNULL",
    "IS NOT TRUE",
    "[1]",
    "[-1]",
    "[1:2]",
    "[:-1:-1]",
    "[0:9223372036854775807]",
    "['a']",
    ".a",
    ".*",
    "!",
)
LAMBDAS = (
    "lambda x: x", "lambda x: x + 1", "lambda x, i: i", "lambda x: [x, x]", "lambda x, y: x || y", "lambda x: x IS NULL",
    "lambda x: (SELECT x)", "lambda x: list_transform(range(3), lambda y: x)", "x -> x", "(x, y) -> x + y", "lambda: 1",
)  # fmt: skip


def expression(draw: Draw, depth: int = 3, table: str | None = None) -> str:
    """Any expression. `table`: its columns may occur."""
    if depth <= 0:
        return leaf(draw, table)
    kinds = (call, call, call, call, cast, cast, binary, binary, postfix, case, subquery, collection, leaf_at)
    return draw.one(kinds)(draw, depth - 1, table)


def leaf(draw: Draw, table: str | None, kind: str = "ANY") -> str:
    """A literal or a column."""
    if table is not None and draw.chance(0.5) and (column := draw.column_of(table, kind)):
        return column
    return literal_of(draw, kind)


def leaf_at(draw: Draw, depth: int, table: str | None) -> str:
    return leaf(draw, table)


def call(draw: Draw, depth: int, table: str | None) -> str:
    """A call of a scalar function, mostly with arguments of its types."""
    if draw.chance(0.07):
        return macro_call(draw, depth, table)
    return call_of(draw, draw.function("scalar"), depth, table)


def macro_call(draw: Draw, depth: int, table: str | None) -> str:
    return call_of(draw, draw.function("macro"), depth, table)


def call_of(draw: Draw, function: Function, depth: int, table: str | None) -> str:
    """A call of this function."""
    arguments = [argument(draw, kind, depth, table) for kind in function.parameters]
    if draw.chance(0.1):
        arguments = arguments[:-1] if draw.chance(0.5) else [*arguments, expression(draw, 0, table)]
    name = function.name
    if not name.replace("_", "").isalnum():
        name = '"' + name.replace('"', '""') + '"'
    return f"{name}({', '.join(arguments)})"


def argument(draw: Draw, kind: str, depth: int, table: str | None) -> str:
    """An argument for a parameter of this type."""
    if kind == "LAMBDA":
        return draw.one(LAMBDAS)
    if kind in ("BIGINT", "INTEGER") and draw.chance(0.5):
        return small_number(draw)
    if depth <= 0 or draw.chance(0.6):
        return leaf(draw, table, kind)
    text = expression(draw, depth - 1, table)
    if draw.chance(0.1) or re.search(r"\b(?:ANY|[TKV]|TABLE|POINTER)\b|[<?]", kind):
        return text
    return draw.one((f"TRY_CAST({text} AS {kind})", f"({text})::{kind}"))


def condition(draw: Draw, depth: int, table: str | None) -> str:
    """An expression that is mostly a BOOLEAN."""
    text = expression(draw, depth, table)
    return draw.one(
        (
            text,
            f"TRY_CAST({text} AS BOOLEAN)",
            f"{text} IS NOT NULL",
            f"{text} = {text}",
            f"hash({text}) % 3 > 0",
        )
    )


def cast(draw: Draw, depth: int, table: str | None) -> str:
    """One to three casts of a value."""
    text = expression(draw, depth - 1, table) if draw.chance(0.4) else leaf(draw, table)
    for kind in draw.some(TYPES, 3):
        text = draw.one((f"({text})::{kind}", f"CAST({text} AS {kind})", f"TRY_CAST({text} AS {kind})"))
    return text


def binary(draw: Draw, depth: int, table: str | None) -> str:
    left, right = expression(draw, depth - 1, table), expression(draw, depth - 1, table)
    operator = draw.one(OPERATORS)
    return f"({left} IN ({right}))" if operator == "IN" else f"({left} {operator} {right})"


def postfix(draw: Draw, depth: int, table: str | None) -> str:
    return f"({expression(draw, depth - 1, table)}){draw.one((' ', ''))}{draw.one(POSTFIX)}"


def case(draw: Draw, depth: int, table: str | None) -> str:
    arms = " ".join(
        f"WHEN {condition(draw, depth - 1, table)} THEN {expression(draw, depth - 1, table)}"
        for _ in range(draw.size(4))
    )
    return f"CASE {arms} ELSE {expression(draw, depth - 1, table)} END"


def subquery(draw: Draw, depth: int, table: str | None) -> str:
    inner = draw.table()
    text = f"SELECT {expression(draw, depth - 1, inner)} FROM {inner} LIMIT {draw.one(('1', '2', '0'))}"
    return draw.one(
        (f"({text})", f"EXISTS ({text})", f"ARRAY({text})", f"1 = ANY({text})", f"NULL IN ({text})")
    )


def collection(draw: Draw, depth: int, table: str | None) -> str:
    a, b = expression(draw, depth - 1, table), expression(draw, depth - 1, table)
    return draw.one(
        (
            f"[{a}, {b}]",
            f"{{'a': {a}, 'b': {b}}}",
            f"map([{a}], [{b}])",
            f"row({a}, {b})",
            f"[{a} FOR x IN [{b}] IF true]",
            f"struct_pack(a := {a})",
            f"list_transform([{a}], {draw.one(LAMBDAS)})",
            f"list_reduce([{a}, {b}], {draw.one(LAMBDAS)})",
            f"to_json({a})",
            f"coalesce({a}, {b})",
            f"if({a}, {b}, NULL)",
            f"unnest([{a}, {b}])",
            f"union_value(u := {a})",
        )
    )


def aggregate(draw: Draw, table: str) -> str:
    """An aggregate or a window over columns of the table."""
    text = call_of(draw, draw.function("aggregate"), 1, table)
    if draw.chance(0.3):
        text += f" FILTER ({condition(draw, 1, table)})"
    if draw.chance(0.3):
        text += f" OVER ({window(draw, table)})"
    elif draw.chance(0.2) and not text.endswith("()"):
        text = text.replace("(", "(DISTINCT ", 1)
    elif draw.chance(0.2):
        text = f"{text[:-1]} ORDER BY {draw.column(table)} {draw.one(('', 'DESC', 'NULLS FIRST'))})"
    return text


def window(draw: Draw, table: str) -> str:
    """The inside of OVER (…)."""
    column = draw.column(table)
    starts = (
        "UNBOUNDED PRECEDING",
        "UNBOUNDED PRECEDING",
        "CURRENT ROW",
        "1 PRECEDING",
        "9223372036854775807 PRECEDING",
        "-1 PRECEDING",
        "INTERVAL 1 DAY PRECEDING",
        f"{column} PRECEDING",
        "0.5 PRECEDING",
    )
    ends = (
        "UNBOUNDED FOLLOWING",
        "CURRENT ROW",
        "1 FOLLOWING",
        "9223372036854775807 FOLLOWING",
        "NULL FOLLOWING",
        "UNBOUNDED FOLLOWING",
        "INTERVAL 1 DAY FOLLOWING",
        f"{column} FOLLOWING",
    )
    text = f"PARTITION BY {draw.column(table)} " if draw.chance(0.5) else ""
    text += (
        f"ORDER BY {draw.column(table)} {draw.one(('', 'DESC', 'NULLS LAST'))} " if draw.chance(0.8) else ""
    )
    frame = f"{draw.one(('ROWS', 'RANGE', 'GROUPS'))} BETWEEN {draw.one(starts)} AND {draw.one(ends)}"
    return f"{text}{frame} {draw.one(('', '', 'EXCLUDE TIES', 'EXCLUDE CURRENT ROW'))}"


def source(draw: Draw, depth: int = 1) -> str:
    """A FROM clause's item."""
    table = draw.table()
    choice = draw.random.randrange(7) if depth else 0
    if choice == 1:
        return f"(SELECT * FROM {source(draw, depth - 1)}) AS s"
    if choice == 2:
        return f"(SELECT * FROM {table} WHERE {condition(draw, 1, table)} LIMIT {small_number(draw)}) AS s"
    if choice == 3:
        return f"{table} AS s"
    if choice == 4:
        return f"(VALUES ({literal_of(draw, 'ANY')}), ({literal_of(draw, 'ANY')})) AS s(v)"
    return table


def select(draw: Draw, depth: int = 3) -> str:
    """A SELECT of random expressions over one table or none. Shallow ones are more likely to be answered."""
    depth = draw.random.randint(1, depth)
    if draw.chance(0.35):
        return f"SELECT {', '.join(expression(draw, depth) for _ in range(draw.size(3)))}"
    table = draw.table()
    grouped = draw.chance(0.4)
    items = [
        aggregate(draw, table) if grouped else expression(draw, depth, table) for _ in range(draw.size(3))
    ]
    text = f"SELECT {draw.one(('', '', 'DISTINCT '))}{', '.join(items)} FROM {table}"
    if draw.chance(0.5):
        text += f" WHERE {condition(draw, depth, table)}"
    if grouped and draw.chance(0.6):
        text += f" GROUP BY {draw.one(('ALL', draw.column(table), expression(draw, 1, table)))}"
        if draw.chance(0.3):
            text += f" HAVING {aggregate(draw, table)}"
    if draw.chance(0.3):
        text += f" QUALIFY row_number() OVER ({window(draw, table)}) < 3"
    if draw.chance(0.4):
        text += f" ORDER BY {draw.one(('ALL', '1', '1 DESC NULLS LAST', expression(draw, 1, table)))}"
    if draw.chance(0.5):
        text += f" LIMIT {draw.one((small_number(draw), literal_of(draw, 'BIGINT'), '50%', '(SELECT 3)'))}"
    return text

"""Statements of random expressions, table functions and casts."""

from __future__ import annotations

from tests.hostile_sql.draw import Draw
from tests.hostile_sql.expressions import aggregate, call_of, cast, expression, select
from tests.hostile_sql.values import ALL, TYPES, literal_of


def calls(draw: Draw) -> str:
    """Random SELECTs, and single calls of any function."""
    choice = draw.random.randrange(8)
    if choice < 4:
        return select(draw)
    if choice == 4:
        return f"SELECT {call_of(draw, draw.function('scalar', 'macro'), 0, None)}"
    if choice == 5:
        table = draw.table()
        return f"SELECT {aggregate(draw, table)} FROM {table}"
    if choice == 6:
        text = call_of(draw, draw.function("table", "table_macro"), 1, None)
        return f"{draw.one(('FROM', 'SELECT count(*) FROM', 'SELECT * FROM'))} {text}"
    return (
        f"{draw.one(('DESCRIBE', 'SUMMARIZE', 'EXPLAIN', 'FROM', 'WITH c AS'))} ({select(draw, 2)})"
        + draw.one(("", " AS s", " SELECT * FROM c"))
    )


def casts(draw: Draw) -> str:
    """Casts of edge values between all types, in constants, columns and rows."""
    choice = draw.random.randrange(4)
    if choice == 0:
        return f"SELECT {', '.join(cast(draw, 1, None) for _ in range(draw.size(5)))}"
    if choice == 1:
        table = draw.table()
        return f"SELECT {draw.column(table)}::{draw.one(TYPES)}::{draw.one(TYPES)} FROM {table} LIMIT 20"
    if choice == 2:
        kind = draw.one(TYPES)
        values = ", ".join(
            f"(TRY_CAST(({literal_of(draw, kind)})::VARCHAR AS {kind}))" for _ in range(draw.size(5))
        )
        return f"SELECT {draw.one(('v::', 'hash(v), v::'))}{draw.one(TYPES)} FROM (VALUES {values}) AS t(v)"
    kind = draw.one(TYPES)
    values = ", ".join(f"(TRY_CAST(({one})::VARCHAR AS {kind}))" for one in draw.some(draw.one(ALL), 6))
    return f"SELECT TRY_CAST(v AS {draw.one(TYPES)}), {expression(draw, 1)} FROM (VALUES {values}) AS t(v) ORDER BY ALL"

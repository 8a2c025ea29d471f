"""Short statements with huge plans, and plans with huge intermediate results."""

from __future__ import annotations

from tests.hostile_sql.draw import Draw
from tests.hostile_sql.expressions import aggregate, expression, window
from tests.hostile_sql.sizes import indirect


def plans(draw: Draw) -> str:
    """One of the kinds below."""
    return draw.one(
        (_chained_ctes, _unions, _groupings, _cross_joins, _pivot, _stars, _laterals, _recursion, _windows, _samples, _arms, _joins,
         _correlated, _set_operations)
    )(draw)  # fmt: skip


def _chained_ctes(draw: Draw) -> str:
    levels = draw.random.randint(2, 24)
    step = draw.one(
        (
            "SELECT *, * FROM a{}",
            "SELECT * FROM a{0} UNION ALL SELECT * FROM a{0}",
            "SELECT x.* FROM a{0} x, a{0} y",
            "SELECT COLUMNS(*), COLUMNS(*) FROM a{}",
            "SELECT *, row_number() OVER () FROM a{}",
            "SELECT DISTINCT * FROM a{0} UNION SELECT * FROM a{0}",
            "SELECT * FROM a{0} NATURAL JOIN a{0} b",
        )
    )
    materialized = draw.one(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
    queries = "".join(f", a{i + 1} AS {materialized}({step.format(i)})" for i in range(levels))
    first = draw.one(("SELECT 1 AS x", f"SELECT * FROM {draw.table()} LIMIT 3"))
    return f"WITH a0 AS ({first}){queries} SELECT {draw.one(('*', 'count(*)'))} FROM a{levels}"


def _unions(draw: Draw) -> str:
    operation = draw.one(
        (
            " UNION ALL SELECT 1",
            " UNION SELECT 1",
            " UNION ALL VALUES (1)",
            " EXCEPT SELECT 2",
            " UNION BY NAME SELECT 1 AS x",
        )
    )
    return ("SELECT 1" + operation * draw.one((draw.size(100), draw.size(1000), draw.size(4000))))[:70_000]


def _groupings(draw: Draw) -> str:
    table = draw.table()
    columns = list(draw.catalog.tables[table])
    draw.random.shuffle(columns)
    chosen = columns[: draw.random.randint(1, 16)]
    sets = ", ".join(f"({', '.join(chosen[: i % len(chosen) + 1])})" for i in range(draw.size(400)))
    grouping = draw.one(
        (
            f"CUBE ({', '.join(chosen)})",
            f"ROLLUP ({', '.join(chosen)})",
            f"GROUPING SETS ({sets})",
            f"CUBE ({', '.join(chosen[:5])}), ROLLUP ({', '.join(chosen[-5:])})",
        )
    )
    level = draw.one((f"grouping({chosen[0]})", f"grouping_id({', '.join(chosen)})", "1"))
    return f"SELECT count(*), {level} FROM {table} GROUP BY {grouping}"


def _cross_joins(draw: Draw) -> str:
    count = draw.random.randint(2, 9)
    tables = [draw.one((draw.table(), f"range({indirect(draw, draw.size(10**6))})")) for _ in range(count)]
    joined = ", ".join(f"{table} AS t{i}" for i, table in enumerate(tables))
    return (
        f"SELECT {draw.one(('count(*)', '*', 't0.*, t1.*', 'count(DISTINCT (t0, t1))', 'sum(hash(t0))'))} FROM {joined}"
        + draw.one(
            ("", " LIMIT 10", " ORDER BY ALL LIMIT 10", f" WHERE {expression(draw, 1)}", " ORDER BY random()")
        )
    )


def _pivot(draw: Draw) -> str:
    table = draw.table()
    a, b, c = (draw.column(table) for _ in range(3))
    values = ", ".join(str(i) for i in range(draw.size(2000)))
    return draw.one(
        (
            f"PIVOT {table} ON {a} USING count(*)",
            f"PIVOT {table} ON {a}, {b}, {c} USING sum({c}), max({b})",
            f"UNPIVOT {table} ON COLUMNS(*)",
            f"PIVOT {table} ON {a} IN ({values}) USING first({b}) GROUP BY {c}",
            f"FROM {table} UNPIVOT (v FOR k IN ({a}, {b}, {c}))",
            f"FROM (UNPIVOT (SELECT COLUMNS(*)::VARCHAR FROM {table}) ON COLUMNS(*) INTO NAME n VALUE v)",
            f"FROM {table} PIVOT (count(*) FOR {a} IN ('a', 'b') {b} IN ({values[:200].rstrip(', ')}))",
            f"PIVOT (FROM range({indirect(draw, draw.size(10**7))})) ON range USING count(*)",
            f"SELECT * FROM (PIVOT {table} ON {a} USING {aggregate(draw, table)})",
        )
    )


def _stars(draw: Draw) -> str:
    table = draw.table()
    star = draw.one(
        (
            "COLUMNS(*)",
            "COLUMNS('.*')",
            "COLUMNS(c -> c LIKE '%_ns')",
            "COLUMNS('(a)|(b)')",
            "* EXCLUDE (started_at)",
            "* REPLACE (1 AS outcome)",
            "COLUMNS(* EXCLUDE stream_id)",
            "COLUMNS(lambda c: true)",
            "*COLUMNS(*)",
            "* RENAME (outcome AS o)",
            "* LIKE '%a%'",
            "COLUMNS(['outcome'])",
        )
    )
    operation = draw.one((
        "{0}", "{0} + {0}", "max({0})", "{0}::VARCHAR || {0}::VARCHAR", "hash({0})", "list({0})", "struct_pack({0})", "coalesce({0})",
        "concat({0}, {0})", "[{0}]", "{0} IS NULL", "sum({0}) OVER ()", "{0}::JSON::VARIANT",
    ))  # fmt: skip
    items = ", ".join([operation.format(star)] * draw.size(300))
    return f"SELECT {items} FROM {table} {draw.one(('', 'LIMIT 5', 'GROUP BY ALL', 'WHERE COLUMNS(*) IS NULL', 'ORDER BY ALL'))}"


def _laterals(draw: Draw) -> str:
    text = f"FROM range({draw.size(30)}) t0(x0)"
    levels = draw.random.randint(1, 25)
    for i in range(1, levels + 1):
        step = draw.one(
            (
                f"SELECT x{i - 1} + 1",
                f"SELECT unnest(range(x{i - 1} % 5))",
                f"SELECT count(*) FROM range(x{i - 1})",
                f"SELECT sum(x{i - 1})",
            )
        )
        text += f"{draw.one((', LATERAL', ' CROSS JOIN LATERAL', ' LEFT JOIN LATERAL'))} ({step}) t{i}(x{i})"
        text += " ON true" if "LEFT JOIN" in text.rsplit(" (", 1)[0][-20:] else ""
    return f"SELECT * {text}"


def _recursion(draw: Draw) -> str:
    step, end = (
        draw.one(("n + 1", "n", "n * 2", "n || n", "[n]", "hash(n)")),
        draw.one(("", f" WHERE n < {indirect(draw, draw.size(10**6))}", " WHERE random() < 2")),
    )
    union = draw.one(("UNION ALL", "UNION"))
    twice = draw.one(("", ", t AS other", ", range(3)"))
    key = draw.one(("", "", "USING KEY (n) "))
    last = draw.one(("count(*)", "*", "max(length(n::VARCHAR))"))
    first, step, end = draw.one(("1", "'x'", "[1]")), step.replace("n", "t.n"), end.replace("n ", "t.n ")
    return f"WITH RECURSIVE t(n) {key}AS (SELECT {first} {union} SELECT {step} FROM t{twice}{end}) SELECT {last} FROM t"


def _windows(draw: Draw) -> str:
    table = draw.table()
    items = ", ".join(
        f"{aggregate(draw, table).split(' OVER ')[0]} OVER ({window(draw, table)})"
        for _ in range(draw.size(30))
    )
    return f"SELECT {items} FROM {draw.one((table, f'{table}, range(200)', f'{table} AS {table}, {table} AS b'))}"


def _samples(draw: Draw) -> str:
    size = draw.one((
        "0%", "100%", "1e-9%", "200%", "-1%", "NaN%", f"{draw.size(10**12)} ROWS", "10 PERCENT (reservoir, 1)", "reservoir(50%)",
        "system(10%)", "bernoulli(30%) REPEATABLE (7)", "50% (bernoulli, -1)",
    ))  # fmt: skip
    table = draw.table()
    return draw.one(
        (
            f"FROM {table} USING SAMPLE {size}",
            f"FROM {table} TABLESAMPLE {size}",
            f"SELECT count(*) FROM {table} a TABLESAMPLE {size}, range(1000) USING SAMPLE {size}",
        )
    )


def _arms(draw: Draw) -> str:
    count = draw.size(5000)
    text = draw.one(
        (
            "CASE " + " ".join(f"WHEN random() = {i} THEN {i}" for i in range(count)) + " END",
            "1" + " + 1" * count,
            "'x'" + " || 'x'" * count,
            "1 IN (" + ", ".join(map(str, range(count))) + ")",
            "true" + " AND random() > 0.5" * count,
            "[" + "1, " * count + "1]",
            "{" + ", ".join(f"'k{i}': {i}" for i in range(count)) + "}",
            "concat(" + "'x', " * count + "'x')",
            ", ".join(["1"] * count),
            ", ".join(f"x{i}: random()" for i in range(count)),
            "greatest(" + "random(), " * count + "1)",
        )
    )
    values = ", ".join(f"({i})" for i in range(count))
    return draw.one(
        (
            f"SELECT {text}",
            f"SELECT {text}",
            f"FROM (VALUES {values}) t(x)",
            f"SELECT {text} FROM {draw.table()} LIMIT 5",
        )
    )[:70_000]


def _joins(draw: Draw) -> str:
    kind = draw.one(
        (
            "JOIN",
            "LEFT JOIN",
            "FULL JOIN",
            "SEMI JOIN",
            "ANTI JOIN",
            "ASOF JOIN",
            "POSITIONAL JOIN",
            "NATURAL JOIN",
            "CROSS JOIN",
            "RIGHT JOIN",
        )
    )
    table = draw.table()
    condition = draw.one(
        ("USING (stream_id)", "ON true", f"ON {expression(draw, 1)}", "ON a0.stream_id >= a1.stream_id", "")
    )
    if kind in ("POSITIONAL JOIN", "NATURAL JOIN", "CROSS JOIN"):
        condition = ""
    joined = "".join(
        f" {kind} {draw.one((table, 'streams', 'events', 'stalls'))} AS a{i} {condition}"
        for i in range(1, draw.size(40) + 1)
    )
    return f"SELECT {draw.one(('count(*)', '*', 'a0.*'))} FROM {table} AS a0{joined}"


def _correlated(draw: Draw) -> str:
    outer, inner = draw.table(), draw.table()
    text = draw.column(outer)
    for i in range(draw.size(12)):
        function, condition = (
            draw.one(("max", "count", "first", "list")),
            f"i{i}.{draw.column(inner)}::VARCHAR >= {text}::VARCHAR",
        )
        text = f"(SELECT {function}(i{i}.{draw.column(inner)}) FROM {inner} i{i} WHERE {condition})"
    return f"SELECT {text} FROM {outer}"


def _set_operations(draw: Draw) -> str:
    text = f"SELECT {draw.random.randint(0, 3)} AS x"
    for _ in range(draw.size(11)):
        text = f"({text}) {draw.one(('UNION', 'UNION ALL', 'EXCEPT', 'EXCEPT ALL', 'INTERSECT', 'UNION ALL BY NAME'))} ({text})"
    return text[:70_000]

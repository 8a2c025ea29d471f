"""Values, types and statements that are nested deeply."""

from __future__ import annotations

from tests.hostile_sql.draw import Draw
from tests.hostile_sql.expressions import expression
from tests.hostile_sql.sizes import indirect

_PAIRS = (("[", "]"), ('{"a":', "}"), ('[{"b":', "}]"), ('{"a":[', "]}"))
_JSON_CALLS = (
    "{}::JSON", "{}::JSON::VARIANT", "{}::JSON::VARIANT::VARCHAR", "{}::JSON::VARIANT::JSON", "json_structure({})", "json_valid({})",
    "json_type({})", "json_keys({})", "json_pretty({})", "json_merge_patch({0}, {0})", "json_contains({0}, {0})", "json_quote({})",
    "from_json('[1]', {})", "json_transform('[1]', {})", "from_json({}, '\"JSON\"')", "json_transform_strict({0}, {0})", "{}::VARIANT",
    "json_extract({}, '$..a')", "json_extract({}, '$' || repeat('[0]', 5000))", "{}::JSON::INTEGER[][][]", "{}::INTEGER[]",
    "(SELECT count(*) FROM json_tree({}))", "(SELECT count(*) FROM json_each({}))", "json_array_length({})", "to_json({}::JSON)",
    "variant_typeof({}::JSON::VARIANT)", "[{0}::JSON, {0}::JSON]", "{0}::JSON = {0}::JSON", "hash({}::JSON::VARIANT)",
    "{}::STRUCT(a VARIANT)", "variant_normalize({}::JSON::VARIANT)", "(SELECT max(x::JSON::VARIANT) FROM (VALUES ({})) t(x))",
)  # fmt: skip
_WRAPPERS = (
    ("(", ")"), ("((", "))"), ("[", "]"), ("{'a': ", "}"), ("(SELECT ", ")"), ("abs(", ")"), ("NOT ", ""), ("- ", ""),
    ("CASE WHEN true THEN ", " END"), ("CAST(", " AS VARCHAR)"), ("", "::VARCHAR"), ("", "[1]"), ("", ".a"), ("list_value(", ")"),
    ("row(", ")"), ("array(SELECT ", ")"), ("coalesce(", ", 1)"), ("", " + 1"), ("", " || 'x'"), ("", " AND true"), ("1 + (", ")"),
    ("EXISTS (SELECT ", ")"), ("map([1], [", "])"), ("list_transform([1], lambda x: ", ")"), ("to_json(", ")"), ("", " IS NULL"),
    ("", "::JSON"), ("try(", ")"), ("{'a': 1, 'b': ", "}"), ("", " COLLATE nocase"), ("", " BETWEEN 0 AND 1"), ("1 IN (", ")"),
)  # fmt: skip
_TYPES = (
    ("", "[]"),
    ("STRUCT(a ", ")"),
    ("MAP(INTEGER, ", ")"),
    ("UNION(a ", ")"),
    ("", "[1]"),
    ("STRUCT(a INTEGER, b ", ")"),
)


def nesting(draw: Draw) -> str:
    """One of the kinds below."""
    return draw.one(
        (_json, _json, _json, _expressions, _expressions, _types, _queries, _doubling, _structure)
    )(draw)


def _depth(draw: Draw) -> int:
    return draw.one((draw.size(60), draw.size(250), draw.size(3000), draw.size(150_000)))


def _json(draw: Draw) -> str:
    """A deep document, in the text or computed."""
    (opening, closing), depth = draw.one(_PAIRS), _depth(draw)
    middle = draw.one(("1", "null", '"INT"', "", '"x"', "[]", "{}"))
    if depth * len(opening + closing) < 60_000 and draw.chance(0.3):
        document = f"'{opening * depth}{middle}{closing * draw.one((depth, depth, depth - 1, 0))}'"
    else:
        count = indirect(draw, depth)
        document = f"(repeat('{opening}', {count}) || '{middle}' || repeat('{closing}', {count}))"
    return f"SELECT {draw.one(_JSON_CALLS).format(document)}"


def _structure(draw: Draw) -> str:
    """A deep structure for from_json, as an object or an array."""
    depth = _depth(draw)
    structure = f"repeat('{{\"a\":', {indirect(draw, depth)}) || '\"{draw.one(('INT', 'JSON', 'VARCHAR[]'))}\"' || repeat('}}', {depth})"
    return (
        f"SELECT {draw.one(('from_json', 'json_transform', 'from_json_strict'))}('{{\"a\": 1}}', {structure})"
    )


def _expressions(draw: Draw) -> str:
    """One or two wrappers, repeated around an expression."""
    depth = draw.one((draw.size(30), draw.size(190), draw.size(190), draw.size(6000)))
    wrappers = draw.some(_WRAPPERS, 2)
    text = expression(draw, 1)
    for level in range(depth):
        opening, closing = wrappers[level % len(wrappers)]
        text = f"{opening}{text}{closing}"
        if len(text) > 70_000:
            break
    return f"SELECT {text}"


def _types(draw: Draw) -> str:
    """A cast to a deep type."""
    kind = draw.one(("INTEGER", "VARCHAR", "JSON", "VARIANT"))
    wrappers = draw.some(_TYPES, 2)
    for level in range(draw.one((draw.size(30), draw.size(190), draw.size(4000)))):
        opening, closing = wrappers[level % len(wrappers)]
        kind = f"{opening}{kind}{closing}"
        if len(kind) > 60_000:
            break
    value = draw.one(("NULL", "'[]'", "[]", "'{}'", "'{}'::JSON", "'[[[1]]]'::JSON::VARIANT"))
    return draw.one(
        (
            f"SELECT {value}::{kind}",
            f"SELECT TRY_CAST({value} AS {kind})",
            f"SELECT typeof(NULL::{kind}), NULL::{kind}",
        )
    )


def _queries(draw: Draw) -> str:
    """Subqueries in FROM, WHERE or WITH."""
    opening, closing = draw.one(
        (
            ("SELECT * FROM (", ")"),
            ("FROM (", ")"),
            ("SELECT (", ")"),
            ("WITH w AS (", ") FROM w"),
            ("SELECT 1 WHERE EXISTS (", ")"),
            ("SELECT * FROM range(2), LATERAL (", ")"),
            ("SELECT 1 UNION (", ")"),
            ("DESCRIBE (", ")"),
            ("SELECT count(*) FROM (", ") AS t"),
            ("SELECT * FROM (VALUES (1)) JOIN (", ") ON true"),
        )
    )
    depth = draw.one((draw.size(15), draw.size(60), draw.size(190), draw.size(2000)))
    return f"{opening * depth}SELECT 1{closing * depth}"[:70_000]


def _doubling(draw: Draw) -> str:
    """Each WITH query holds its predecessor's value twice, as a struct, list or text."""
    levels = draw.random.randint(3, 60)
    step = draw.one((
        "{'x': v, 'y': v}", "[v, v]", "[v] || [v]", "v || v", "row(v, v)", "to_json([v, v])", "[v]", "{'x': v}", "map([v], [v])",
        "v::VARIANT", "json_array(v, v)", "struct_pack(a := v, b := v)",
    ))  # fmt: skip
    first = draw.one(("1", "'x'", "[1]", "{'a': 1}"))
    queries = "".join(f", a{i + 1} AS (SELECT {step} AS v FROM a{i})" for i in range(levels))
    last = draw.one(("v", "typeof(v)", "v::VARCHAR", "length(v::VARCHAR)", "hash(v)", "v::JSON"))
    return f"WITH a0 AS (SELECT {first} AS v){queries} SELECT {last} FROM a{levels}"

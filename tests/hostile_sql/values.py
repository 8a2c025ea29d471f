"""Types of DuckDB and literals at the edges of their ranges."""

from __future__ import annotations

from tests.hostile_sql.draw import Draw

NUMBERS = (
    "0", "-0", "1", "-1", "2", "3", "7", "100", "127", "128", "-128", "255", "256", "32767", "-32768", "65536", "2147483647",
    "2147483648", "-2147483648", "4294967296", "9223372036854775807", "-9223372036854775808", "18446744073709551615",
    "18446744073709551616", "170141183460469231731687303715884105727", "-170141183460469231731687303715884105728",
    "340282366920938463463374607431768211455", "0.1", "-0.5", "1e-300", "1e300", "1.7976931348623157e308", "5e-324",
    "0.00000000000000000000000000000000000001", "99999999999999999999999999999999999999", "1_000_000", "'NaN'::DOUBLE",
    "'inf'::DOUBLE", "'-inf'::FLOAT", "1e308 * 10", "9223372036854775807::HUGEINT * 9223372036854775807",
)  # fmt: skip
TEXTS = (
    "''", "' '", "'x'", "'abc'", "'%'", "'_'", "'a%b_c'", "'\\\\'", "''''", "'ß'", "'İ'", "'👩‍👩‍👧‍👦'", "'e\u0301\u0301\u0301'",
    "'\u202e\u200b\ufeff'", "chr(0)", "'a' || chr(0) || 'b'", "chr(1114111)", "e'\\x41'", "e'\\n\\t\\r'", "'NaN'", "'null'", "'NULL'",
    "'true'", "'-inf'", "'1e400'", "'0x7fffffff'", "'{'", "'[1, 2'", "'{\"a\": [1, null]}'", "'$.a[*]'", "'$..*'", "'/a/0'",
    "'(a+)+$'", "'[[:alpha:]]'", "'(?i)x{1000}'", "'\\\\1'", "'%Y-%m-%d %H:%M:%S.%f %z'", "'%'", "'%99999d'", "'{:>{}}'", "'{:.999}'",
    "'{0}{0}{0}'", "'%s%s%n'", "'Europe/Berlin'", "'Etc/GMT+99'", "'infinity'", "'epoch'", "'century'", "'290000-12-31'", "'12:60:61'",
    "'1 year 2 months -3 days'", "'INTEGER'", "'streams'", "'main'", "'../../etc/passwd'", "repeat('ab', 1000)", "repeat('0', 400)",
    "current_schema()",
)  # fmt: skip
TIMES = (
    "DATE '0001-01-01'", "DATE '5881580-07-10'", "DATE '5877642-06-25 (BC)'", "DATE 'infinity'", "DATE '-infinity'",
    "DATE '2024-02-29'", "TIMESTAMP '294247-01-10 04:00:54.775806'", "TIMESTAMP '290309-12-22 (BC) 00:00:00'", "TIMESTAMP 'infinity'",
    "TIMESTAMPTZ '-infinity'", "TIMESTAMPTZ '1970-01-01 00:00:00+15:59'", "now()", "TIMESTAMP_NS '2262-04-11 23:47:16.854775806'",
    "TIMESTAMP_S '1970-01-01'", "TIMESTAMP_MS '1969-12-31 23:59:59.999'", "TIME '24:00:00'", "TIME '00:00:00'",
    "TIMETZ '23:59:59+15:59:59'", "'23:59:59.999999999'::TIME_NS",
)  # fmt: skip
INTERVALS = (
    "INTERVAL 0 SECOND", "INTERVAL (-1) MICROSECOND", "INTERVAL 178956970 YEAR", "INTERVAL 2147483647 MONTH",
    "INTERVAL 2147483647 DAY", "INTERVAL (9223372036854775807) MICROSECOND", "INTERVAL '1 month -30 days'", "to_millennia(178956)",
)  # fmt: skip
BYTES = (
    "''::BLOB", "'\\x00'::BLOB", "'\\xFF\\xFE\\x80'::BLOB", "'\\xED\\xA0\\x80'::BLOB", "'\\xC0\\x80'::BLOB", "encode('ß')",
    "repeat('\\x00', 5000)::BLOB", "''::BIT", "'1'::BIT", "'0101'::BIT", "bitstring('1', 1000)", "unhex('DEADBEEF')",
)  # fmt: skip
OTHERS = (
    "NULL", "true", "false", "uuid()", "'00000000-0000-0000-0000-000000000000'::UUID", "'ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID",
    "'a'::ENUM('a', 'b')", "'{\"a\": 1}'::JSON", "'null'::JSON", "'[]'::JSON::VARIANT", "1::VARIANT", "{'a': 1}::VARIANT",
    "union_value(n := 1)", "'x'::UNION(n INTEGER, s VARCHAR)",
    "'123456789012345678901234567890123456789012345678901234567890'::BIGNUM", "'POINT(1 2)'::GEOMETRY",
    "'GEOMETRYCOLLECTION EMPTY'::GEOMETRY",
)  # fmt: skip
COLLECTIONS = (
    "[]", "[NULL]", "[1, 2, NULL]", "['a', '']", "[[], [[]]]", "[[1], NULL]", "[{'a': 1}, {'a': NULL}]", "range(5)",
    "range(10, 0, -3)", "{'a': 1, 'b': 'x'}", "{'a': {'b': {'c': NULL}}}", "row(1, 'x')", "map([1, 2], ['a', NULL])", "map()",
    "map([[1]], [{'a': 1}])", "[1, 2, 3]::INTEGER[3]", "[NULL, NULL]::DOUBLE[2]", "[[1, 2], [3, 4]]::INTEGER[2][2]",
    "['inf', 'nan']::DOUBLE[]", "range(3000)", "array_value(1.0, 2.0, 3.0)", "['b', 'a']::ENUM('a', 'b')[]",
)  # fmt: skip
TYPES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT",
    "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL(1,0)", "DECIMAL(4,4)", "DECIMAL(18,3)", "DECIMAL(38,0)", "DECIMAL(38,38)", "VARCHAR", "BLOB",
    "BIT", "DATE", "TIME", "TIMETZ", "TIME_NS", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "INTERVAL",
    "UUID", "JSON", "VARIANT", "GEOMETRY", "INTEGER[]", "VARCHAR[]", "DOUBLE[3]", "INTEGER[][]", "STRUCT(a INTEGER, b VARCHAR)",
    "STRUCT(a STRUCT(b INTEGER[]))", "MAP(VARCHAR, INTEGER)", "MAP(INTEGER[], JSON)", "UNION(n INTEGER, s VARCHAR)", "ENUM('a', 'b')",
    "VARIANT[]", "JSON[]", "STRUCT(a VARIANT)", "DECIMAL(38,10)[]",
)  # fmt: skip
_BY_WORD = {
    "VARCHAR": TEXTS, "CHAR": TEXTS, "JSON": (*TEXTS[24:32], "'{\"a\": 1}'::JSON"), "BLOB": BYTES, "BIT": BYTES, "INTERVAL": INTERVALS,
    "DATE": TIMES, "TIME": TIMES, "[": COLLECTIONS, "MAP": COLLECTIONS, "STRUCT": COLLECTIONS, "UNION": OTHERS, "BOOLEAN": OTHERS,
    "UUID": OTHERS, "VARIANT": OTHERS, "GEOMETRY": OTHERS, "BIGNUM": OTHERS, "INT": NUMBERS, "DOUBLE": NUMBERS, "FLOAT": NUMBERS,
    "DECIMAL": NUMBERS, "LIST": COLLECTIONS,
}  # fmt: skip
ALL = (NUMBERS, TEXTS, TIMES, INTERVALS, BYTES, OTHERS, COLLECTIONS)


def literal_of(draw: Draw, kind: str) -> str:
    """A literal that mostly fits the type, as `duckdb_functions` names it."""
    if draw.chance(0.9):
        if "[" in kind:
            return draw.one(COLLECTIONS)
        for word, choices in _BY_WORD.items():
            if kind.startswith(word) or (word == "INT" and word in kind):
                return draw.one(choices)
    return draw.one(draw.one(ALL))


def small_number(draw: Draw) -> str:
    """A number that costs little as a size."""
    return str(draw.random.randint(-3, 40))

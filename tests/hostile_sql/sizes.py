"""Calls whose arguments ask for huge values, computed so that no number in the text shows it."""

from __future__ import annotations

from tests.hostile_sql.draw import Draw

_COUNTS = (
    1_000, 20_000, 300_000, 5_000_000, 100_000_000, 1_000_000_000, 2**31 - 1, 2**31, 3_000_000_000, 2**32 + 1, 10**12, 2**63 - 1, -1,
    0, 2**53 + 1,
)  # fmt: skip
_TEMPLATES = (
    "repeat('x', {n})", "repeat('abc', {n})::BLOB", "repeat([1, 2], {n})", "repeat([repeat('x', 1000)], {m})", "lpad('x', {n}, 'ab')",
    "rpad('x', {n}::INTEGER, 'é')", "range({n})", "range(0, {n}, 1)", "generate_series({n})", "range({n})::VARCHAR",
    "to_json(range({n}))", "format('{{:>{{}}}}', 'x', {n})", "format('{{:0>' || {n} || '}}', 1)",
    "format('{{:.{{}}f}}', 1.5::DOUBLE, {n})", "printf('%' || {n} || 'd', 1)", "printf('%.*f', {n}, 1.0)", "bitstring('1', {n})",
    "bitstring('1', ({n})::INTEGER) | bitstring('0', ({n})::INTEGER)", "list_resize([1], {n}, 0)", "array_resize(['x'], {n})",
    "list_transform(range({m}), lambda x: repeat('x', {m}))", "list_reduce(range({m}), lambda x, y: x + y)",
    "list_sort(list_transform(range({n}), lambda x: hash(x)))", "list_aggregate(range({n}), 'sum')",
    "list_zip(range({n}), range({n}))", "flatten([range({n}) FOR x IN range(10)])", "list_distinct(range({n}))",
    "list_concat(range({n}), range({n}))", "string_split(repeat(',', {n}), ',')", "regexp_split_to_array(repeat('ab', {n}), 'a')",
    "regexp_replace(repeat('a', {m}), 'a', repeat('b', {m}), 'g')", "replace(repeat('a', {m}), 'a', repeat('b', {m}))",
    "translate(repeat('a', {n}), 'a', 'b')", "reverse(repeat('é', {n}))", "levenshtein(repeat('ab', {m}), repeat('ba', {m}))",
    "damerau_levenshtein(repeat('ab', {m}), repeat('ba', {m}))", "jaro_winkler_similarity(repeat('ab', {m}), repeat('ba', {m}))",
    "jaccard(repeat('ab', {n}), repeat('ba', {n}))", "repeat('a', {m}) LIKE repeat('%a', {m} // 10) || 'b'",
    "repeat('a', {m}) GLOB repeat('*a', {m} // 10) || 'b'",
    "regexp_matches(repeat('a', {m}), '(' || repeat('a?', 900) || ')' || repeat('a', 900))",
    "regexp_matches('x', repeat('(x{{1,100}}', 3) || repeat('){{1,100}}', 3))", "hex(repeat('x', {n}))",
    "base64(repeat('x', {n})::BLOB)", "sha256(repeat('x', {n}))", "url_encode(repeat('é', {n}))", "strip_accents(repeat('é', {n}))",
    "repeat('9', {m})::BIGNUM * repeat('9', {m})::BIGNUM", "(repeat('9', {m})::BIGNUM)::VARCHAR", "factorial({n}::INTEGER)",
    "10::HUGEINT ** {n}", "strftime(now(), repeat('%c', {n}))", "date_trunc('day', now()) + INTERVAL ({n}) DAY",
    "to_years({n}::INTEGER)", "bar(1, 0, 1, {n})", "make_timestamp({n})", "make_date({n}, 1, 1)", "epoch_ms({n})", "chr({n}::INTEGER)",
    "to_base({n}, 2, 64)", "json_array(repeat('x', {n}))", "json_object(repeat('k', {n}), 1)", "json_group_array(repeat('x', {m}))",
    "map_from_entries(list_transform(range({n}), lambda x: (x, x)))", "concat_ws(repeat(',', {m}), 'a', 'b', 'c')",
    "array_to_string(range({n}), repeat(',', 100))", "length(repeat(repeat('x', {m}), {m}))", "substring(repeat('é', {n}), {n}, {n})",
    "set_bit(repeat('0', 1000)::BIT, {n}::INTEGER, 1)", "list_slice(range({n}), 1, {n}, 2)", "[repeat('x', {m}) FOR x IN range({m})]",
    "nextafter({n}::DOUBLE, 'inf'::DOUBLE)", "round(1.5, {n}::INTEGER)", "{n}::DECIMAL(38,30)",
    "range(TIMESTAMP '0001-01-01', TIMESTAMP '9999-01-01', INTERVAL 1 MICROSECOND)",
    "range(now(), now() + INTERVAL 1 DAY, INTERVAL ({n} % 7) SECOND)", "list_grade_up(range({n}))",
    "list_cosine_distance(range({n})::DOUBLE[], range({n})::DOUBLE[])", "equi_width_bins(0, {n}, {n}, true)",
    "equi_width_bins(0.0, 1e308, {n}, false)", "string_to_array(repeat('a,', {n}), ',')", "from_base64(repeat('AAAA', {n}))",
    "unhex(repeat('00', {n}))", "repeat('{{\"a\":1}},', {n})::JSON", "json_extract('[' || repeat('1,', {n}) || '1]', '$[*]')",
    "(repeat('1', {n}))::DOUBLE", "repeat('1', {n})::BIT",
)  # fmt: skip
_ROWS = (
    "SELECT count(*) FROM range({n})", "SELECT * FROM range({n})", "SELECT list(range) FROM range({n})",
    "SELECT string_agg(range, ',') FROM range({n})", "SELECT quantile_cont(range, 0.5) FROM range({n})",
    "SELECT histogram(range) FROM range({n})", "SELECT mode(range) FROM range({n})",
    "SELECT approx_top_k(range, {n}) FROM range(1000)", "SELECT approx_quantile(range, 0.5) FROM range({n})",
    "SELECT min(range, {n}) FROM range(100)", "SELECT arg_max(range, range, {n}) FROM range(100)",
    "SELECT reservoir_quantile(range, 0.5, {n}) FROM range(1000)", "SELECT bitstring_agg(range, 0, {n}) FROM range(10)",
    "SELECT unnest(range({n}))", "SELECT unnest(range({n})), unnest(range({n}))", "SELECT range FROM range({n}) ORDER BY hash(range)",
    "SELECT DISTINCT range FROM range({n})", "SELECT range, count(*) FROM range({n}) GROUP BY 1 ORDER BY 2",
    "FROM repeat_row(1, 'x', num_rows = {n})", "SELECT product(range), sum(range * range * range * range) FROM range({n})",
    "SELECT json_group_array(range) FROM range({n})",
    "SELECT sum(range) OVER (ORDER BY range ROWS BETWEEN {n} PRECEDING AND {n} FOLLOWING) FROM range({m})",
    "SELECT ntile({n}) OVER () FROM range(10)", "SELECT lag(range, {n}) OVER () FROM range(1000)",
    "SELECT * FROM range({n}) LIMIT {n} OFFSET {n}", "SELECT * FROM range({n}) USING SAMPLE {m} ROWS",
    "SELECT quantile_cont(range, list_transform(range({m}), lambda x: x / {m})) FROM range(100)", "FROM generate_series(0, {n}, 1)",
    "SELECT median(range::VARCHAR), mad(range), entropy(range) FROM range({n})",
    "SELECT group_concat(repeat('x', {m}), '') FROM range({m})", "SELECT count(DISTINCT range) FROM range({n})",
    "FROM range({n}) WHERE random() < 0.5 ORDER BY random()", "SELECT list(x) FROM (SELECT range({m}) x FROM range({m}))",
    "SELECT map(list(range), list(range)) FROM range({n})", "SELECT max_by(repeat('x', {m}), range) FROM range({m})",
    "SUMMARIZE FROM range({n})",
)  # fmt: skip


def sizes(draw: Draw) -> str:
    """A call or a scan with a huge count."""
    template = draw.one(_ROWS) if draw.chance(0.3) else f"SELECT {_wrapped(draw)}"
    return template.format(
        n=indirect(draw, draw.one(_COUNTS)), m=indirect(draw, draw.one((100, 2_000, 30_000, 400_000)))
    )


def _wrapped(draw: Draw) -> str:
    text = draw.one(_TEMPLATES)
    return draw.one(
        (
            text,
            text,
            f"length({text})",
            f"({text})::VARCHAR",
            f"[{text}, {text}]",
            f"hash({text})",
            f"{{{{'a': {text}}}}}",
        )
    )


def indirect(draw: Draw, number: int) -> str:
    """An expression with this value."""
    n, half = number, number // 2
    exponent = max(0, number.bit_length() - 1) if number > 0 else 0
    return draw.one(
        (
            f"{n}",
            f"0 - ({-n})",
            f"{n}.00000000000::BIGINT",
            f"'{n}'::BIGINT",
            f"({half} + {number - half})",
            f"(SELECT {n})",
            f"({n} * length('x'))",
            f"(1::BIGINT << {exponent})",
            f"pow(2, {exponent})::BIGINT",
            f"list_sum([{half}, {number - half}])",
            f"CASE WHEN random() >= 0 THEN {n} END",
            f"greatest({n}, {half})",
            f"({n}::VARIANT)::BIGINT",
            f"('{n}'::JSON)::BIGINT",
            f"coalesce(NULL, {n})",
            f"json_extract('[{n}]', '$[0]')::BIGINT",
            f"{n}e0::BIGINT",
            f"(SELECT max(x) FROM (VALUES ({n})) t(x))",
            f"len(range(10)) * {number // 10}",
            f"{{'a': {n}}}.a",
            f"[{n}][1]",
            f"epoch_ms(make_timestamp({n}::BIGINT * 1000))",
        )
    )

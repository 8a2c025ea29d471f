"""Allowed and rejected statements. test_query_pool runs hostile statements in real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamgauge.analytics.query.query_errors import QueryRejected
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.query.statement_filter import StatementFilter, allowed_functions, nesting
from streamgauge.analytics.storage.database import new_database
from streamgauge.analytics.storage.location import StoreLocation


@pytest.fixture(scope="module")
def statement_filter(location: StoreLocation) -> Iterator[StatementFilter]:
    reader = Reader(location, lock_down=True)
    yield StatementFilter(reader.cursor())
    reader.close()


ALLOWED = [
    "SELECT 1",
    "EXPLAIN SELECT 1",
    "\n explain\tFROM streams",
    "select count(*) from streams",
    "FROM streams",
    "FROM main.streams LIMIT 5 -- a comment",
    "FROM lake.main.streams",
    "TABLE streams",
    "VALUES (1, 'a'), (2, 'b')",
    "SELECT outcome, quantile_cont(ttft_ns, [0.5, 0.99]) FROM streams GROUP BY ALL ORDER BY ALL",
    "WITH recent AS (FROM streams WHERE started_at > now() - INTERVAL 1 HOUR) SELECT count(*) FROM recent",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 10) FROM t",
    "SELECT row_number() OVER (PARTITION BY outcome ORDER BY ttft_ns), lag(ttft_ns) OVER () FROM streams",
    "SELECT count(*) FILTER (outcome = 'ok') FROM streams",
    "SELECT * FROM streams a JOIN streams b USING (stream_id) WHERE a.ttft_ns IN (SELECT max(ttft_ns) FROM streams)",
    "SELECT unnest([1, 2, 3]), [x * 2 FOR x IN [1, 2]], list_transform([1], lambda y: y + 1)",
    "SELECT outcome.upper(), CASE WHEN ttft_ns > 1 THEN 'slow' END, coalesce(NULL, 1), try_cast('x' AS INT) FROM streams",
    "SELECT '{\"a\":1}'::JSON ->> 'a', {'a': 1}, MAP {'k': 1}, ttft_ns BETWEEN 1 AND 2 FROM streams",
    "SELECT date_trunc('minute', started_at), strftime(started_at, '%H'), epoch_ns(started_at) FROM streams",
    "SELECT * EXCLUDE (outcome) REPLACE (ttft_ns / 1e6 AS ttft_ns) FROM streams",
    "SELECT COLUMNS('.*_ns') FROM streams QUALIFY row_number() OVER () = 1",
    "PIVOT streams ON outcome IN ('ok', 'truncated') USING count(*)",
    "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b",
    "FROM streams SELECT count(*) GROUP BY outcome HAVING count(*) > 1 LIMIT 3 OFFSET 1",
    "SELECT 1 UNION ALL SELECT 2 EXCEPT SELECT 3",
    "FROM streams TABLESAMPLE 10%",
    "FROM range(10), generate_series(1, 3)",
    "SELECT repeat('█', 10), lpad('x', 20), range(5)",
    "DESCRIBE streams",
    "DESCRIBE SELECT 1",
    "SUMMARIZE streams",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "FROM by_outcome",
    "FROM information_schema.columns",
    "FROM duckdb_columns()",
    "FROM pragma_table_info('streams')",
    "FROM (SELECT 1) AS t(a)",
    "SELECT arg_max(stream_id, ttft_ns), histogram(ttft_ns), approx_quantile(ttft_ns, 0.5) FROM streams",
    "SELECT current_date, now(), random(), uuid(), version()",
    "SELECT replace(outcome, '_', ' '), regexp_replace(outcome, '[aeiou]', '', 'g') FROM streams",
    "SELECT printf('%.2f ms', ttft_ns / 1e6) FROM streams",
    "SELECT format('{:,} {}', ttft_ns, outcome), repeat('█', 40) || repeat('░', 20) || repeat('x', 9999) FROM streams",
    "WITH streams AS (FROM streams), \"Größe\" AS (SELECT 1) FROM streams, \"Größe\"",
    "WITH a AS (FROM streams), b AS (FROM a), c AS (FROM a JOIN b USING (stream_id)) FROM c UNION ALL FROM c",
    "SELECT ttft_ns AS a, a / 1e6 AS b, b / 1e3 AS c, a + b + c FROM streams",
    'SELECT 1 AS "getenv(", \'DROP TABLE streams\' AS s',
    "FROM streams WHERE outcome LIKE '%a%b%c%' AND outcome NOT LIKE 'x%' AND outcome LIKE 'tap_%' AND outcome ILIKE '%LOST%'",
    "FROM streams WHERE outcome GLOB '*lost' AND outcome LIKE '10\\%' ESCAPE '\\'",
    "SELECT [x + 1 FOR x IN [1, 2] IF x > 1], list_transform([[1]], lambda x: list_transform(x, lambda y: y + 1))",
    "SELECT '{\"a\": {\"b\": 1}}'::JSON -> 'a' -> 'b', lpad(outcome, 9, '0'), bar(ttft_ns, 0, 9, 20) FROM streams",
]  # fmt: skip

REFUSED = [
    "",
    ";",
    "selec 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE streams",
    "DROP TABLE streams",
    "CREATE TABLE x (a INT)",
    "CREATE OR REPLACE VIEW by_outcome AS SELECT 1",
    "CREATE MACRO m() AS 1",
    "ALTER TABLE streams ADD COLUMN x INT",
    "TRUNCATE streams",
    "INSERT INTO streams VALUES (uuid(), 'ok', 1, now())",
    "UPDATE streams SET outcome = 'ok'",
    "DELETE FROM streams",
    "MERGE INTO streams USING streams s ON true WHEN MATCHED THEN DELETE",
    "WITH x AS (INSERT INTO streams VALUES (uuid(), 'ok', 1, now()) RETURNING *) FROM x",
    "WITH x AS (DELETE FROM streams RETURNING *) FROM x",
    "COPY streams TO '/tmp/x.csv'",
    "COPY (SELECT 1) TO '/tmp/x.csv'",
    "COPY streams FROM '/etc/passwd'",
    "EXPORT DATABASE '/tmp/x'",
    "IMPORT DATABASE '/tmp/x'",
    "ATTACH '/tmp/other.duckdb' AS other",
    "DETACH memory",
    "USE internal",
    "BEGIN",
    "COMMIT",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "PRAGMA version",
    "PRAGMA database_list",
    "SET threads = 1",
    "SET GLOBAL quack_authorization_function = 'quack_nop_authorization'",
    "RESET memory_limit",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CALL quack_stop('quack:localhost')",
    "CALL pragma_version()",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "EXPLAIN ANALYZE DELETE FROM streams",
    "CREATE SECRET (TYPE s3)",
    "FROM internal.kept",
    "FROM memory.internal.kept",
    "SELECT (SELECT count(*) FROM internal.kept)",
    "FROM answers.main.a1",
    "FROM a1",
    "FROM no_such_table",
    "FROM other.main.streams",
    "FROM '/etc/passwd'",
    "FROM 'x.parquet'",
    "FROM \"https://example.com/x.csv\"",
    "DESCRIBE '/etc/passwd'",
    "SUMMARIZE 'x.csv'",
    "SUMMARIZE internal.kept",
    "DESCRIBE internal.kept",
    "FROM read_text('/etc/passwd')",
    "FROM read_blob('/etc/*')",
    "FROM read_csv('/etc/passwd')",
    "FROM read_parquet('x')",
    "FROM read_json_auto('x')",
    "FROM parquet_metadata('x')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM glob('/*')",
    "FROM query('SELECT 1')",
    "FROM query_table('streams')",
    "FROM query_table(['internal.kept'])",
    "FROM json_execute_serialized_sql('{}')",
    "FROM quack_stop('quack:localhost')",
    "FROM quack_serve('quack:localhost:1', token := 'aaaa')",
    "FROM quack_query('quack:localhost', 'SELECT 1')",
    "FROM quack_active_connections()",
    "FROM enable_logging()",
    "FROM disable_logging()",
    "FROM enable_profiling()",
    "FROM truncate_duckdb_logs()",
    "FROM duckdb_logs()",
    "FROM duckdb_logs",
    "FROM duckdb_secrets()",
    "FROM duckdb_settings()",
    "FROM duckdb_variables()",
    "FROM duckdb_databases()",
    "FROM checkpoint()",
    "FROM force_checkpoint('memory')",
    "FROM arrow_scan(1, 2, 3)",
    "FROM pandas_scan(1)",
    "FROM seq_scan('internal.kept')",
    "FROM pragma_storage_info('streams')",
    "FROM histogram('internal.kept', 'payload')",
    "FROM which_secret('x', 's3')",
    "FROM repeat(1, 1000000000000)",
    "SELECT getenv('HOME')",
    "SELECT GETENV('HOME')",
    "SELECT current_setting('threads')",
    "SELECT getvariable('x')",
    "SELECT nextval('s')",
    "SELECT setseed(0.5)",
    "SELECT write_log('x')",
    "SELECT sleep_ms(10000)",
    "SELECT pg_sleep(10)",
    "SELECT json_serialize_plan('SELECT 1')",
    "SELECT streamgauge_gate('a', 'b')",
    "SELECT quack_check_token('a', 'b', 'c')",
    "SELECT no_such_function(1)",
    "SELECT count(*) FROM streams WHERE outcome = getenv('HOME')",
    "SELECT 1 FROM streams ORDER BY getenv('HOME')",
    "SELECT 1 LIMIT (SELECT length(getenv('HOME')))",
    "SELECT list_transform([1], lambda y: getenv('HOME'))",
    "SELECT sum(1) OVER (ORDER BY getenv('HOME'))",
    "SELECT count(*) FILTER (getenv('HOME') = 'x')",
    "FROM range(length(getenv('HOME')))",
    "WITH x AS (SELECT getenv('HOME')) FROM x",
    "SELECT * REPLACE (getenv('HOME') AS outcome) FROM streams",
    "SELECT (WITH kept AS (SELECT 1) FROM kept), * FROM internal.kept",
    "SELECT main.getenv('HOME')",
    "SELECT 'x'.getenv()",
    # a CTE in another scope has the name of a hidden table
    "WITH x AS (SELECT (WITH pragma_database_list AS (SELECT 1) SELECT 1)) FROM pragma_database_list, x",
    "SELECT (WITH sqlite_master AS (SELECT 1) SELECT 1), * FROM sqlite_master",
    "SELECT (WITH duckdb_logs AS (SELECT 1) FROM duckdb_logs), * FROM duckdb_logs",
    "SELECT (WITH pg_settings AS (SELECT 1) FROM pg_settings), * FROM pg_settings",
    "SELECT (WITH \"/etc/passwd\" AS (SELECT 1) SELECT 1), * FROM '/etc/passwd'",
    "SELECT (WITH \"x.csv\" AS (SELECT 1) SELECT 1), * FROM \"x.csv\"",
    # other spellings of the same name
    'SELECT "getenv"(\'HOME\')',
    "SELECT system.main.getenv('HOME')",
    "SELECT pg_catalog.current_setting('threads')",
    "SELECT ＧＥＴＥＮＶ('HOME')",
    "SELECT GeTeNv('HOME')",
    "SELECT try(getenv('HOME'))",
    "SELECT /**/getenv/**/('HOME')",
    "SELECT getenv -- \n ('HOME')",
    "FROM \"read_text\"('/etc/passwd')",
    "FROM main.read_text('/etc/passwd')",
    "FROM system.main.query('SELECT 1')",
    "FROM streams, LATERAL (FROM glob('*'))",
    "WITH t AS MATERIALIZED (FROM read_text('/etc/passwd')) FROM t",
    "WITH RECURSIVE t AS (SELECT 1 UNION ALL (SELECT getenv('HOME')::INT FROM t)) FROM t",
    "SELECT 1 WHERE EXISTS (FROM glob('*'))",
    "SELECT count(*) FROM streams JOIN streams b ON getenv('HOME') = b.outcome",
    "SELECT DISTINCT ON (getenv('HOME')) 1",
    "SELECT COLUMNS(lambda c: getenv('HOME') = c) FROM streams",
    "SELECT any_value(1 ORDER BY getenv('HOME'))",
    "SELECT sum(1) OVER w FROM streams WINDOW w AS (PARTITION BY current_setting('threads'))",
    "VALUES (getenv('HOME'))",
    "PIVOT streams ON outcome",
    "DESCRIBE duckdb_settings",
    "SHOW databases",
    "SHOW VARIABLES",
    "FROM pg_catalog.pg_settings",
    "FROM system.information_schema.tables",
    "SELECT 1 /* ; */; DROP TABLE streams --",
    "SELECT 1;;;DROP TABLE streams",
    "EXPLAIN ANALYZE SELECT 1",
    "explain\nanalyse SELECT 1",
    "EXPLAIN (ANALYZE) SELECT 1",
    "EXPLAIN EXPLAIN SELECT 1",
    "EXPLAIN DELETE FROM streams",
    "EXPLAIN FROM read_text('/etc/passwd')",
    "EXPLAIN SELECT 1; SELECT 1",
    "/* */ EXPLAIN SELECT 1",
    # internal names
    "FROM system.main.duckdb_tables()",
    "FROM main.duckdb_views()",
    "FROM pragma_table_info('__ducklake_metadata_lake.main.ducklake_snapshot')",
    "FROM pragma_table_info('stre' || 'ams')",
    "SELECT filename FROM streams",
    'SELECT s."FileName" FROM streams s',
    "SELECT count(*) FROM streams GROUP BY lake.main.streams.filename",
    "FROM streams a JOIN streams b USING (filename)",
    "PIVOT streams ON outcome IN ('ok') USING count(*) GROUP BY filename",
]  # fmt: skip


@pytest.mark.parametrize("sql", ALLOWED)
def test_statements_that_only_read_are_allowed(statement_filter: StatementFilter, sql: str) -> None:
    assert statement_filter.check(sql)["statements"]


@pytest.mark.parametrize("sql", REFUSED)
def test_other_statements_are_rejected_in_one_line(statement_filter: StatementFilter, sql: str) -> None:
    with pytest.raises(QueryRejected) as refused:
        statement_filter.check(sql)
    assert str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM __ducklake_metadata_lake.main.ducklake_snapshot",
        "FROM __ducklake_metadata_lake.ducklake_snapshot",
        "FROM ducklake_snapshot",
        "FROM memory.main.open_streams",
        "FROM lake.snapshots()",
        "FROM ducklake_snapshots('lake')",
        "FROM ducklake_list_files('lake', 'streams')",
        "FROM sqlite_scan('x', 'y')",
        "FROM postgres_query('x', 'y')",
        "FROM parquet_scan('x')",
    ],
)
def test_tables_and_functions_of_the_catalog_are_rejected(
    statement_filter: StatementFilter, sql: str
) -> None:
    with pytest.raises(QueryRejected):
        statement_filter.check(sql)


def test_statements_are_bounded_in_length_and_depth(statement_filter: StatementFilter) -> None:
    with pytest.raises(QueryRejected, match="longer than 64 KiB"):
        statement_filter.check("SELECT '" + "x" * 70_000 + "'")
    for deep in ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "SELECT " + "1 + " * 5000 + "1"):
        with pytest.raises(QueryRejected, match=r"nested too deeply|expression depth"):
            statement_filter.check(deep)


def test_nesting_counts_the_deepest_brackets() -> None:
    assert [nesting(text) for text in ("", "a", "(a)[0]", "f(g([{1}]))", "))(")] == [0, 0, 1, 4, 0]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_is_allowed_or_rejected(statement_filter: StatementFilter, text: str) -> None:
    with contextlib.suppress(QueryRejected):
        assert statement_filter.check(text)["statements"]


def test_every_volatile_function_is_listed_as_harmless_or_denied() -> None:
    """Review new volatile functions of a newer DuckDB before they are allowed."""
    connection = new_database()
    volatile = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'scalar' "
        "AND (stability = 'VOLATILE' OR has_side_effects)"
    ).fetchall()
    connection.close()
    harmless = {"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "error"}
    assert {name for (name,) in volatile} & allowed_functions() <= harmless

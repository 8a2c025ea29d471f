"""Attempts to leave the sandbox: other schemas, files, settings, internal names, SQL in strings, the protocol's own statements."""

from __future__ import annotations

from tests.hostile_sql.draw import Draw
from tests.hostile_sql.expressions import call_of, select
from tests.hostile_sql.values import TEXTS

_FILES = (
    "/etc/passwd", "/proc/self/environ", "/proc/self/maps", "../run/serve.json", "run/*.json", "catalog.sqlite", "tables/**/*.parquet",
    "/tmp/x.csv", "http://127.0.0.1:1/x.parquet", "s3://bucket/x.parquet", "/dev/stdin", "/dev/zero", "file:///etc/passwd",
    "/root/.ssh/id_rsa",
)  # fmt: skip
_READERS = (
    "read_text", "read_blob", "read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_parquet", "parquet_scan",
    "parquet_metadata", "parquet_schema", "glob", "sniff_csv", "read_json_objects", "read_ndjson", "read_duckdb", "sqlite_scan",
    "ducklake_snapshots", "ducklake_table_info", "postgres_scan", "arrow_scan", "pandas_scan", "quack_query", "quack_serve", "query",
    "query_table",
)  # fmt: skip
_NAMES = (
    "__ducklake_metadata_lake.main.ducklake_snapshot", "__ducklake_metadata_lake.ducklake_table", "internal.counter_parts",
    "lake.internal.counter_parts", "answers.main.a1", "answers.a2", "a3", "temp.main.a1", "memory.main.open_streams",
    "system.main.duckdb_settings", "information_schema.tables", "information_schema.columns", "information_schema.schemata",
    "information_schema.character_sets", "pg_catalog.pg_class", "pg_catalog.pg_settings", "sqlite_master", "duckdb_tables",
    "main.streams", "lake.main.streams", "other.streams", '"lake"."main"."streams"', "lake.streams AT (VERSION => 1)",
    "streams AT (TIMESTAMP => now())", "streamgauge_positions", "duckdb_logs", '"/etc/passwd"', "'/etc/passwd'", '""',
    "information_schema.key_column_usage",
)  # fmt: skip
_STATEMENTS = (
    "ATTACH '{f}' AS x", "ATTACH ':memory:' AS x", "ATTACH 'ducklake:sqlite:{f}' AS x", "DETACH lake", "USE answers",
    "COPY streams TO '{f}'", "COPY (SELECT 1) TO '{f}' (FORMAT parquet)", "COPY streams FROM '{f}'", "EXPORT DATABASE '{f}'",
    "IMPORT DATABASE '{f}'", "INSTALL httpfs", "LOAD '{f}'", "LOAD spatial", "FORCE INSTALL json FROM 'http://127.0.0.1:1'",
    "SET {s} = {v}", "SET GLOBAL {s} = {v}", "RESET {s}", "PRAGMA {s} = {v}", "PRAGMA {s}", "PRAGMA {p}", "CALL {p}()",
    "CREATE TABLE x AS SELECT 1", "CREATE OR REPLACE VIEW streams AS SELECT 1", "CREATE TEMP TABLE x (a INT)",
    "CREATE MACRO abs(x) AS 1", "CREATE TEMP MACRO m(x) AS TABLE FROM range(x)", "CREATE SECRET x (TYPE s3)", "CREATE SEQUENCE s",
    "CREATE TYPE t AS ENUM ('a')", "CREATE SCHEMA x", "CREATE INDEX i ON streams (outcome)", "DROP TABLE streams",
    "DROP SCHEMA main CASCADE", "ALTER TABLE streams ADD COLUMN x INT", "INSERT INTO streams DEFAULT VALUES",
    "UPDATE streams SET outcome = 'x'", "DELETE FROM {n}", "TRUNCATE events",
    "MERGE INTO streams USING streams ON false WHEN MATCHED THEN DELETE", "BEGIN", "COMMIT", "ROLLBACK", "CHECKPOINT", "VACUUM",
    "ANALYZE streams", "EXPLAIN ANALYZE SELECT 1", "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p",
    "COMMENT ON TABLE streams IS 'x'", "SHOW ALL TABLES", "SHOW DATABASES", "SHOW TABLES", "SHOW TABLES FROM answers", "SHOW {s}",
    "DESCRIBE {n}", "SUMMARIZE {n}", "SELECT current_setting('{s}')", "SELECT getenv('HOME')", "SELECT getvariable('x')",
    "SELECT nextval('s')", "SELECT which_secret('{f}', 's3')", "SET VARIABLE x = 1",
    "SELECT * FROM query('SELECT * FROM duckdb_settings()')", "FROM query_table('{n}')", "FROM query_table(['{n}', 'streams'])",
    "SELECT json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM duckdb_settings()'))", "SELECT json_serialize_plan('FROM {n}')",
    "SELECT create_sort_key(1, 'ASC')", "SELECT streamgauge_gate('s', 'SELECT 1')",
    "SELECT database_name, path FROM duckdb_databases()", "FROM duckdb_secrets()", "FROM duckdb_settings()", "FROM duckdb_{w}()",
    "SELECT name FROM duckdb_functions() t(name)", "SELECT database_name, schema_name, table_name, sql FROM duckdb_tables()",
    "SELECT table_name, sql FROM duckdb_views()", "SELECT * FROM duckdb_columns()", "SELECT * FROM duckdb_schemas()",
    "SELECT * FROM duckdb_constraints()", "SELECT * FROM information_schema.columns", "SELECT * FROM pragma_table_info('{n}')",
    "SELECT * FROM pragma_version()", "FROM pragma_database_size()", "FROM pragma_storage_info('streams')",
    "SELECT write_log('x', level := 'error')", "SELECT rowid, filename, file_row_number FROM streams",
    "SELECT * FROM streams, read_text('{f}')", "SELECT (SELECT content FROM read_text('{f}'))",
    "WITH streams AS (FROM '{f}') FROM streams", "WITH a1 AS (SELECT 1) SELECT (SELECT * FROM a1), (FROM answers.a1)",
    "SELECT * FROM streams WHERE EXISTS (FROM {n})", "VALUES ((SELECT count(*) FROM {n}))", "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE streams", "SELECT 1) LIMIT 5; DROP TABLE streams; --", ") ; ATTACH '{f}' AS x; FROM (SELECT 1",
    "SELECT 1 LIMIT 99999999 --", "SELECT * FROM range(5000) /*",
    "/*streamgauge max_rows=999999999 timeout_s=999999*/FROM range(5000)", "FROM streams -- \n; DROP TABLE streams",
    "SELECT catalog_name, schema_name FROM information_schema.schemata",
    "SELECT schema_name, sql, 'table' FROM duckdb_tables() UNION ALL SELECT 1, 2, 3",
    "SELECT catalog_name, schema_name FROM information_schema.schemata, {n}",
    "SELECT schema_name, sql, 'table' FROM duckdb_tables() UNION ALL FROM read_text('{f}')",
    "SELECT alias(x), vector_type(x), stats(x), typeof(x) FROM streams x", "SELECT streams FROM streams",
    "SELECT error('/etc/passwd')", "SELECT sleep_ms(5000)", "SELECT pg_sleep(5)", "FROM test_all_types()",
    "FROM repeat(1, 100000000000)", "FROM summary((SELECT 1))", "FROM seq_scan('{n}')", "FROM checkpoint('lake')",
    "SELECT current_database(), current_schemas(true), current_query()",
    "SELECT pg_typeof(1), has_table_privilege('{n}', 'x'), pg_get_viewdef(1)", "SELECT \"{f}\"", "FROM lake.snapshots()",
    "FROM ducklake_table_changes('lake', 'main', 'streams', 0, 9)", "CALL ducklake_expire_snapshots('lake')",
    "CALL lake.set_option('parquet_compression', 'zstd')", "CALL quack_serve('quack:localhost:1')", "CALL quack_stop()",
)  # fmt: skip
_SETTINGS = (
    "memory_limit", "threads", "enable_external_access", "lock_configuration", "allowed_directories", "temp_directory", "search_path",
    "home_directory", "extension_directory", "custom_extension_repository", "python_enable_replacements",
    "quack_authorization_function", "log_query_path", "profile_output", "enable_logging", "secret_directory", "TimeZone",
    "max_expression_depth", "disabled_optimizers", "allow_unsigned_extensions",
)  # fmt: skip
_VALUES = ("1", "'-1'", "true", "false", "''", "'/tmp'", "'100GB'", "[]", "DEFAULT")


def escapes(draw: Draw) -> str:
    """A statement that should be rejected, or that should show public names only."""
    choice = draw.random.randrange(10)
    if choice == 0:
        return f"{draw.one(('FROM', 'SELECT * FROM', 'SELECT count(*) FROM', 'TABLE', 'DESCRIBE'))} {draw.one(_NAMES)}"
    if choice == 1:
        return f"SELECT * FROM {draw.one(_READERS)}('{draw.one(_FILES)}'{draw.one(('', ', ' + draw.one(TEXTS), ', union_by_name = true'))})"
    if choice == 2:
        return f"{draw.one(('CALL', 'PRAGMA', 'FROM'))} {call_of(draw, draw.function('table', 'pragma', 'table_macro'), 0, None)}"
    text = draw.one(_STATEMENTS)
    for mark, words in (("{f}", _FILES), ("{n}", _NAMES), ("{s}", _SETTINGS), ("{v}", _VALUES)):
        text = text.replace(mark, draw.one(words))
    text = text.replace("{p}", draw.function("pragma").name).replace(
        "{w}", draw.one(("logs", "memory", "databases", "variables", "dependencies", "sequences"))
    )
    if draw.chance(0.1):
        return f"WITH c AS ({text}) {select(draw, 1)}"
    if draw.chance(0.1):
        return f"SELECT * FROM ({text})"
    return text

"""Hostile SQL on the SQL page is rejected with a one-line error and reveals nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from streamgauge.dashboard import query_runner
from tests.analytics.query.test_query_pool import HOSTILE
from tests.analytics.query.test_statement_filter import REFUSED
from tests.dashboard.app_test import metric_value, open_page, page_text

SECRET = "plantedzwiebel"


def test_sql_page_rejects_hostile_statements(
    streams_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_file = tmp_path / "secret.csv"
    secret_file.write_text(f"a\n{SECRET}\n")
    monkeypatch.setenv("SECRET", SECRET)
    (streams_data / "run" / "analyze.json").write_text('{"pid": 1, "secret": "in-the-run-folder"}')
    hostile = [sql for sql in REFUSED if sql.strip("; ")]
    app = open_page(streams_data, monkeypatch, "sql")
    for sql in [
        "SELECT nonsense FROM streams",
        *hostile[:: max(1, len(hostile) // 8)],
        f"FROM '{secret_file}'",
        f"FROM read_csv('{secret_file}')",
        f"SELECT content FROM read_text('{secret_file}')",
        f"COPY streams TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/out.duckdb' AS x",
        f"FROM read_text('{streams_data}/run/analyze.json')",
        "SELECT getenv('SECRET')",
        "SET GLOBAL enable_external_access = true",
        "INSTALL spatial; LOAD spatial",
        "FROM duckdb_settings()",
        "FROM __ducklake_metadata_lake.main.ducklake_snapshot",
        f"FROM sqlite_scan('{streams_data}/catalog.sqlite', 'ducklake_snapshot')",
        f"FROM read_parquet('{streams_data}/tables/**/*.parquet')",
    ]:
        app.query_params["sql"] = sql
        app.run()
        assert not app.exception, sql
        assert len(app.error) == 1, sql
        assert "\n" not in str(app.error[0].value), sql
        assert len(app.dataframe) == 0, sql
        text = page_text(app)
        assert SECRET not in text.replace(sql, ""), sql
        assert "in-the-run-folder" not in text, sql
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert result_of(app, "SELECT count(*) AS n FROM streams") == [400]


KILLERS = ("json_transform", "repeat", "recursion")
"""A crash, too much memory, and the time limit."""


def test_statement_that_kills_its_process_is_a_one_line_error(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "sql")
    for name in KILLERS:
        with monkeypatch.context() as during_the_statement:
            during_the_statement.setattr(query_runner, "TIMEOUT_S", 1.0)
            app.query_params["sql"] = HOSTILE[name]
            app.run()
        assert not app.exception, name
        assert len(app.error) == 1, name
        assert "\n" not in str(app.error[0].value), name
        assert result_of(app, f"SELECT count(*) AS n FROM streams  -- after {name}") == [400]
    assert metric_value(open_page(streams_data, monkeypatch, range="24h"), "Requests") == "400"


def result_of(app: AppTest, sql: str) -> list[int]:
    app.query_params["sql"] = sql
    app.run()
    found: list[int] = app.dataframe[0].value["n"].to_list()
    return found

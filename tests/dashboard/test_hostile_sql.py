"""Hostile SQL on the dashboard's SQL page: each statement is refused in one line, and shows nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.analytics.query.test_process import HOSTILE
from tests.analytics.query.test_statement_filter import REFUSED
from tests.dashboard.app_test import metric_value, open_page, page_text

PLANTED = "plantedzwiebel"


def test_the_sql_page_lets_nothing_through(
    streams_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted.csv"
    planted.write_text(f"a\n{PLANTED}\n")
    monkeypatch.setenv("PLANTED", PLANTED)
    (streams_data / "run" / "analyze.json").write_text('{"pid": 1, "secret": "in-the-run-folder"}')
    hostile = [sql for sql in REFUSED if sql.strip("; ")]
    app = open_page(streams_data, monkeypatch, "sql")
    for sql in [
        *hostile[:: max(1, len(hostile) // 30)],
        f"FROM '{planted}'",
        f"FROM read_csv('{planted}')",
        f"SELECT content FROM read_text('{planted}')",
        f"COPY streams TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/out.duckdb' AS x",
        f"FROM read_text('{streams_data}/run/analyze.json')",
        "SELECT getenv('PLANTED')",
        "SET GLOBAL enable_external_access = true",
        "INSTALL spatial; LOAD spatial",
        "FROM duckdb_settings()",
        "FROM __ducklake_metadata_lake.main.ducklake_snapshot",
        f"FROM sqlite_scan('{streams_data}/catalog.sqlite', 'ducklake_snapshot')",
        f"FROM read_parquet('{streams_data}/tables/**/*.parquet')",
    ]:
        app.text_area(key="sql").set_value(sql)
        app.button[0].click().run()
        assert not app.exception, sql
        assert len(app.error) == 1, sql
        assert "\n" not in str(app.error[0].value), sql
        assert len(app.dataframe) == 0, sql
        words = page_text(app)
        assert PLANTED not in words.replace(sql, ""), sql
        assert "in-the-run-folder" not in words, sql
    assert [path.name for path in tmp_path.iterdir()] == ["planted.csv"]
    assert shown(app, "SELECT count(*) AS n FROM streams") == [400]


@pytest.mark.parametrize("name", ["json to variant", "json_transform", "repeat", "chained ctes", "recursion"])
def test_a_statement_that_kills_its_process_is_one_line_and_the_page_goes_on(
    name: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "sql")
    app.text_area(key="sql").set_value(HOSTILE[name])
    app.button[0].click().run()
    assert not app.exception
    assert len(app.error) == 1
    assert "\n" not in str(app.error[0].value)
    assert shown(app, "SELECT count(*) AS n FROM streams") == [400]
    assert metric_value(open_page(streams_data, monkeypatch, range="24h"), "Requests") == "400"


def shown(app: AppTest, sql: str) -> list[int]:
    app.text_area(key="sql").set_value(sql)
    app.button[0].click().run()
    found: list[int] = app.dataframe[0].value["n"].to_list()
    return found

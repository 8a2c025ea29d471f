"""Hostile SQL on the dashboard's SQL page: each statement is refused in one line, and shows nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analytics.serving.test_guard import REFUSED
from tests.dashboard.pages import opened, said

PLANTED = "plantedzwiebel"


def test_the_sql_page_lets_nothing_through(
    river: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted.csv"
    planted.write_text(f"a\n{PLANTED}\n")
    monkeypatch.setenv("PLANTED", PLANTED)
    token = (river / "run" / "analyze.json").read_text()
    hostile = [sql for sql in REFUSED if sql.strip("; ")]
    app = opened(river, monkeypatch, "sql")
    for sql in [
        *hostile[:: max(1, len(hostile) // 30)],
        f"FROM '{planted}'",
        f"FROM read_csv('{planted}')",
        f"SELECT content FROM read_text('{planted}')",
        f"COPY streams TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/out.duckdb' AS x",
        f"FROM read_text('{river}/run/analyze.json')",
        "SELECT getenv('PLANTED')",
        "SET GLOBAL enable_external_access = true",
        "INSTALL spatial; LOAD spatial",
        "FROM duckdb_settings()",
        "FROM answers.main.a1",
    ]:
        app.text_area(key="sql").set_value(sql)
        app.button[0].click().run()
        assert not app.exception, sql
        assert len(app.error) == 1, sql
        assert "\n" not in str(app.error[0].value), sql
        assert len(app.dataframe) == 0, sql
        words = said(app)
        assert PLANTED not in words.replace(sql, ""), sql
        assert token not in words, sql
    assert [path.name for path in tmp_path.iterdir()] == ["planted.csv"]
    app.text_area(key="sql").set_value("SELECT count(*) AS n FROM streams")
    app.button[0].click().run()
    assert app.dataframe[0].value["n"].to_list() == [400]

"""Statements that the SQL server streams from a table, and those that run in the query pool."""

from __future__ import annotations

import pytest

from streamgauge.analytics.query.quack_gate import plain_scan

TABLES = {"streams": ["stream_id", "Outcome", 'od"d']}


@pytest.mark.parametrize(
    ("sql", "selected"),
    [
        ("SELECT #1, #3 FROM streams", '"stream_id", "od""d"'),
        ("SELECT NULL::BOOLEAN FROM streams", "NULL::BOOLEAN"),
        ("FROM main.streams", "*"),
        (' select * from lake.main."STREAMS" ; ', "*"),
        ('SELECT outcome, "od""d" FROM Streams', '"Outcome", "od""d"'),
    ],
)
def test_scans_of_columns_are_composed_with_quoted_names(sql: str, selected: str) -> None:
    assert plain_scan(sql, TABLES.get) == f'SELECT {selected} FROM lake.main."streams"'


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "FROM by_outcome",
        "FROM other.streams",
        "FROM lake.streams",
        "SELECT #0 FROM streams",
        "SELECT #4 FROM streams",
        "SELECT #1, #1 FROM streams",
        "SELECT outcome, #2 FROM streams",
        "SELECT rowid FROM streams",
        "SELECT filename FROM streams",
        "SELECT upper(outcome) FROM streams",
        "SELECT NULL::BOOLEAN, outcome FROM streams",
        "SELECT outcome o FROM streams",
        "SELECT *, * FROM streams",
        "FROM streams LIMIT 1",
        "FROM streams; DROP TABLE streams",
        "FROM streams -- comment",
        'FROM "streams" WHERE true',
        "SELECT '" + "[" * 20_000 + "'::JSON FROM streams",
    ],
)
def test_other_statements_are_not_scans(sql: str) -> None:
    assert plain_scan(sql, TABLES.get) is None

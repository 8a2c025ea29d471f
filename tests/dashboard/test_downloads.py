"""Downloaded files have the values of the query result."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import polars as pl

from dashboard.downloads import as_csv, as_parquet

RESULT = pl.DataFrame(
    {
        "n": [1, None],
        "text": ['a "b", c\nd', None],
        "list": [[1, 2], None],
        "struct": [{"x": "é"}, None],
        "at": [datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), None],
        "nothing": [None, None],
    }
)


def test_csv_has_nested_values_as_json_and_null_as_empty() -> None:
    found = pl.read_csv(io.BytesIO(as_csv(RESULT)))
    assert found["text"][0] == 'a "b", c\nd'
    assert json.loads(found["list"][0]) == [1, 2]
    assert json.loads(found["struct"][0]) == {"x": "é"}
    assert found.row(1) == (None,) * len(RESULT.columns)


def test_parquet_keeps_the_types() -> None:
    found = pl.read_parquet(io.BytesIO(as_parquet(RESULT)))
    assert found.drop("nothing").equals(RESULT.drop("nothing"))
    assert found["nothing"].null_count() == 2


def test_result_without_rows_has_header() -> None:
    assert as_csv(RESULT.clear()).decode().strip() == "n,text,list,struct,at,nothing"
    assert pl.read_parquet(io.BytesIO(as_parquet(RESULT.clear()))).height == 0

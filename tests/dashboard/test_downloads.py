"""Downloaded files have the values of the query result."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import polars as pl

from streamgauge.dashboard.downloads import as_csv, as_json, as_parquet

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


def test_json_has_an_object_for_each_row() -> None:
    found = json.loads(as_json(RESULT))
    assert found[0] == {
        "n": 1,
        "text": 'a "b", c\nd',
        "list": [1, 2],
        "struct": {"x": "é"},
        "at": "2026-01-02T03:04:05.000678+00:00",
        "nothing": None,
    }
    assert found[1] == dict.fromkeys(RESULT.columns)


def test_json_has_values_that_its_types_lack_as_text_or_null() -> None:
    values = {
        "nan": [float("nan")],
        "day": [date(2026, 1, 2)],
        "took": [timedelta(seconds=1.5)],
        "price": [Decimal("1.25")],
        "bytes": [b"\x00a"],
        "nested": [[{"x": float("inf")}]],
    }
    assert json.loads(as_json(pl.DataFrame(values))) == [
        {
            "nan": None,
            "day": "2026-01-02",
            "took": 1.5,
            "price": 1.25,
            "bytes": "0061",
            "nested": [{"x": None}],
        }
    ]


def test_result_without_rows_has_header() -> None:
    assert as_csv(RESULT.clear()).decode().strip() == "n,text,list,struct,at,nothing"
    assert pl.read_parquet(io.BytesIO(as_parquet(RESULT.clear()))).height == 0
    assert as_json(RESULT.clear()) == b"[]"

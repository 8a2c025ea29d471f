"""Downloaded files of the SQL page, which are those of `streamgauge sql`, have the values of the query result."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import polars as pl

from streamgauge.analytics.query.render import render

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
    found = pl.read_csv(io.BytesIO(render(RESULT, "csv")))
    assert found["text"][0] == 'a "b", c\nd'
    assert json.loads(found["list"][0]) == [1, 2]
    assert json.loads(found["struct"][0]) == {"x": "é"}
    assert found.row(1) == (None,) * len(RESULT.columns)


def test_parquet_keeps_the_types() -> None:
    found = pl.read_parquet(io.BytesIO(render(RESULT, "parquet")))
    assert found.drop("nothing").equals(RESULT.drop("nothing"))
    assert found["nothing"].null_count() == 2


def test_json_has_an_object_for_each_row() -> None:
    found = json.loads(render(RESULT, "json"))
    assert found[0] == {
        "n": 1,
        "text": 'a "b", c\nd',
        "list": [1, 2],
        "struct": {"x": "é"},
        "at": "2026-01-02T03:04:05.000678Z",
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
    assert json.loads(render(pl.DataFrame(values), "json")) == [
        {
            "nan": None,
            "day": "2026-01-02",
            "took": "PT1.5S",
            "price": 1.25,
            "bytes": "0061",
            "nested": [{"x": None}],
        }
    ]


def test_result_without_rows_has_header() -> None:
    assert render(RESULT.clear(), "csv").decode().strip() == "n,text,list,struct,at,nothing"
    assert pl.read_parquet(io.BytesIO(render(RESULT.clear(), "parquet"))).height == 0
    assert render(RESULT.clear(), "json") == b"[]\n"

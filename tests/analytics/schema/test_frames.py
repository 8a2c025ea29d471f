"""Data frames of tables: numbers that do not fit their column."""

from __future__ import annotations

from collections import Counter

import pytest

from streamgauge.analytics.schema.frames import frame
from streamgauge.analytics.schema.tables import TABLES

BITS = {"SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
COLUMNS = [
    (table, name, BITS[kind]) for table in TABLES for name, kind in table.types.items() if kind in BITS
]


@pytest.mark.parametrize("huge", [2**80, 10**300], ids=["80 bits", "300 digits"])
@pytest.mark.parametrize(
    ("table", "name", "bits"), COLUMNS, ids=lambda value: getattr(value, "name", str(value))
)
def test_a_number_outside_of_its_column_is_unknown_and_counted(
    table: object, name: str, bits: int, huge: int
) -> None:
    largest, counters = 2 ** (bits - 1) - 1, Counter[str]()
    values = [largest, largest + 1, None, -largest - 1, -largest - 2, huge]
    found = frame(table, {name: values}, [name], counters=counters)[name].to_list()  # type: ignore[arg-type]
    assert found == [largest, None, None, -largest - 1, None, None]
    assert list(counters.values()) == [3]
    assert next(iter(counters)).endswith(f".{name}")


def test_numbers_that_fit_are_not_counted() -> None:
    counters = Counter[str]()
    table, name, _ = COLUMNS[0]
    frame(table, {name: [1, None]}, [name], counters=counters)
    assert not counters


def test_what_is_no_number_is_an_error_of_ours() -> None:
    table, name, _ = COLUMNS[0]
    with pytest.raises(TypeError):
        frame(table, {name: ["1"]}, [name])

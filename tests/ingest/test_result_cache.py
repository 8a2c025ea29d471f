"""Results that are computed once and forgotten when the table is full."""

from __future__ import annotations

import pytest

from streamgauge.ingest.result_cache import ResultCache


def test_results_are_computed_once_until_the_table_is_full() -> None:
    asked: list[int] = []

    def half(number: int) -> int:
        asked.append(number)
        return number // 2

    cache = ResultCache(half, 2)
    assert [cache[n] for n in (4, 4, 6, 4)] == [2, 2, 3, 2]
    assert asked == [4, 6]
    assert cache[8] == 4  # clears the others
    assert (cache[4], asked, len(cache)) == (2, [4, 6, 8, 4], 2)


def test_an_exception_is_not_kept() -> None:
    cache = ResultCache(int, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            cache["x"]
    assert not cache

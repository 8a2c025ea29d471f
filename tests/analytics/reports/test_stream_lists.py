"""Conditions of the page Streams."""

from __future__ import annotations

import duckdb
import pytest

from streamgauge.analytics.reports import stream_lists


def test_duration_is_a_bin_of_one_metric() -> None:
    condition = stream_lists.condition(filters={"duration": ["ttft_ns:100-146.78"]})
    values = "FROM (VALUES (99), (100), (146), (147), (NULL)) AS streams(ttft_ns)"
    with duckdb.connect() as connection:
        assert connection.sql(f"SELECT list(ttft_ns) {values} WHERE {condition}").fetchone() == ([100, 146],)
    assert stream_lists.duration_text("ttft_ns:100000000-150000000") == "TTFT 100 ms – 150 ms"


@pytest.mark.parametrize("text", ["", "ttft_ns", "stream_id:1-2", "ttft_ns:1-2 OR TRUE", "ttft_ns:1e9-nan"])
def test_other_texts_of_a_duration_select_nothing_in_particular(text: str) -> None:
    assert stream_lists.condition(filters={"duration": [text]}) == "TRUE"
    assert stream_lists.duration_text(text) == text

"""Values of filters with their counts: escaped, linked, and selected ones removable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streamgauge.analytics.reports import stream_lists
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard.filters import facets_markup
from tests.tables import tables

HOSTILE = "<b onclick='x'>\"&"
NAMES = ("outcome", "model")


def address(name: str, values: Sequence[str]) -> str:
    return f"?{name}={','.join(values)}"


def test_hostile_values_stay_text() -> None:
    html = facets_markup([("model", HOSTILE, 3), ("model", "b", 1)], ["model"], {}, address)
    assert "<b" not in html
    assert "'x'" not in html
    assert html.count("&lt;b onclick=") == 3


def test_selected_value_is_named_and_its_link_removes_it() -> None:
    counts = [("outcome", "ok", 1234), ("model", "a", 3), ("model", "b", 2)]
    html = facets_markup(counts, NAMES, {"outcome": ["ok"]}, address)
    assert (
        '<a href="?outcome=" target="_self" title="ok" aria-current="true"><span>✓ ok</span><span>1,234</span>'
        in html
    )
    assert 'href="?model=b"' in html


def test_filter_that_would_change_nothing_is_left_out() -> None:
    assert facets_markup([("outcome", "ok", 5)], NAMES, {}, address) == ""


@pytest.mark.parametrize(
    ("facet", "column"), [("outcome", "outcome"), ("cause", "error_type"), ("status", "http_status::VARCHAR")]
)
def test_counts_equal_those_of_sql(facet: str, column: str, streams_data: Path) -> None:
    now = datetime.now(UTC)
    ask = tables(streams_data).query
    selection = Selection(
        since=now - timedelta(days=1), until=now + timedelta(hours=1), gateways=("litellm",)
    )
    where = stream_lists.condition(filters={"outcome": ("ok", "http_error", "client_abort")})
    found = {name: n for of, name, n in stream_lists.facets(ask, selection, where).rows() if of == facet}
    expected = ask(f"""
        SELECT {column} AS name, count(*) AS n FROM streams
        WHERE gateway = 'litellm' AND outcome IN ('ok', 'http_error', 'client_abort') AND {column} IS NOT NULL
        GROUP BY ALL ORDER BY n DESC, name LIMIT {stream_lists.TOP_VALUES}""")
    assert found == dict(expected.iter_rows())
    assert found

"""The line of a session about its prompt cache, and how often reasons agree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from streamgauge.analytics.reports import pipeline
from streamgauge.analytics.reports.sessions import CacheMisses, cache_misses
from tests.analytics.schema.prices import price, set_prices
from tests.analytics.schema.test_wasted_tokens import START_US, fill
from tests.analytics.stores import plain_tables

MINUTE_US = 60_000_000
START = datetime.fromtimestamp(START_US / 1e6, UTC)
MISS = {
    "cache_miss_reason": "tools_changed",
    "cache_missed_tokens": 600,
    "cache_miss_segment": "order of tools",
}


def found(*rows: dict[str, Any]) -> CacheMisses | None:
    """Of a session with these requests, one a minute, of 1,000 input tokens for 2 USD per million, cached ones for 0."""
    with plain_tables() as con:
        set_prices(con, price("m", 2, 10, cached_input=0))
        fill(
            con,
            *(
                {"session_id": "s", "started_at": START_US + n * MINUTE_US, "token_source": "usage", **row}
                for n, row in enumerate(rows)
            ),
        )
        return cache_misses(lambda sql: con.execute(sql).pl(), "s", START, START + timedelta(hours=1))


def test_reason_of_most_missed_tokens() -> None:
    other = {"cache_miss_reason": "expired", "cache_missed_tokens": 700}
    line = found({}, {}, MISS, other, MISS)
    assert line is not None
    assert (line.since, line.what) == (
        START + timedelta(minutes=2),
        "the order of tools changes between requests",
    )
    assert line.share == pytest.approx(1200 / 3000)
    assert (line.cost_per_hour, line.currency) == (pytest.approx(1200 * 2e-6 * 30), "USD")


@pytest.mark.parametrize("rows", [[{}, {}], [MISS, {}], [{**MISS, "cache_missed_tokens": 10}] * 3])
def test_no_line(rows: list[dict[str, Any]]) -> None:
    assert found(*rows) is None


def test_unknown_reason_of_a_provider_is_shown_by_its_name() -> None:
    line = found(*[{**MISS, "cache_miss_reason": "text_format_changed"}] * 2)
    assert line is not None
    assert line.what == "text format changes between requests"


def test_agreement_of_reasons() -> None:
    counters = pl.DataFrame(
        {"name": ["cache_miss_reasons.both", "cache_miss_reasons.equal", "x"], "value": [9, 8, 5]}
    )
    assert pipeline.equal_cache_miss_reasons(counters) == (9, 8)
    assert pipeline.equal_cache_miss_reasons(counters.clear()) == (0, 0)

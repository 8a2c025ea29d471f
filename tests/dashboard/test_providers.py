"""The fastest and cheapest place of a model: which are compared, and by which values."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streamgauge.analytics.reports import overview, providers
from tests.analytics.schema.prices import price, set_prices
from tests.dashboard.generated_store import S, filling, insert, roll_up
from tests.dashboard.written_report import last, query_of


def requests(
    number: int, model: str, provider: str, gateway: str, ttft_s: float, **values: Any
) -> Iterator[dict[str, Any]]:
    for n in range(number):
        yield {
            "stream_id": uuid4(), "started_at": datetime.now(UTC) - timedelta(seconds=60 + n), "outcome": "ok", "operation": "chat",
            "request_model": model, "provider": provider, "gateway": gateway, "ttft_ns": round(ttft_s * S), "itl_ns": 1e7,
            "input_tokens": 100, "output_tokens": 101, "token_source": "usage", "end_ns": 2 * S, "http_status": 200,
        } | values  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("providers")
    with filling(folder) as connection:
        set_prices(connection, price("m", 1, 10), price("dear/m", 2, 20), price("few", 1, 1))
        insert(connection, "streams", [
            # The prompts of the dear place are short: a mean of its own requests would call it the cheapest.
            *requests(30, "openai/m", "openai", "a", 0.5), *requests(30, "dear/m", "dear", "b", 0.2, input_tokens=1, output_tokens=21),
            *requests(5, "m", "tiny", "c", 0.01), *requests(40, "few", "x", "a", 0.5), *requests(5, "few", "y", "b", 0.1),
            *requests(30, "same", "x", "a", 0.5), *requests(30, "same", "y", "b", 0.51), *requests(9, "alone", "x", "a", 0.5),
        ])  # fmt: skip
        roll_up(connection)
    return folder


def test_names_of_one_model_are_compared_and_few_requests_are_not(data: Path) -> None:
    rows = providers.table(query_of(data), last(1)).to_dicts()
    found = {(row["model"], row["provider"]): row["best"] for row in rows}
    assert found["m", "openai"] is None  # `dear/m` is another model: no known provider
    assert found["m", "tiny"] is None
    assert found["few", "x"] is found["few", "y"] is None
    assert found["same", "x"] is found["same", "y"] is None
    assert rows[-1]["model"] == "alone" or rows[-1]["model"] == "dear/m"


def test_values_of_a_place_are_those_of_the_overview(data: Path) -> None:
    query, chosen = query_of(data), last(1)
    for row in providers.table(query, chosen).to_dicts():
        if row["model"] != "few":
            continue
        selection = chosen.filtered({"model": ("few",), "gateway": (row["gateway"],)})
        summary = overview.summary_now_and_before(query, selection)["now"]
        keys = ("requests", "error_rate", "ttft_p50_ns", "ttft_p95_ns", "itl_p50_ns", "tps_user_p50")
        assert {key: row[key] for key in keys} == {key: summary[key] for key in keys}


def test_fastest_and_cheapest_are_judged_by_the_same_tokens(tmp_path: Path) -> None:
    with filling(tmp_path) as connection:
        set_prices(connection, price("m", 1, 10), price("azure/m", 2, 20))
        insert(connection, "streams", [
            *requests(30, "openai/m", "openai", "a", 0.5),
            *requests(30, "azure/m", "azure", "b", 0.2, input_tokens=1, output_tokens=21),
        ])  # fmt: skip
        roll_up(connection)
    rows = {row["provider"]: row for row in providers.table(query_of(tmp_path), last(1)).to_dicts()}
    assert {name: row["best"] for name, row in rows.items()} == {"openai": "cheapest", "azure": "fastest"}
    # Both at the means of the model, 50.5 tokens in and 61 out; and the median answer of 61 tokens.
    assert rows["openai"]["typical_cost"] == pytest.approx((50.5 * 1 + 61 * 10) / 1e6)
    assert rows["azure"]["typical_cost"] == pytest.approx((50.5 * 2 + 61 * 20) / 1e6)
    assert rows["azure"]["answer_ns"] == pytest.approx(0.2e9 + 60 * 1e7)
    assert rows["openai"]["typical_cost_text"] == "0.6605 USD"

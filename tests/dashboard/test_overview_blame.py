"""The overview's split of the delay and its error budgets: those of the streams and of the views."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.reports import blame, formatting, hops, objectives
from streamgauge.analytics.reports.selection import Selection
from tests.dashboard.app_test import open_page, page_text
from tests.tables import tables


def day() -> Selection:
    now = datetime.now(UTC)
    return Selection(since=now - timedelta(days=1), until=now)


def split_streams(data: Path) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """(rows of all streams that are no inner stream, rows of hops by outer stream)."""
    query = tables(data).query
    stored = query("SELECT * FROM hops LIMIT 20000").to_dicts()
    inner = {hop["inner_stream_id"] for hop in stored}
    by_outer: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for hop in stored:
        by_outer[hop["outer_stream_id"]].append(hop)
    rows = query("SELECT * FROM streams LIMIT 20000").to_dicts()
    return [row for row in rows if row["stream_id"] not in inner], by_outer


def test_split_is_the_median_of_the_splits_of_the_streams(streams_data: Path) -> None:
    rows, by_outer = split_streams(streams_data)
    query = tables(streams_data).query
    found = blame.quantiles(query, day())
    parts: dict[str, list[int]] = defaultdict(list)
    for of_stream in blame.of_streams(query, [row["stream_id"] for row in rows]).values():
        for cause, value in of_stream.whole.items():
            parts[cause].append(value)
    assert found["streams"] == len(rows) < 400
    assert set(parts) == set(blame.CAUSES)
    for cause, values in parts.items():
        assert found[f"{cause}_p50_ns"] == pytest.approx(statistics.median(values), abs=1)
    assert len(parts["gateway"]) == len([row for row in rows if by_outer[row["stream_id"]]])


def test_streams_behind_a_gateway_count_if_they_alone_are_selected(streams_data: Path) -> None:
    query = tables(streams_data).query
    inner = query("SELECT inner_stream_id FROM hops WHERE inner_gateway = 'vllm-spare'").height
    found = blame.quantiles(query, replace(day(), gateways=("vllm-spare",)))
    assert found["streams"] == inner > 0


def test_burning_objectives_have_their_worst_source(streams_data: Path) -> None:
    query = tables(streams_data).query
    found = objectives.burning(query, day()).to_dicts()
    worst = found[0]
    assert (worst["objective"], worst["indicator"], worst["severity"]) == ("interactive", "goodput", "page")
    of_worst = query("FROM burn_rates WHERE objective = 'interactive' AND severity = 'page'").to_dicts()
    assert worst["burn_1h"] == max(row["burn_1h"] or 0 for row in of_worst)
    assert len({(row["objective"], row["indicator"]) for row in found}) == len(found)
    assert objectives.burning(query, replace(day(), models=("none",))).is_empty()


@pytest.mark.parametrize(
    ("data_s", "text"),
    [
        (9 * 86400, "16.0× (1 h), 14.0× (6 h), 2.00× (3 d)"),
        (2 * 3600, "16.0× (1 h), 14.0× (2 h of data instead of 6 h and 3 d)"),
        (2400, "16.0× (40 min of data instead of 1 h, 6 h and 3 d)"),
    ],
)
def test_burn_rates_of_windows_longer_than_the_data_say_so(data_s: float, text: str) -> None:
    row = {"burn_1h": 16.0, "burn_6h": 14.0, "burn_3d": 14.0 if data_s < 86400 else 2.0, "data_s": data_s}
    assert objectives.burn_text(row) == text


def test_overview_shows_split_gateways_and_burning_objectives(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = tables(streams_data).query
    app = open_page(streams_data, monkeypatch, range="24h")
    assert not app.exception
    text = page_text(app)
    assert "**Delay by part**" in text
    assert "**interactive**, goodput: burn rate" in text
    bars = "\n".join(str(html.proto.body) for html in app.get("html"))
    split = blame.quantiles(query, day())
    assert f"gateway {formatting.duration(split['gateway_p50_ns'])}" in bars
    (gateway,) = hops.by_gateway(query, day()).to_dicts()
    added = formatting.duration(gateway["added_ttft_p50_ns"])
    assert any(f"+{added} TTFT by gateway litellm" in link.label for link in app.page_link)

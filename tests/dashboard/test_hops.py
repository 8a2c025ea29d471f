"""The page Hops: numbers equal a recomputation without SQL, and each state has its message."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from streamgauge.analytics.reports import formatting, hops
from streamgauge.analytics.reports.hops import CAUSES, hop_phases
from streamgauge.analytics.reports.selection import Selection
from tests.dashboard.app_test import open_page, page_text, table
from tests.tables import tables

Rows = list[dict[str, Any]]


def day() -> Selection:
    now = datetime.now(UTC)
    return Selection(since=now - timedelta(days=1), until=now)


def rows(data: Path, table: str) -> Rows:
    return tables(data).query(f"SELECT * FROM {table} LIMIT 20000").to_dicts()


def known(values: Rows, column: str) -> list[float]:
    return [row[column] for row in values if row[column] is not None]


def test_gateway_numbers_equal_a_recomputation(streams_data: Path) -> None:
    stored = rows(streams_data, "hops")
    (found,) = hops.by_gateway(tables(streams_data).query, day()).to_dicts()
    last = [row for row in stored if row["lost_ns"] is None]
    assert found["gateway"] == "litellm"
    assert found["streams"] == len({row["outer_stream_id"] for row in stored}) == len(last) > 50
    assert found["added_ttft_p50_ns"] == statistics.median(known(stored, "added_ttft_ns"))
    assert found["event_p95_ns"] == statistics.median(known(stored, "added_event_p95_ns"))
    assert found["event_max_ns"] == max(known(stored, "added_event_max_ns"))
    assert found["tail_p50_ns"] == statistics.median(known(stored, "added_tail_ns"))
    assert found["stalls"] == sum(known(stored, "gateway_stall_count"))
    assert found["lost_ns"] == sum(known(stored, "lost_ns"))
    assert found["clock_error_ns"] == 400_000


def test_parts_of_the_waterfall_equal_a_recomputation_and_add_up(streams_data: Path) -> None:
    stored = rows(streams_data, "hops")
    streams = {row["stream_id"]: row for row in rows(streams_data, "streams")}
    failed: Counter[str] = Counter()
    for row in stored:
        failed[row["outer_stream_id"]] += row["lost_ns"] or 0
    parts: dict[str, list[float]] = defaultdict(list)
    for hop in stored:
        if hop["added_ttft_ns"] is None:
            continue
        outer, inner = streams[hop["outer_stream_id"]], streams[hop["inner_stream_id"]]
        lost_ns = failed[hop["outer_stream_id"]]
        own = {
            "before_ns": hop["gateway_before_ns"] - lost_ns,
            "failed_ns": lost_ns,
            "model_ttft_ns": inner["ttft_ns"],
            "first_token_ns": outer["ttft_ns"] - inner["ttft_ns"] - hop["gateway_before_ns"],
            "streaming_ns": hop["gateway_before_ns"] + inner["end_ns"] - outer["ttft_ns"],
            "tail_ns": hop["added_tail_ns"],
        }
        assert sum(own.values()) == outer["end_ns"]
        for name, value in own.items():
            parts[name].append(value)
    (found,) = hops.waterfall(tables(streams_data).query, day()).to_dicts()
    assert {name: found[name] for name in parts} == {name: statistics.median(v) for name, v in parts.items()}
    phases = hop_phases(found)
    assert [p.length_ns for p in phases] == [round(found[c]) for c in parts if found[c]]
    assert {CAUSES[p.name] for p in phases} == {"gateway", "upstream"}


def test_negative_part_has_no_length() -> None:
    row = dict.fromkeys(
        ("before_ns", "failed_ns", "model_ttft_ns", "first_token_ns", "streaming_ns", "tail_ns"), 10.0
    )
    phases = hop_phases(row | {"first_token_ns": -3.0, "tail_ns": None})
    assert [(p.start_ns, p.end_ns) for p in phases] == [(0, 10), (10, 20), (20, 30), (30, 30), (30, 40)]


def test_delays_per_event_are_distributions_over_streams(streams_data: Path) -> None:
    stored = rows(streams_data, "hops")
    found = hops.event_delays(tables(streams_data).query, day())
    for name, column in (
        ("p50", "added_event_p50_ns"),
        ("p95", "added_event_p95_ns"),
        ("max", "added_event_max_ns"),
    ):
        values, own = known(stored, column), found.filter(pl.col("name") == name)
        assert own["n"].sum() == len(values)
        assert own["cumulated"][-1] == pytest.approx(1)
        for row in own.to_dicts():
            at_most = sum(v < row["high_ns"] * (1 + 1e-9) for v in values)
            assert row["cumulated"] == pytest.approx(at_most / len(values), abs=1 / len(values))


def test_attempts_are_in_order_with_reason_and_time_lost(streams_data: Path) -> None:
    query = tables(streams_data).query
    stored = rows(streams_data, "hops")
    (kind,) = hops.failed_attempts(query, day()).to_dicts()
    lost = known(stored, "lost_ns")
    assert (kind["outcome"], kind["error_type"], kind["attempts"]) == (
        "http_error",
        "overloaded_error",
        len(lost),
    )
    assert kind["lost_p50_ns"] == statistics.median(lost)
    found = hops.attempts(query, day(), most=3).to_dicts()
    assert [row["attempt"] for row in found] == [1, 2] * 3
    assert [row["inner_outcome"] == "http_error" for row in found] == [True, False] * 3
    assert found[0]["outer_started_at"] == max(
        row["outer_started_at"] for row in stored if row["attempt"] == 2
    )


def test_changes_count_streams_and_have_an_example(streams_data: Path) -> None:
    stored = rows(streams_data, "hop_changes")
    found = hops.changes(tables(streams_data).query, day()).to_dicts()
    assert {row["what"]: row["streams"] for row in found} == Counter(row["what"] for row in stored)
    outers = len({row["outer_stream_id"] for row in rows(streams_data, "hops")})
    for row in found:
        newest = max((c for c in stored if c["what"] == row["what"]), key=lambda c: c["outer_started_at"])
        assert row["share"] == row["streams"] / outers
        assert (row["stream_id"], row["outer_value"]) == (newest["outer_stream_id"], newest["outer_value"])


def test_matched_share_counts_requests_to_gateways_with_hops(streams_data: Path) -> None:
    query = tables(streams_data).query
    to_gateway = [row for row in rows(streams_data, "streams") if row["gateway"] == "litellm"]
    matched = {row["outer_stream_id"] for row in rows(streams_data, "hops")}
    expected = [{"gateway": "litellm", "streams": len(to_gateway), "matched": len(matched)}]
    assert hops.matched_share(query, day()).to_dicts() == expected
    inner_only = replace(day(), gateways=("vllm-direct",))
    assert hops.matched_share(query, inner_only).to_dicts() == expected


def test_filters_select_hops_by_their_outer_stream(streams_data: Path) -> None:
    query = tables(streams_data).query
    streams = {row["stream_id"]: row for row in rows(streams_data, "streams")}
    chosen = replace(day(), models=("gpt-4o-mini",), clients=("c0ffee11",), gateways=("vllm-spare",))
    expected = [
        row
        for row in rows(streams_data, "hops")
        if row["model"] == "gpt-4o-mini"
        and row["inner_gateway"] == "vllm-spare"
        and streams[row["outer_stream_id"]]["client_id"] == "c0ffee11"
    ]
    found = hops.by_gateway(query, replace(chosen, gateways=("nowhere",)))
    assert found.is_empty()
    assert hops.by_gateway(query, chosen)["streams"].sum() == len(expected)
    assert hops.by_gateway(query, chosen.before()).is_empty()


def test_page_has_one_sentence_per_gateway(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = hops.by_gateway(tables(streams_data).query, day()).to_dicts()
    app = open_page(streams_data, monkeypatch, "hops", range="24h")
    assert not app.exception
    text = page_text(app)
    assert (
        f"**litellm** adds **{formatting.duration(row['added_ttft_p50_ns'])}** to the TTFT (p50) and "
        f"**{formatting.duration(row['event_p95_ns'])}** per output event (p95)"
    ) in text
    assert "clock error up to ± 400 µs" in text
    assert "and not matched: 3." in text
    assert len(app.get("vega_lite_chart")) == 3
    for label in ("Delays by gateways", "Failed attempts", "Attempts", "Changes by gateways"):
        assert table(app, label)


def test_page_without_hops_says_what_to_deploy(one_stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(one_stream, monkeypatch, "hops", range="24h")
    assert not app.exception
    assert "No hops yet" in page_text(app)
    assert "find-who-is-slow" in page_text(app)


def test_page_without_matching_hops_says_so(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, "hops", range="24h", model="none")
    assert not app.exception
    assert "No matched streams in the time range" in page_text(app)

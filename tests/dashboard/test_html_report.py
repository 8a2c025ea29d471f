"""The report: its figures are those of the reports and pages, names stay text, and its size is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.html_report.document import NOT_OF_SESSIONS, session_range
from streamgauge.analytics.html_report.sections import SECTIONS
from streamgauge.analytics.reports import formatting, latency, overview, sessions, spend, turn_timeline
from streamgauge.analytics.reports.objectives import stored_objectives
from streamgauge.analytics.reports.selection import Selection
from tests.dashboard.generated_incident import GATEWAY, MODEL, with_incident
from tests.dashboard.generated_store import S, filled, filling, insert, roll_up
from tests.dashboard.written_report import Written, last, query_of, written

MAX_BYTES = 1_000_000
DAY = 24.0


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    return with_incident(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def with_alerts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("alerts"), streams=60, hours=0.5)


@pytest.fixture(scope="module")
def chosen(incident: tuple[Path, datetime]) -> Selection:
    return last(DAY)


@pytest.fixture(scope="module")
def found(incident: tuple[Path, datetime], chosen: Selection) -> Written:
    return written(incident[0], chosen)[0]


def test_all_sections_are_there_and_the_verdict_is_that_of_the_diagnosis(
    incident: tuple[Path, datetime], chosen: Selection, found: Written
) -> None:
    assert [name for name in found.sections if name] == list(SECTIONS)
    query = query_of(incident[0])
    narrowed = Selection(since=overview.data_began(query).replace(microsecond=0), until=chosen.until)  # type: ignore[union-attr]
    cause = diagnose(query, narrowed, stored_objectives(query), overview.label_names(query)).causes[0]
    assert cause.onset is not None
    assert f"{MODEL} @ {GATEWAY}" in found.sections["verdict"]
    text = found.sections["incidents"]
    assert f"{cause.onset:%Y-%m-%d %H:%M:%S} (95 %: {cause.onset_earliest:%Y-%m-%d %H:%M:%S} to " in text
    assert f"{cause.affected:,} of {cause.streams:,} streams" in text
    examples = found.table("incidents", "Newest or slowest requests that cause 1 affects")
    assert {(row["Model"], row["Gateway"], row["HTTP"]) for row in examples} == {(MODEL, GATEWAY, "429")}
    assert all(
        row["Request id of the provider"].startswith("req_") and UUID(row["Stream id"]) for row in examples
    )


def test_quantiles_by_model_and_gateway_are_those_of_the_page_latency(
    incident: tuple[Path, datetime], chosen: Selection, found: Written
) -> None:
    query = query_of(incident[0])
    for by in ("model", "gateway"):
        rows = {row[by.capitalize()]: row for row in found.table("latency", f"Latency by {by}")}
        for metric in ("ttft", "itl"):
            source = latency.source_of(query, chosen, f"{metric}_ns", by)
            assert source is not None
            expected = latency.table(query, source, f"{metric}_ns").to_dicts()
            assert {row["name"] for row in expected} == set(rows)
            for row in expected:
                shown = [rows[row["name"]][f"{metric.upper()} {q} ms"] for q in ("p50", "p95", "p99")]
                assert shown == [f"{row[f'{q}_ns'] / 1e6:,.1f}" for q in ("p50", "p95", "p99")]


def test_costs_by_model_and_label_are_those_of_the_page_spend(
    incident: tuple[Path, datetime], chosen: Selection, found: Written
) -> None:
    query = query_of(incident[0])
    shown = [rows for where, label, rows in found.tables if (where, label) == ("spend", "Spend by team")]
    for (_, *rows), currency in zip(shown, ("USD", "EUR"), strict=True):
        _, *expected = spend.table(query, chosen, "team", currency).to_dicts()
        assert [(row[0], row[2]) for row in rows] == [(e["name"], f"{e['cost']:,.4f}") for e in expected]


def test_filters_leave_out_what_is_about_other_streams(
    incident: tuple[Path, datetime], chosen: Selection
) -> None:
    kept = {"latency", "spend"}
    found, _ = written(
        incident[0], chosen.filtered({"gateway": ("edge-eu",)}), without=tuple({*SECTIONS} - kept)
    )
    assert {row["Gateway"] for row in found.table("latency", "Latency by gateway")} == {"edge-eu"}
    assert "gateway edge-eu" in found.sections[""]
    assert "Budgets in their current period" not in found.sections["spend"]


def test_sections_can_be_left_out(incident: tuple[Path, datetime], chosen: Selection) -> None:
    left_out = {*SECTIONS} - {"objectives", "definitions"}
    found, _ = written(incident[0], chosen, without=tuple(left_out), title="Q4 <draft>")
    assert {*SECTIONS} - {*found.sections} == left_out
    assert "Q4 <draft>" in found.sections[""]


@pytest.mark.parametrize(("filters", "shown"), [
    ({}, True), ({"gateway": ("litellm",)}, True), ({"gateway": ("edge-eu",)}, False), ({"label": ("team=search",)}, False),
])  # fmt: skip
def test_alerts_of_the_range_are_those_of_the_chosen_gateway(
    with_alerts: Path, filters: dict[str, tuple[str, ...]], shown: bool
) -> None:
    found, _ = written(with_alerts, last(1).filtered(filters), without=tuple({*SECTIONS} - {"incidents"}))
    assert ("silent_stream" in found.sections["incidents"]) == shown


def test_session_has_its_turns_tools_cost_and_critical_path(tmp_path: Path) -> None:
    until = datetime.now(UTC)
    with filling(tmp_path) as connection:
        insert(connection, "streams", [
            {"stream_id": UUID(int=n + 1), "session_id": session, "parent_session_id": parent, "turn": number, "outcome": outcome,
             "request_model": "gpt-5", "started_at": until - timedelta(seconds=60 - at_s), "end_ns": 2 * S, "tool_call_count": 1}
            for n, (session, parent, number, at_s, outcome) in enumerate(
                [("main", None, 1, 0, "ok"),
                 ("child", "main", 1, 3, "ok"), ("main", None, 1, 8, "http_error"), ("main", None, 2, 30, "ok")])
        ])  # fmt: skip
        roll_up(connection)
    query = query_of(tmp_path)
    selection = session_range(query, ["main"])
    assert selection is not None
    assert session_range(query, ["main", "nobody"]) is None
    found, _ = written(tmp_path, selection, ["main"], without=NOT_OF_SESSIONS)
    assert {*found.sections} == {"", "sessions", "definitions"}
    row: Any = sessions.one(query, "main")
    expected = turn_timeline.one(query, "main", 1)
    assert expected is not None
    text = found.sections["sessions"]
    assert turn_timeline.answer(expected) in text
    assert "Session report" in found.sections[""]
    assert [len(rows) for _, label, rows in found.tables if label == "Sessions"] == [2]
    assert formatting.duration(row["model_ns"]) in text
    bars = [attributes["class"] for tag, attributes in found.tags if tag == "rect"]
    assert "failed" in bars
    assert {*bars} & {"tool", "subagent"}
    # A run has few sessions: their turns are shown without being asked for.
    assert turn_timeline.answer(expected) in written(tmp_path, last(1))[0].sections["sessions"]


def test_session_of_requests_that_all_failed_before_a_dialect_was_known(tmp_path: Path) -> None:
    with filling(tmp_path) as connection:
        insert(connection, "streams", [
            {"stream_id": UUID(int=n + 1), "session_id": "main", "turn": 1, "outcome": "connect_error", "request_model": "gpt-5",
             "started_at": datetime.now(UTC) - timedelta(seconds=60 - n), "end_ns": S, "error_type": "ConnectionRefusedError"}
            for n in range(30)  # so many that they are in a file with statistics
        ])  # fmt: skip
        roll_up(connection)
    found = written(tmp_path, last(1))[0]
    assert "Errors\n30" in found.sections["sessions"]
    assert "Turn 1" in found.sections["sessions"]
    # Nothing has a TTFT, so there is no empty chart of it.
    assert "Error rate" in found.sections["trends"]
    assert "TTFT" not in found.sections["trends"]
    assert found.sections[""].count("UTC") == 1


def test_hostile_names_stay_text_and_the_report_stays_small(tmp_path: Path) -> None:
    hostile = (
        "\"'></td></style><script>alert(1)</script><img src=http://x.example/ onerror=alert(1)>{{ 7*7 }}"
    )
    start = datetime.now(UTC) - timedelta(minutes=50)
    with filling(tmp_path) as connection:
        connection.execute("INSERT INTO labels VALUES ('team', 'header:x-team', true, true)")
        insert(connection, "streams", [
            {"stream_id": UUID(int=n + 1), "started_at": start + timedelta(seconds=n), "outcome": "http_error" if n % 7 == 0 else "ok",
             "request_model": f"{hostile}{n % 300} {'m' * 2_000}", "gateway": f"{hostile}{n % 200}", "client_id": f"{hostile}{n}",
             "error_type": f"{hostile}{n}" if n % 7 == 0 else None, "error_message": "a prompt", "error_phase": "pre_headers",
             "request_id": f"{hostile}{'r' * 2_000}", "session_id": f"{hostile}{n % 40}", "turn": 1, "client_app": hostile, "end_ns": 2 * S,
             "ttft_ns": S, "itl_ns": 10_000_000.0, "output_tokens": 10, "input_tokens": 10, "provider": f"{hostile}{n % 50}",
             "labels": {"team": f"{hostile}{n % 90}"}, "operation": "chat", "http_status": 500 if n % 7 == 0 else 200}
            for n in range(2_400)
        ])  # fmt: skip
        roll_up(connection)
    found, html = written(tmp_path, last(1).filtered({"label": ()}), title=hostile)
    assert len(html) <= MAX_BYTES
    assert {tag for tag, _ in found.tags} & {"script", "img", "link", "iframe", "object"} == set()
    assert [a for _, attributes in found.tags for a in attributes if a.startswith("on") or a == "src"] == []
    assert "<script>alert(1)</script>" in found.sections["latency"]
    assert "{{ 7*7 }}" in found.sections["latency"]
    assert b"a prompt" not in html


@pytest.mark.parametrize("streams", [0, 20])
def test_empty_selection_says_why(tmp_path: Path, streams: int) -> None:
    data = filled(tmp_path, streams=streams, hours=0.2)
    old = Selection(since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2020, 1, 2, tzinfo=UTC))
    found, _ = written(data, old)
    assert {*found.sections} == {"", "nothing"}
    assert ("no requests yet" in found.sections["nothing"]) == (streams == 0)
    assert ("Choose a longer range" in found.sections["nothing"]) == (streams > 0)

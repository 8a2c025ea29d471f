"""The page Sessions: numbers equal a recomputation without SQL, turns on a time line, and messages."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from streamgauge.analytics.reports import sessions, turn_timeline
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.reports.sessions import Bar, bars
from streamgauge.dashboard.charts.stream_charts import session_turns
from tests.dashboard.app_test import links, metric_value, open_page, page_text, table
from tests.dashboard.generated_store import filling, insert
from tests.tables import tables

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
S = 10**9


def day() -> Selection:
    now = datetime.now(UTC)
    return Selection(since=now - timedelta(days=1), until=now)


def request(at_s: float, length_s: float, **values: Any) -> dict[str, Any]:
    row = {
        "started_at": NOON + timedelta(seconds=at_s),
        "end_ns": int(length_s * S),
        "turn": None,
        "pause": None,
    }
    return row | {"pause_ns": None, "subagent_ns": None} | values


def shapes(found: list[Bar]) -> list[tuple[int, str, float, float]]:
    return [(b.turn, b.kind, b.start_ns / S, b.end_ns / S) for b in found]


SESSION = [
    request(0, 2, turn=1),
    request(5, 1, turn=1, pause="tool", pause_ns=3 * S),
    request(66, 4, turn=2, pause="user", pause_ns=60 * S),
]


def test_requests_and_pauses_are_bars_in_real_time() -> None:
    assert shapes(bars(SESSION, with_user_waits=True)) == [
        (1, "model", 0, 2), (1, "tool", 2, 5), (1, "model", 5, 6), (2, "user", 6, 66), (2, "model", 66, 70),
    ]  # fmt: skip


def test_active_time_leaves_out_user_waits() -> None:
    assert shapes(bars(SESSION, with_user_waits=False)) == [
        (1, "model", 0, 2), (1, "tool", 2, 5), (1, "model", 5, 6), (2, "model", 6, 10),
    ]  # fmt: skip


def test_pause_that_is_mostly_a_wait_for_subagents_has_their_kind() -> None:
    for subagent_s, kind in ((1, "tool"), (2, "subagent")):
        rows = [request(0, 2), request(5, 1, pause="tool", pause_ns=3 * S, subagent_ns=subagent_s * S)]
        assert shapes(bars(rows, with_user_waits=True))[1] == (1, kind, 2, 5)


def test_page_of_a_session_lists_its_subagents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = datetime.now(UTC)
    with filling(tmp_path) as connection:
        rows = [
            {"stream_id": str(UUID(int=n + 1)), "session_id": session, "parent_session_id": parent, "turn": 1, "outcome": "ok",
             "client_app": "claude-cli/2", "started_at": until - timedelta(seconds=60 - at_s), "end_ns": S, "tool_call_count": 1}
            for n, (session, parent, at_s) in enumerate([("main", None, 0), ("child", "main", 2), ("main", None, 5)])
        ]  # fmt: skip
        insert(connection, "streams", rows)
    app = open_page(tmp_path, monkeypatch, "sessions", session="main")
    [row] = table(app, "Subagents of the session")
    assert (row["Agent"], row["Program"]) == ("↳ subagent", "claude-cli/2")
    [addresses] = links(app, "Subagents of the session")
    assert any("session=child" in address for address in addresses)


def test_unknown_turns_follow_from_the_pauses() -> None:
    unknown = [row | {"turn": None} for row in SESSION]
    assert bars(unknown, with_user_waits=True) == [
        Bar(b.turn, b.kind, b.start_ns, b.end_ns, unknown[SESSION.index(dict(b.request))])
        for b in bars(SESSION, with_user_waits=True)
    ]


def test_session_numbers_equal_a_recomputation(streams_data: Path) -> None:
    query = tables(streams_data).query
    by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in query(
        "SELECT * FROM streams WHERE session_id IS NOT NULL ORDER BY started_at LIMIT 20000"
    ).to_dicts():
        by_session[row["session_id"]].append(row)
    found = sessions.table(query, day(), limit=1000).to_dicts()
    assert {row["session_id"] for row in found} == set(by_session)
    for row in found:
        requests = by_session[row["session_id"]]
        ends = [r["started_at"] + timedelta(microseconds=r["end_ns"] // 1000) for r in requests]
        assert row["requests"] == len(requests)
        assert row["turns"] == requests[-1]["turn"]
        assert row["output_tokens"] == (sum(r["output_tokens"] or 0 for r in requests) or None)
        tool_s = user_s = 0.0
        for before, after, end in zip(requests, requests[1:], ends, strict=False):
            pause_s = (after["started_at"] - end).total_seconds()
            if after["turn"] == before["turn"]:
                tool_s += pause_s
            else:
                user_s += pause_s
        assert row["tool_ns"] / S == pytest.approx(tool_s, abs=1e-3)
        assert row["user_wait_ns"] / S == pytest.approx(user_s, abs=1e-3)
        whole_s = (ends[-1] - requests[0]["started_at"]).total_seconds()
        assert (row["model_ns"] + row["tool_ns"] + row["user_wait_ns"]) / S == pytest.approx(
            whole_s, abs=1e-3
        )


@pytest.mark.parametrize("order", list(sessions.ORDERS))
def test_list_is_in_the_chosen_order(order: str, streams_data: Path) -> None:
    found = sessions.table(tables(streams_data).query, day(), order=order, limit=20)
    column = {
        "newest": None,
        "most requests": "requests",
        "most output": "output_tokens",
        "most errors": "errors",
    }[order]
    assert 1 < len(found) <= 20
    if column:
        assert found[column].to_list() == sorted(found[column], reverse=True)


def test_page_lists_sessions_and_links_to_them(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = sessions.count(tables(streams_data).query, day())
    app = open_page(streams_data, monkeypatch, "sessions", range="24h", order="most requests")
    assert not app.exception
    shown = table(app, "Sessions")
    assert f"Time of {len(shown)} of {counts['sessions']} sessions" in page_text(app)
    session_id = parse_qs(urlsplit(links(app, "Sessions")[0][0]).query)["session"][0]
    app = open_page(streams_data, monkeypatch, "sessions", session=session_id)
    assert not app.exception
    assert metric_value(app, "Requests") == shown[0]["Requests"]
    assert len(app.get("vega_lite_chart")) == 1
    requests = table(app, "Requests of the session")
    assert [int(row["Request"]) for row in requests] == list(range(1, len(requests) + 1))
    stream = parse_qs(urlsplit(links(app, "Requests of the session")[0][0]).query)["id"][0]
    app_of_session = app
    app = open_page(streams_data, monkeypatch, "stream", id=stream)
    assert any("Session of this stream, turn 1" in link.label for link in app.page_link)
    opened = [link for row in links(app_of_session, "Requests of the session") for link in row]
    turns = [parse_qs(urlsplit(link).query)["turn"][0] for link in opened if "turn=" in link]
    assert turns == [row["Turn"] for row in requests]


def test_page_of_a_turn_answers_what_took_its_time(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = tables(streams_data).query
    session_id = query(
        "SELECT session_id FROM session_turns WHERE pause = 'tool' AND turn = 1 GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    )["session_id"][0]
    found = turn_timeline.one(query, session_id, 1)
    assert found is not None
    assert sum(turn_timeline.parts_ns(found).values()) == found.length_ns
    app = open_page(streams_data, monkeypatch, "sessions", session=session_id, turn="1")
    assert not app.exception
    assert turn_timeline.answer(found).partition(":")[0] in page_text(app)
    assert len(app.get("vega_lite_chart")) == len(app.get("download_button")) == 1
    rows = table(app, "What ran in the turn")
    assert {row["Part"] for row in rows} == {"model", "tool"}
    assert len(rows) == len(found.activities)
    app = open_page(streams_data, monkeypatch, "sessions", session=session_id, turn="99")
    assert not app.exception
    assert "Turn not found" in page_text(app)


def test_name_of_a_turn_on_the_time_line_opens_it() -> None:
    rows = [
        row | {"request": 1, "stream_id": "i", "model": "m", "outcome": "ok", "session_id": "a#b&c"}
        for row in SESSION
    ]
    drawn = session_turns(bars(rows, with_user_waits=True)).to_dict()
    addresses = {
        row["turn"]: urlsplit(row["turn_link"]) for data in drawn["datasets"].values() for row in data
    }
    found = {turn: parse_qs(address.query) for turn, address in addresses.items()}
    assert found == {f"turn {n}": {"session": ["a#b&c"], "turn": [str(n)]} for n in (1, 2)}


@pytest.mark.parametrize("name", ["none", "o'brien; --", "<b>&%20"])
def test_unknown_session_shows_message(
    name: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(streams_data, monkeypatch, "sessions", session=name)
    assert not app.exception
    assert "Session not found" in page_text(app)


def test_page_without_sessions_says_how_to_name_one(
    one_stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(one_stream, monkeypatch, "sessions", range="24h")
    assert not app.exception
    assert "No sessions yet" in page_text(app)
    assert "--session-header" in page_text(app)


def test_page_of_a_session_shows_what_fills_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime.now(UTC) - timedelta(seconds=60)
    with filling(tmp_path) as connection:
        ids = [str(UUID(int=n + 1)) for n in range(2)]
        insert(connection, "streams", [
            {"stream_id": stream_id, "session_id": "main", "turn": n + 1, "outcome": "ok", "started_at": at + timedelta(seconds=n),
             "end_ns": S, "input_tokens": 1000 * (n + 1), "request_model": "m"}
            for n, stream_id in enumerate(ids)
        ])  # fmt: skip
        insert(connection, "prompt_segments", [
            {"stream_id": stream_id, "session_id": "main", "started_at": at + timedelta(seconds=n), "tool_set": 7, "tools_bytes": 1000,
             "system_bytes": 1000, "text_bytes": 2000 * (n + 1), "image_bytes": 0, "audio_bytes": 0, "file_bytes": 0, "reasoning_bytes": 0,
             "tool_call_bytes": 0, "tool_result_bytes": 2000 * n, "other_bytes": 0, "settings_bytes": 9, "calls": ["Read"][n:]}
            for n, stream_id in enumerate(ids)
        ])  # fmt: skip
        insert(connection, "prompt_tools", [
            {"stream_id": ids[0], "tool_set": 7, "position": n, "name": name, "mcp_server": server, "size": 500}
            for n, (name, server) in enumerate([("Read", None), ("mcp__db__list", "db")])
        ])  # fmt: skip
    app = open_page(tmp_path, monkeypatch, "sessions", session="main")
    text = page_text(app)
    assert "1 of 2 tools used; the others are 8 % of each request." in text
    rows = {row["Tool"]: row for row in table(app, "Carried by tool")}
    assert (rows["Read"]["Calls"], rows["mcp__db__list"]["Calls"], rows["mcp__db__list"]["MCP server"]) == (
        "1",
        "0",
        "db",
    )
    assert rows["Read"]["Tokens each"] == "125"
    app = open_page(
        tmp_path, monkeypatch, "sessions", session="main", **{"tools-by": "MCP server", "context": "bytes"}
    )
    assert [row["Tools"] for row in table(app, "Carried by MCP server")] == ["1", "1"]

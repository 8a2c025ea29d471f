"""The turn of an agent: its parts, what runs in parallel, its critical path, and its trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.reports import turn_timeline
from streamgauge.analytics.reports.turn_timeline import Activity, Turn, critical_path
from tests.analytics.stores import plain_tables
from tests.analytics.stream_records import stream_id

S = 10**9
EPOCH = "TIMESTAMPTZ '2026-11-01 00:00:00+00'"
T0 = 1_793_491_200 * S


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        yield con


def insert(con: duckdb.DuckDBPyConnection, table: str, at_s: float, **values: Any) -> None:
    names = ", ".join(f"? AS {name}" for name in values)
    con.execute(
        f"INSERT INTO {table} BY NAME SELECT {EPOCH} + to_microseconds(?) AS started_at, {names}",
        [round(at_s * 1e6), *values.values()],
    )


def request(con: duckdb.DuckDBPyConnection, number: int, at_s: float, end_s: float, **values: Any) -> None:
    row = {
        "stream_id": stream_id(number), "span_id": f"{number:016x}", "end_ns": round((end_s - at_s) * S), "outcome": "ok",
        "tap": "t", "session_id": "s", "turn": 1, "request_model": "m", "operation": "chat", "dialect": "anthropic", "tool_call_count": 0,
    }  # fmt: skip
    insert(con, "streams", at_s, **row | values)


def call(con: duckdb.DuckDBPyConnection, number: int, at_s: float, end_s: float, **values: Any) -> None:
    called = {
        "session_id": None,
        "turn": None,
        "request_model": None,
        "operation": "tools/call",
        "dialect": "mcp",
    }
    request(con, number, at_s, end_s, **called | {"tool_call_count": None} | values)


def span(con: duckdb.DuckDBPyConnection, at_s: float, end_s: float, name: str, **values: Any) -> None:
    row = {
        "span_id": f"{name} {at_s}",
        "kind": "internal",
        "start_ns": 0,
        "status": "unset",
        "attributes": "{}",
    }
    insert(con, "spans", at_s, name=name, duration_ns=round((end_s - at_s) * S), **row | values)


def found(con: duckdb.DuckDBPyConnection, number: int = 1) -> Turn:
    one = turn_timeline.one(lambda sql: pl.DataFrame(con.execute(sql).pl()), "s", number)
    assert one is not None
    return one


def path_of(one: Turn) -> list[tuple[str, str | None, float, float]]:
    return [
        (s.part, s.activity.name if s.activity else None, (s.start_ns - T0) / S, (s.end_ns - T0) / S)
        for s in one.path
    ]


def lanes_of(one: Turn) -> dict[str, list[str]]:
    return {lane.name: [activity.name for activity in lane.activities] for lane in turn_timeline.lanes(one)}


def test_turn_is_split_between_model_tools_gateway_and_agent(con: duckdb.DuckDBPyConnection) -> None:
    request(con, 1, 0, 2, tool_call_count=2, trace_id="a1")
    call(con, 2, 2.1, 5, trace_id="a1")
    span(con, 2.1, 5, "tools/call level", trace_id="a1", stream_id=stream_id(2))
    call(con, 3, 2.1, 3, session_id="s", outcome="inband_error")
    call(con, 4, 2.02, 2.05, trace_id="a1", operation="tools/list")
    request(con, 5, 5.2, 6, tool_call_count=1, trace_id="a5")
    span(con, 5.9, 6, "tool call Bash", trace_id="a5", stream_id=stream_id(5))
    request(con, 6, 8, 9)
    con.execute(
        "INSERT INTO hops BY NAME SELECT ?::UUID AS outer_stream_id, ?::UUID AS inner_stream_id, ? AS outer_started_at, "
        "'span' AS matched_by, 1 AS attempt, 'ok' AS inner_outcome, 200000000 AS gateway_before_ns, 100000000 AS added_tail_ns",
        [stream_id(6), stream_id(7), datetime(2026, 11, 1, 0, 0, 8, tzinfo=UTC)],
    )
    request(con, 8, 20, 21, turn=2)
    one = found(con)
    assert path_of(one) == [
        ("model", "m", 0, 2), ("agent", None, 2, 2.1), ("tool", "level", 2.1, 5), ("agent", None, 5, 5.2), ("model", "m", 5.2, 6),
        ("tool", "Bash", 6, 8), ("gateway", "m", 8, 8.2), ("model", "m", 8.2, 8.9), ("gateway", "m", 8.9, 9),
    ]  # fmt: skip
    assert turn_timeline.parts_ns(one) == {
        "model": 3.5 * S,
        "tool": 4.9 * S,
        "gateway": 0.3 * S,
        "agent": 0.3 * S,
    }
    assert lanes_of(one) == {"model": ["m", "m", "m"], "tool": ["level", "Bash"], "tool 2": ["tools/call"]}
    assert turn_timeline.answer(one) == (
        "The tools: 4.90 s of 9.00 s (54.4 %), 2.90 s of it in level; the model 3.50 s, the gateway 300 ms, the agent itself 300 ms."
    )
    assert path_of(found(con, 2)) == [("model", "m", 20, 21)]


def test_answer_sums_what_has_the_same_name(con: duckdb.DuckDBPyConnection) -> None:
    for number, at_s in enumerate((0, 3, 7), 1):
        request(con, number, at_s, at_s + 1, tool_call_count=1, trace_id=f"a{number}")
        name = "tool call Read" if number == 1 else "tool call Bash"
        span(con, at_s, at_s + 1, name, trace_id=f"a{number}", stream_id=stream_id(number))
    request(con, 4, 9, 10)
    assert (
        turn_timeline.answer(found(con))
        == "The tools: 6.00 s of 10.0 s (60.0 %), 4.00 s of it in Bash; the model 4.00 s."
    )
    con.execute("DELETE FROM spans")
    assert turn_timeline.answer(found(con)).startswith(
        "The tools: 6.00 s of 10.0 s (60.0 %) in tools in the agent;"
    )


def test_subagents_run_beside_their_agent(con: duckdb.DuckDBPyConnection) -> None:
    request(con, 1, 0, 1, tool_call_count=2)
    for number, agent, until in ((2, "s1", 6), (3, "s2", 4)):
        request(con, number, 1.1, 2, tool_call_count=1, session_id=agent, parent_session_id="s")
        request(con, number + 2, 3, until, session_id=agent, parent_session_id="s")
    request(con, 6, 6.5, 7)
    request(con, 7, 1, 3, session_id="x")
    one = found(con)
    assert lanes_of(one) == {
        "model": ["m", "m"],
        "subagent 1 model": ["m", "m"],
        "subagent 1 tool": ["tools in the agent"],
        "subagent 2 model": ["m", "m"],
        "subagent 2 tool": ["tools in the agent"],
    }
    assert [(part, a, b) for part, _, a, b in path_of(one)] == [
        ("model", 0, 1), ("agent", 1, 1.1), ("model", 1.1, 2), ("tool", 2, 3), ("model", 3, 6), ("agent", 6, 6.5), ("model", 6.5, 7),
    ]  # fmt: skip


@pytest.mark.parametrize("others", [False, True])
def test_call_that_names_no_agent_belongs_to_the_only_one(
    con: duckdb.DuckDBPyConnection, others: bool
) -> None:
    request(con, 1, 0, 1, tool_call_count=1)
    call(con, 2, 1.5, 2)
    request(con, 3, 3, 4)
    if others:
        request(con, 4, 2, 3, session_id=None)
    one = found(con)
    assert one.by_time is not others
    pause = [("tool", "tools in the agent", 1, 3)]
    call_in_pause = [("agent", None, 1, 1.5), ("tool", "tools/call", 1.5, 2), ("agent", None, 2, 3)]
    assert path_of(one)[1:-1] == (pause if others else call_in_pause)


def test_spans_of_tools_and_of_the_gateway_count(con: duckdb.DuckDBPyConnection) -> None:
    request(con, 1, 0, 2, tool_call_count=1, trace_id="a", span_id="own")
    span(con, 0.1, 1.9, "POST /v1/messages", trace_id="a", parent_span_id="own", kind="server", span_id="g")
    span(con, 0.4, 1.8, "POST", trace_id="a", parent_span_id="g", kind="client")
    span(con, 0.4, 1.8, "execute_tool inside", trace_id="a", parent_span_id="g")
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    span(con, 2.2, 3, "run", trace_id="a", attributes=json.dumps(tool), parent_span_id="loop", span_id="loop")
    request(con, 2, 4, 5)
    assert path_of(found(con)) == [
        ("model", "m", 0, 0.1), ("gateway", "m", 0.1, 0.4), ("model", "m", 0.4, 1.8), ("gateway", "m", 1.8, 1.9),
        ("model", "m", 1.9, 2), ("agent", None, 2, 2.2), ("tool", "search", 2.2, 3), ("agent", None, 3, 4), ("model", "m", 4, 5),
    ]  # fmt: skip


def test_pause_after_an_answer_without_tool_calls_is_the_agents(con: duckdb.DuckDBPyConnection) -> None:
    request(con, 1, 0, 1, outcome="http_error")
    request(con, 2, 3, 4)
    assert path_of(found(con)) == [("model", "m", 0, 1), ("agent", None, 1, 3), ("model", "m", 3, 4)]


def test_unknown_turn_is_none(con: duckdb.DuckDBPyConnection) -> None:
    assert turn_timeline.one(lambda sql: pl.DataFrame(con.execute(sql).pl()), "s", 1) is None


times = st.tuples(st.integers(-5, 30), st.integers(0, 12), st.integers(0, 6), st.integers(0, 6))


@given(st.lists(times, max_size=12))
def test_critical_path_covers_the_turn_once(drawn: list[tuple[int, int, int, int]]) -> None:
    activities = [
        Activity(
            part="model", name="m", source="request", session_id="s", start_ns=start, end_ns=start + length,
            gateway=[(start + a, min(start + a + b, start + length)) for a, b in [(first, more)] if a + 1 < length and b],
        )
        for start, length, first, more in drawn
    ]  # fmt: skip
    path = critical_path(activities, 0, 25)
    assert [s.start_ns for s in path] == [0, *(s.end_ns for s in path[:-1])]
    assert path[-1].end_ns == 25
    for s in path:
        running = any(max(a.start_ns, s.start_ns) < min(a.end_ns, s.end_ns) for a in activities)
        assert (s.part == "agent") is (not running)
        assert s.start_ns < s.end_ns


def test_perfetto_trace_has_the_activities_and_the_path(con: duckdb.DuckDBPyConnection) -> None:
    request(con, 1, 0, 1, tool_call_count=1)
    request(con, 2, 3, 4)
    events = json.loads(turn_timeline.perfetto_trace(found(con)))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 0): "critical path", (2, 1): "model", (2, 2): "tool"}
    shown = [
        (names[e["pid"], e["tid"]], e["name"], e["cat"], e["ts"] - T0 / 1000, e["dur"])
        for e in events if e["ph"] == "X"
    ]  # fmt: skip
    model = [("m", "model", 0.0, 1e6), ("m", "model", 3e6, 1e6)]
    tool = [("tools in the agent", "tool", 1e6, 2e6)]
    expected = [("critical path", *one) for one in (model[0], *tool, model[1])]
    assert shown == [*expected, *(("model", *one) for one in model), *(("tool", *one) for one in tool)]


def test_tools_that_the_agent_reports_have_their_own_times(con: duckdb.DuckDBPyConnection) -> None:
    """The call is found by its id; a tool that waits for a subagent is none, and the pause is no tool any more."""
    request(con, 1, 0, 2, tool_call_count=2)
    span(con, 1, 2, "tool call Bash", stream_id=stream_id(1), attributes='{"gen_ai.tool.call.id": "toolu_1"}')
    request(con, 2, 4, 5, session_id="child", parent_session_id="s")
    request(con, 3, 8, 9)
    for name, call_id, end_s, length_s, success in (
        ("Bash", "toolu_1", 3.5, 1.0, False),
        ("Agent", None, 6.0, 3.8, True),
    ):
        con.execute(
            "INSERT INTO agent_events BY NAME SELECT ? AS event_id, ? AS occurred_at, 'claude-code' AS agent, 'other' AS session_id, "
            "'p' AS prompt_id, 'tool_result' AS kind, ? AS tool, ? AS call_id, ?::BIGINT AS duration_ns, ?::BOOLEAN AS success",
            [name, datetime.fromtimestamp(T0 / S + end_s, UTC), name, call_id, length_s * S, success],
        )
    one = found(con)
    tools = [each for each in one.activities if each.part == "tool"]
    assert [(each.name, each.source, each.outcome) for each in tools] == [("Bash", "agent", "error")]
    assert (tools[0].start_ns - T0, tools[0].end_ns - T0) == (2.5 * S, 3.5 * S)
    assert turn_timeline.parts_ns(one) == {"model": 4 * S, "tool": 1 * S, "gateway": 0, "agent": 4 * S}

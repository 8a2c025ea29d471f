"""One turn of an agent: its requests, the tools it waited for, its critical path, and the turn as a Perfetto trace.

The turn begins with its first request and ends with its last one, those of subagents included. Its time has four parts:

- model: requests of the agent and of its subagents (rows of the view `session_turns`).
- gateway: the part of a request that the gateway took, by the hop of the stream, else by the spans that the gateway sent: its server
  spans without the client spans below them.
- tool: calls of MCP and A2A (`TOOL_OPERATIONS`), received spans of tools, and the results of tools that the agent reports (`turn_events`).
  A pause after a response with tool calls in which neither these nor a subagent are seen is the time of tools that run in the agent.
  A tool that waits for a subagent is none: its time is that of the subagent.
- agent: what remains.

A call belongs to the turn by its session or its trace, else by its time if the tap saw no other agent during the turn.

The critical path is found from the end of the turn: of the activities that began before, the one that ended last decided when the
turn went on; of several that still run, the one that ends first. The path continues at its start. Times in which nothing ran are the
agent's. So the parts of the path add up to the turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting, sessions
from streamgauge.analytics.reports.columns import seconds, text
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import MODEL as MODEL_NAME
from streamgauge.analytics.reports.selection import instant
from streamgauge.analytics.reports.sessions import MODEL, TOOL
from streamgauge.analytics.reports.trace_tree import Span, from_row
from streamgauge.analytics.schema.dimensions import CALLED, CALLS_MODEL, IS_CALL, TOOL_OPERATIONS, is_one_of
from streamgauge.analytics.schema.outcomes import IS_REQUEST
from streamgauge.analytics.schema.sql_quoting import literal

GATEWAY, AGENT = "gateway", "agent"
CRITICAL = "critical path"
PARTS = {MODEL: "the model", TOOL: "the tools", GATEWAY: "the gateway", AGENT: "the agent itself"}
"""Part of a turn → its name in a sentence."""
MAX_REQUESTS = 5_000
"""Requests of a session that are read."""
MAX_STREAMS, MAX_SPANS = 1_000, 2_000
"""Streams and spans of a turn that are read."""
MAX_TOOLS = 3
"""Names of tools of one pause. Further ones are counted."""
SUBAGENT_TOOLS = ("Agent", "Task", "spawn_agent", "wait_agent", "invoke_agent")
"""Tools of Claude Code, Codex and Gemini CLI that run a subagent or wait for one."""
_TOOL_CALL = "tool call "
_MCP_CALL = "tools/call "
"""Start of the names of the tap's spans of tool calls by the model, and by MCP."""

Row = Mapping[str, Any]
Interval = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Something that ran during a turn. Times are Unix times."""

    part: str
    name: str
    source: str
    """`request`, `MCP call`, `A2A call`, `span`, `agent` or `pause`."""
    session_id: str
    """Of the agent, or of the subagent."""
    start_ns: int
    end_ns: int
    stream_id: str | None = None
    outcome: str | None = None
    gateway: Sequence[Interval] = ()
    """Times within it that the gateway took."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A section of the critical path. Without an activity, the agent's own time."""

    part: str
    start_ns: int
    end_ns: int
    activity: Activity | None = None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn. Activities are in the order of their starts, those of the critical path in the order of time."""

    session_id: str
    number: int
    start_ns: int
    end_ns: int
    activities: Sequence[Activity]
    path: Sequence[Segment]
    by_time: bool = False
    """Calls of MCP and A2A belong to the turn only by their time."""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def one(query: Query, session_id: str, number: int) -> Turn | None:
    """The turn of a session, or None if it has no such turn."""
    rows = sessions.requests(query, session_id, most=MAX_REQUESTS).to_dicts()
    own = [row for row, turn in zip(rows, sessions.turns_of(rows), strict=True) if turn == number]
    if not own:
        return None
    began, ended = own[0]["started_at"], max(row["ended_at"] for row in own)
    own_ids = {str(row["stream_id"]) for row in own}
    streams = _streams(query, session_id, began, ended)
    requests = [row for row in streams if row["dialect"] not in CALLED]
    requests = [row for row in requests if row["session_id"] != session_id or row["stream_id"] in own_ids]
    calls, by_time = _calls(query, streams, requests, began, ended)
    spans = _Spans(_spans(query, [*requests, *calls], began, ended), streams)
    found = [*_requests(requests, spans), *_tools(calls, spans, requests, session_id)]
    found += _reported(_results(query, requests, began, ended))
    found = [*found, *_pauses(requests, found, spans, session_id)]
    found.sort(key=lambda activity: (activity.start_ns, -activity.end_ns))
    start_ns, end_ns = min(row["at_ns"] for row in requests), max(map(_end_ns, requests))
    return Turn(
        session_id=session_id, number=number, start_ns=start_ns, end_ns=end_ns, activities=found,
        path=critical_path(found, start_ns, end_ns), by_time=by_time,
    )  # fmt: skip


# Rows


def _streams(query: Query, session_id: str, began: datetime, ended: datetime) -> list[dict[str, Any]]:
    """Requests of the session and of its subagents in this time, and all calls of MCP and A2A.

    Of a hop, `before_ns` and `tail_ns` are the times of the gateway before the first attempt and after the last one.
    """
    # `coalesce`: DuckDB 1.5 skips the rows of a store without any dialect for `dialect IS DISTINCT FROM … OR dialect = …`.
    hops = f"""
            SELECT outer_stream_id AS stream_id, min(gateway_before_ns) AS before_ns, coalesce(sum(added_tail_ns), 0)::BIGINT AS tail_ns
            FROM hops WHERE {_between(began, ended, "outer_started_at")} GROUP BY ALL"""
    return query(f"""
        SELECT CAST(stream_id AS VARCHAR) AS stream_id, session_id, dialect, operation, tap, trace_id, span_id, outcome, tool_call_count,
            {MODEL_NAME} AS model, epoch_us(started_at) * 1000 AS at_ns, end_ns, before_ns, tail_ns
        FROM streams LEFT JOIN ({hops}) USING (stream_id)
        WHERE {_between(began, ended)} AND {IS_REQUEST} AND stream_id NOT IN (SELECT inner_stream_id FROM hops)
            AND ({CALLS_MODEL} AND {literal(session_id)} IN (session_id, parent_session_id)
                OR {IS_CALL} AND {is_one_of("operation", TOOL_OPERATIONS)})
        ORDER BY {IS_CALL}, started_at, stream_id LIMIT {MAX_STREAMS}""").to_dicts()


def _between(began: datetime, ended: datetime, column: str = "started_at") -> str:
    return f"{column} >= {instant(began)} AND {column} <= {instant(ended)}"


def _calls(
    query: Query, streams: Sequence[Row], requests: Sequence[Row], began: datetime, ended: datetime
) -> tuple[list[Row], bool]:
    """The calls of MCP and A2A that belong to the turn, and whether some belong to it only by their time."""
    calls = [row for row in streams if row["dialect"] in CALLED]
    agents, traces, taps = (
        {row[name] for row in requests} - {None} for name in ("session_id", "trace_id", "tap")
    )
    named = [row for row in calls if row["session_id"] in agents or row["trace_id"] in traces]
    seen = [row for row in calls if row["tap"] in taps]
    if len(named) >= len(seen):
        return named, False
    others = query(f"""
        SELECT count(*) AS n FROM streams
        WHERE {_between(began, ended)} AND {IS_REQUEST} AND {CALLS_MODEL} AND {is_one_of("tap", sorted(row["tap"] for row in seen))}
            AND NOT coalesce({is_one_of("session_id", sorted(agents))}, FALSE)""")
    return (named, False) if others["n"][0] else (seen, True)


def _spans(query: Query, streams: Sequence[Row], began: datetime, ended: datetime) -> list[tuple[str, Span]]:
    """Received spans of the traces of these streams, and the tap's own spans that name tools."""
    near = timedelta(hours=1)  # clocks differ, and a span may begin before the turn
    traces = sorted({row["trace_id"] for row in streams if row["trace_id"]}) or [""]
    rows = query(f"""
        SELECT *, epoch_us(started_at) * 1000 AS at_ns FROM spans
        WHERE {_between(began - near, ended + near)} AND {is_one_of("trace_id", traces)}
            AND (stream_id IS NULL OR starts_with(name, '{_TOOL_CALL}') OR starts_with(name, '{_MCP_CALL}'))
        ORDER BY started_at, span_id LIMIT {MAX_SPANS}""")
    return [(row["trace_id"], from_row(row)) for row in rows.to_dicts()]


def _results(query: Query, requests: Sequence[Row], began: datetime, ended: datetime) -> Sequence[Row]:
    """The results of tools that the agent and its subagents report."""
    agents = sorted({row["session_id"] for row in requests})
    waiting = "" if len(agents) == 1 else f"AND NOT coalesce({is_one_of('tool', SUBAGENT_TOOLS)}, FALSE)"
    return query(f"""
        SELECT session_id, tool, success, duration_ns, epoch_us(occurred_at) * 1000 AS end_ns FROM turn_events
        WHERE kind = 'tool_result' AND duration_ns IS NOT NULL AND {_between(began, ended, "occurred_at")}
            AND {is_one_of("session_id", agents)} {waiting}
        ORDER BY occurred_at LIMIT {MAX_SPANS}""").to_dicts()


# Activities. Pure.


class _Spans:
    """The spans of a turn by what they say about its streams."""

    def __init__(self, spans: Sequence[tuple[str, Span]], streams: Sequence[Row]) -> None:
        """`spans`: each with its trace id."""
        parents = {span.span_id: span.parent_id for _, span in spans}
        of_streams = {row["span_id"] for row in streams}
        self.tools: list[tuple[str, str, Span]] = []
        """Trace id, name and span of tools that other services sent. Those below a stream repeat it."""
        self.below: dict[str, list[Span]] = {}
        """Span id of a stream → received spans below it."""
        self.called: dict[str, list[str]] = {}
        """Stream id → names of the tools that the model called, or that a call of MCP names."""
        for trace_id, span in spans:
            if span.stream_id is not None:
                name = span.name.removeprefix(_TOOL_CALL).removeprefix(_MCP_CALL)
                self.called.setdefault(span.stream_id, []).append(name)
                continue
            above, steps = span.parent_id, 0
            # The number of steps is limited: spans may be below themselves.
            while above in parents and above not in of_streams and steps < len(parents):
                above, steps = parents[above], steps + 1
            if above is not None and above in of_streams:
                self.below.setdefault(above, []).append(span)
            elif tool := _tool_of(span):
                self.tools.append((trace_id, tool, span))

    def names(self, stream_id: str) -> str | None:
        found = list(dict.fromkeys(self.called.get(stream_id, ())))
        more = f" and {len(found) - MAX_TOOLS} more" if len(found) > MAX_TOOLS else ""
        return ", ".join(found[:MAX_TOOLS]) + more or None


def _tool_of(span: Span) -> str | None:
    """The tool that a span says it ran."""
    named = (str(value) for key, value in span.attributes.items() if key.endswith(".tool.name"))
    is_tool = (
        span.name.startswith(("execute_tool", "tools/call")) or "execute_tool" in span.attributes.values()
    )
    return next(named, span.name if is_tool else None)


def _end_ns(row: Row) -> int:
    return int(row["at_ns"]) + max(row["end_ns"] or 0, 0)


def _requests(requests: Sequence[Row], spans: _Spans) -> Iterator[Activity]:
    for row in requests:
        start_ns, end_ns = row["at_ns"], _end_ns(row)
        if row["tail_ns"] is not None:
            gateway = [(start_ns, start_ns + (row["before_ns"] or 0)), (end_ns - row["tail_ns"], end_ns)]
        else:
            servers, clients = (
                [(span.start_ns, span.end_ns) for span in spans.below.get(row["span_id"], ()) if span.kind == kind]
                for kind in ("server", "client")
            )  # fmt: skip
            gateway = _without(servers, clients) if clients else []
        yield Activity(
            part=MODEL, name=row["model"], source="request", session_id=row["session_id"], start_ns=start_ns, end_ns=end_ns,
            stream_id=row["stream_id"], outcome=row["outcome"], gateway=_within(gateway, start_ns, end_ns),
        )  # fmt: skip


def _tools(
    calls: Sequence[Row], spans: _Spans, requests: Sequence[Row], session_id: str
) -> Iterator[Activity]:
    agents = {row["session_id"] for row in requests}
    by_trace = {row["trace_id"]: row["session_id"] for row in requests if row["trace_id"]}
    for row in calls:
        agent = (
            row["session_id"] if row["session_id"] in agents else by_trace.get(row["trace_id"], session_id)
        )
        yield Activity(
            part=TOOL, name=spans.names(row["stream_id"]) or row["operation"], source=f"{row['dialect'].upper()} call", session_id=agent,
            start_ns=row["at_ns"], end_ns=_end_ns(row), stream_id=row["stream_id"], outcome=row["outcome"],
        )  # fmt: skip
    for trace_id, name, span in spans.tools:
        yield Activity(
            part=TOOL, name=name, source="span", session_id=by_trace.get(trace_id, session_id),
            start_ns=span.start_ns, end_ns=span.end_ns, outcome="error" if span.failed else None,
        )  # fmt: skip


def _reported(results: Sequence[Row]) -> Iterator[Activity]:
    for row in results:
        yield Activity(
            part=TOOL, name=row["tool"] or "tool", source="agent", session_id=row["session_id"],
            start_ns=row["end_ns"] - row["duration_ns"], end_ns=row["end_ns"], outcome="error" if row["success"] is False else None,
        )  # fmt: skip


def _pauses(
    requests: Sequence[Row], found: Sequence[Activity], spans: _Spans, session_id: str
) -> Iterator[Activity]:
    """Pauses of each agent after tool calls of its model in which nothing else of it is seen."""
    for agent in {row["session_id"] for row in requests}:
        seen = [
            one for one in found
            if (one.session_id == agent if one.part == TOOL else agent == session_id and one.session_id != agent)
        ]  # fmt: skip
        before: Row | None = None
        for row in (row for row in requests if row["session_id"] == agent):
            start_ns, end_ns = row["at_ns"] if before is None else _end_ns(before), row["at_ns"]
            is_free = not any(one.start_ns < end_ns and one.end_ns > start_ns for one in seen)
            if before is not None and before["tool_call_count"] != 0 and start_ns < end_ns and is_free:
                name = spans.names(before["stream_id"]) or "tools in the agent"
                yield Activity(
                    part=TOOL, name=name, source="pause", session_id=agent, start_ns=start_ns, end_ns=end_ns
                )
            before = row if _end_ns(row) >= start_ns else before


def _without(intervals: Iterable[Interval], removed: Sequence[Interval]) -> list[Interval]:
    """The intervals, joined, without those that are removed."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        start = max(start, found[-1][1] if found else start)
        for removed_from, removed_to in sorted(removed):
            if removed_from < end and removed_to > start:
                if removed_from > start:
                    found.append((start, removed_from))
                start = removed_to
        if start < end:
            found.append((start, end))
    return found


def _within(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    limited = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in limited if a < b]


def critical_path(activities: Sequence[Activity], start_ns: int, end_ns: int) -> list[Segment]:
    """The sections of the critical path in the order of time. They cover the time from `start_ns` to `end_ns`."""
    found: list[Segment] = []
    at_ns = end_ns
    while at_ns > start_ns:
        begun = [one for one in activities if one.start_ns < at_ns and one.end_ns > one.start_ns]
        last = max(begun, key=lambda one: (min(one.end_ns, at_ns), -one.end_ns), default=None)
        until_ns = start_ns if last is None else max(min(last.end_ns, at_ns), start_ns)
        if until_ns < at_ns:
            found.append(Segment(part=AGENT, start_ns=until_ns, end_ns=at_ns))
        if last is None:
            break
        at_ns = max(last.start_ns, start_ns)
        parts = [(a, b, GATEWAY) for a, b in _within(last.gateway, at_ns, until_ns)]
        parts += [(a, b, last.part) for a, b in _without([(at_ns, until_ns)], last.gateway)]
        found += [
            Segment(part=part, start_ns=a, end_ns=b, activity=last)
            for a, b, part in sorted(parts, reverse=True)
        ]
    return found[::-1]


def parts_ns(turn: Turn) -> dict[str, int]:
    """Part → its time on the critical path. They add up to the length of the turn."""
    return {part: sum(s.end_ns - s.start_ns for s in turn.path if s.part == part) for part in PARTS}


def answer(turn: Turn) -> str:
    """One sentence: the part that took most of the turn, the name that took most of it, and the other parts."""
    taken = parts_ns(turn)
    first, *others = sorted(PARTS, key=lambda part: -taken[part])
    share = formatting.share(taken[first] / turn.length_ns if turn.length_ns else None)
    name = PARTS[first]
    text = f"{name[0].upper()}{name[1:]}: {formatting.duration(taken[first])} of {formatting.duration(turn.length_ns)} ({share})"
    by_name = Counter[str]()
    for s in turn.path:
        if s.part == first and s.activity is not None:
            by_name[s.activity.name] += s.end_ns - s.start_ns
    if len(by_name) > 1:
        [(name, name_ns)] = by_name.most_common(1)
        text += f", {formatting.duration(name_ns)} of it in {name}"
    elif by_name:
        text += f" in {next(iter(by_name))}"
    rest = [f"{PARTS[part]} {formatting.duration(taken[part])}" for part in others if taken[part]]
    return "; ".join(filter(None, (text, ", ".join(rest)))) + "."


ACTIVITIES = columns.table(
    "What ran in the turn",
    text("name", "What", min_characters=12, priority=0),
    text("part", "Part", line=True),
    seconds("start_ns", "Start", digits=2, priority=2, help="From the start of the turn."),
    seconds("length_ns", "Duration", digits=2),
    seconds("critical_ns", "On the critical path", digits=2, help=metric_help("critical_path")),
    columns.outcome(priority=3),
    text("agent", "Agent", line=True, priority=3),
    text("source", "Seen as", line=True, priority=4),
    columns.stream(priority=2),
    stacks=False,
)


def activities(turn: Turn, *, most: int) -> pl.DataFrame:
    """The activities that the turn waited for longest, then the longest ones.

    `stream_id, name, part, source, agent, outcome, start_ns` (from the start of the turn), `length_ns, critical_ns`.
    """
    waited, agents = Counter[int](), _agents(turn)
    for s in turn.path:
        waited[id(s.activity)] += s.end_ns - s.start_ns
    rows = [
        {
            "stream_id": one.stream_id, "name": one.name, "part": one.part, "source": one.source, "agent": agents[one.session_id],
            "outcome": one.outcome, "start_ns": one.start_ns - turn.start_ns, "length_ns": one.end_ns - one.start_ns,
            "critical_ns": waited[id(one)],
        }
        for one in turn.activities
    ]  # fmt: skip
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame.sort("critical_ns", "length_ns", descending=True, maintain_order=True).head(most)


def _agents(turn: Turn) -> dict[str, str]:
    """Session id → `agent`, or the number of the subagent by its first activity."""
    ids = dict.fromkeys([turn.session_id, *(one.session_id for one in turn.activities)])
    return {session_id: f"subagent {number}" if number else AGENT for number, session_id in enumerate(ids)}


@dataclass(frozen=True)
class Lane:
    """Activities of one agent and one part that do not overlap."""

    name: str
    agent: str
    activities: list[Activity]

    def segments(self) -> Iterator[Segment]:
        """The activities, and the times of the gateway within them."""
        for one in self.activities:
            yield Segment(part=one.part, start_ns=one.start_ns, end_ns=one.end_ns, activity=one)
            for start_ns, end_ns in one.gateway:
                yield Segment(part=GATEWAY, start_ns=start_ns, end_ns=end_ns, activity=one)


def lanes(turn: Turn) -> list[Lane]:
    """The lanes of a picture, those of one agent together: its requests, then its tools. What runs in parallel has lanes of its own."""
    found: list[Lane] = []
    for session_id, agent in _agents(turn).items():
        for part in (MODEL, TOOL):
            name = part if agent == AGENT else f"{agent} {part}"
            own: list[Lane] = []
            for one in turn.activities:
                if (one.session_id, one.part) != (session_id, part):
                    continue
                free = next((lane for lane in own if lane.activities[-1].end_ns <= one.start_ns), None)
                if free is None:
                    free = Lane(f"{name} {len(own) + 1}" if own else name, agent, [])
                    own.append(free)
                free.activities.append(one)
            found += own
    return found


def perfetto_trace(turn: Turn) -> bytes:
    """The turn in the JSON format of trace events, which ui.perfetto.dev opens. A process for each agent, a thread for each lane."""
    events: list[dict[str, Any]] = []
    processes: dict[str, int] = {}
    threads = [
        ("turn", CRITICAL, turn.path),
        *((lane.agent, lane.name, lane.segments()) for lane in lanes(turn)),
    ]
    for number, (agent, lane, segments) in enumerate(threads):
        at = {"pid": processes.setdefault(agent, len(processes) + 1), "tid": number}
        for kind, name in (("process_name", agent), ("thread_name", lane)):
            events.append({"ph": "M", **at, "name": kind, "args": {"name": name}})
        for s in segments:
            args = {key: getattr(s.activity, key, None) for key in ("source", "outcome", "stream_id")}
            name = s.activity.name if s.activity is not None and s.part != GATEWAY else s.part
            begin, length = s.start_ns / 1000, (s.end_ns - s.start_ns) / 1000  # µs
            events.append(
                {"ph": "X", **at, "name": name, "cat": s.part, "ts": begin, "dur": length, "args": args}
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False).encode()

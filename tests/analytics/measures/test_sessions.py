"""`session_id` and `turn` of streams, the views over them, and what of a session's name is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest
from opentelemetry.sdk.resources import Resource

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures import sessions
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.reports import run_summary
from streamgauge.analytics.reports import sessions as reports
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.telemetry.semconv import PROFILES, names_of
from streamgauge.analytics.telemetry.spans import SpanBuilder
from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.keyed_ids import RECORDED, RECORDED_AGENT, session_hash
from streamgauge.ingest.records import AnyRecord, Conversation, Frames, Request, pack
from streamgauge.ingest.redaction.record_redactor import Redactor
from tests.analytics.stores import new_store, plain_tables
from tests.analytics.stream_records import START_NS, chunk, closed, finish_chunk, head, opened, stream_id

KEY = b"k" * 32
MS = 1_000_000
SECOND_NS = 10**9
UUID = "57a121ec-f78c-48c3-a745-e3036a3ecc33"


def responses_events(response_id: str) -> list[bytes]:
    created = {"type": "response.created", "response": {"id": response_id, "model": "m"}}
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "hi"}
    done = {
        "type": "response.completed",
        "response": {"id": response_id, "model": "m", "usage": {"output_tokens": 2}},
    }
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in (created, delta, done)]  # fmt: skip


def request(
    number: int,
    body: dict[str, Any],
    *,
    response_id: str | None = None,
    session: str | None = None,
    cut: bool = False,
    key: str | None = None,
    agent: str | None = None,
    app: str | None = None,
    calls_tool: bool = False,
) -> list[AnyRecord]:
    """The records of a request: to the Responses API with `response_id`, else to the chat API."""
    stream = stream_id(number)
    path = "/v1/responses" if response_id else "/v1/chat/completions"
    headers = [(RECORDED, session_hash(session, KEY))] if session else []
    headers += [(RECORDED_AGENT, session_hash(agent, KEY))] if agent else []
    headers += [("user-agent", app)] if app else []
    data = json.dumps({"model": "m", **body}).encode()
    reads = (
        responses_events(response_id) if response_id else [chunk("a"), finish_chunk(), b"data: [DONE]\n\n"]
    )
    if calls_tool:
        reads[0] = TOOL_CALL
    frames = [((i + 1) * MS, read) for i, read in enumerate(reads)]
    return [
        opened(stream, path=path, headers=headers, wall_ns=START_NS + number * SECOND_NS),
        Request(stream, 1, data, cut),
        Frames(stream, 2, frames, head()),
        closed(stream, 3, end_ns=9 * MS, response_bytes=sum(map(len, reads))),
    ]


def finished(*streams: list[AnyRecord]) -> list[FinishedStream]:
    assembler = Assembler(client_key=KEY)
    for records in streams:
        assembler.feed("w0", 0, records)
    assert not assembler.take_failures()
    return assembler.take_finished()


def found(known: Sessions, *streams: list[AnyRecord]) -> list[tuple[str | None, int | None]]:
    """(session, turn) of the streams, measured in one batch."""
    rows = measure(finished(*streams), sessions=known)["streams"].sort("started_at")
    return [(row["session_id"], row["turn"]) for row in rows.to_dicts()]


def user(text: str = "q") -> dict[str, Any]:
    return {"role": "user", "content": text}


TOOL_CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
TOOL_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "r"}


def test_header_takes_precedence_over_the_body_and_both_have_one_id() -> None:
    by_header, by_body, both = found(
        Sessions(),
        request(1, {"messages": [user()]}, session=UUID),
        request(2, {"messages": [user(), {"role": "assistant"}, user()], "metadata": {"session_id": UUID}}),
        request(3, {"messages": [user()], "session_id": "other"}, session=UUID),
    )
    assert by_header == (session_hash(UUID, KEY), 1)
    assert by_body == (session_hash(UUID, KEY), 2)
    assert both == (session_hash(UUID, KEY), 1)


def test_no_session_and_cut_body() -> None:
    assert found(Sessions(), request(1, {"messages": [user()]})) == [(None, 1)]
    assert found(Sessions(), request(1, {"messages": [user()]}, session=UUID, cut=True)) == [
        (session_hash(UUID, KEY), None)
    ]


def test_subagent_has_a_session_of_its_own_with_its_parent() -> None:
    streams = finished(
        request(1, {"messages": [user()]}, session=UUID),
        request(2, {"messages": [user()]}, session=UUID, agent="a1"),
    )
    rows = measure(streams, sessions=Sessions())["streams"].sort("started_at")
    parent, own = session_hash(UUID, KEY), session_hash("a1", KEY)
    assert rows["session_id"].to_list() == [parent, own]
    assert rows["parent_session_id"].to_list() == [None, parent]


def test_side_calls_of_agents_are_no_turns() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "Read"}}]}
    streams = finished(
        request(1, {"messages": [user()]}, session=UUID, app="claude-cli/2.1.90 (external, cli)"),
        request(2, {"messages": [user()], **tools}, session=UUID, app="claude-cli/2.1.90 (external, cli)"),
        request(3, {"messages": [user()]}, session=UUID, app="OpenAI/Python 2.8.0"),
        request(4, {"input": [], "previous_response_id": "resp_9"}, session=UUID, app="codex_exec/0.171.0"),
    )
    rows = measure(streams, sessions=Sessions())["streams"].sort("started_at")
    assert rows["operation"].to_list() == ["side_call", "chat", "chat", "chat"]
    assert rows["turn"].to_list()[:3] == [None, 1, 1]


@pytest.mark.parametrize("at_once", [True, False])
def test_chain_of_responses_is_one_session_with_counted_turns(at_once: bool) -> None:
    chain = [
        request(1, {"input": "q"}, response_id="resp_1"),
        request(2, {"input": [TOOL_OUTPUT], "previous_response_id": "resp_1"}, response_id="resp_2"),
        request(3, {"input": [user()], "previous_response_id": "resp_2"}, response_id="resp_3"),
        request(4, {"input": "branch", "previous_response_id": "resp_1"}, response_id="resp_4"),
    ]
    known = Sessions()
    rows = found(known, *chain[::-1]) if at_once else [row for one in chain for row in found(known, one)]
    session = "resp_1"
    assert rows == [(session, 1), (session, 1), (session, 2), (session, 2)]


def test_response_that_cannot_be_continued_begins_no_session() -> None:
    assert found(Sessions(), request(1, {"input": "q", "store": False}, response_id="resp_1")) == [(None, 1)]


def test_unknown_previous_response_names_the_session() -> None:
    known = Sessions()
    second = request(2, {"input": "q", "previous_response_id": "resp_1"}, response_id="resp_2")
    third = request(3, {"input": "q", "previous_response_id": "resp_2"}, response_id="resp_3")
    session = "resp_1"
    assert found(known, second, third) == [(session, None), (session, None)]


def test_turns_of_a_conversation_that_the_server_keeps() -> None:
    body = {"conversation": {"id": "conv_1"}}
    known = Sessions()
    rows = [
        found(known, request(n, {**body, "input": given}, response_id=f"resp_{n}"))[0]
        for n, given in enumerate(["q", [TOOL_OUTPUT], [user()]], 1)
    ]
    session = session_hash("conv_1", KEY)
    assert rows == [(session, 1), (session, 1), (session, 2)]


def test_streams_that_are_measured_again_have_the_same_turns() -> None:
    body = {"conversation": {"id": "conv_1"}, "input": "q"}
    conversation = [request(n, body, response_id=f"resp_{n}") for n in range(3)]
    known = Sessions()
    batch = finished(*conversation)
    first = measure(batch, sessions=known)["streams"].sort("stream_id")
    again = [measure([stream], sessions=known)["streams"] for stream in batch]
    assert first["turn"].to_list() == [1, 2, 3]
    assert pl.concat(again).sort("stream_id").equals(first)


def test_remembered_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_REMEMBERED", 2)
    known = Sessions()
    found(known, *[request(n, {"input": "q"}, response_id=f"resp_{n}") for n in (1, 2, 3)])
    assert [*known._known] == ["resp_2", "resp_3"]


def test_session_continues_after_a_restart(tmp_path: Path) -> None:
    import time

    store = new_store(tmp_path)
    try:
        first = measure(finished(request(1, {"input": "q"}, response_id="resp_1")), sessions=Sessions())[
            "streams"
        ]
        now_us = int(time.time() * 1e6)
        store.commit(Commit("log", tables={"streams": first.with_columns(started_at=_instant(now_us))}))
        restored = Sessions()
        restored.restore(store.recent_responses())
    finally:
        store.close()
    second = request(2, {"input": "q", "previous_response_id": "resp_1"}, response_id="resp_2")
    assert found(restored, second) == [("resp_1", 2)]


def _instant(us: int) -> Any:
    import polars as pl

    return pl.lit(us, pl.Int64).cast(pl.Datetime("us", "UTC"))


@pytest.mark.parametrize("capture", [(), ("*",)])
@pytest.mark.parametrize("cut", [False, True])
def test_redacted_request_has_the_same_session_and_turn(capture: tuple[str, ...], cut: bool) -> None:
    body = {"metadata": {"user_id": f"user_a_account__session_{UUID}"}, "messages": [user(), {"role": "assistant"}, user()]}  # fmt: skip
    records = request(1, body, cut=cut)
    expected = found(Sessions(), records)
    assert expected == [(session_hash(UUID, KEY), None if cut else 2)]
    redactor = Redactor(capture=capture, conversation=ConversationReader(KEY))
    redacted = redactor.redact(records)
    assert (UUID.encode() in pack(redacted, compress=False)) is bool(capture)
    assert found(Sessions(), redacted) == expected
    again = Redactor().redact(redacted)  # in a checkpoint of analytics
    assert found(Sessions(), again) == expected


def test_checkpoint_keeps_session_and_turn_without_their_text() -> None:
    assembler = Assembler(client_key=KEY)
    records = request(1, {"metadata": {"session_id": UUID}, "messages": [user("secret")]})
    assembler.feed("w0", 0, records[:2])
    stream = assembler._partitions["w0"].open[stream_id(1)]
    stored = stream.without_text(records[:2], capture=())
    payload = pack(stored, compress=False)
    assert UUID.encode() not in payload
    assert b"secret" not in payload
    assert found(Sessions(), [*stored, *records[2:]]) == [(session_hash(UUID, KEY), 1)]


@pytest.mark.parametrize("profile", PROFILES)
def test_spans_have_the_conversation_and_no_row_or_span_has_its_plain_id(profile: str) -> None:
    streams = finished(request(1, {"metadata": {"session_id": UUID}, "messages": [user()]}))
    tables = measure(streams, sessions=Sessions())
    assert UUID not in "".join(str(rows.to_dicts()) for rows in tables.values())
    built = SpanBuilder(names_of(profile), Resource({})).build(
        streams[0], tables["streams"].row(0, named=True)
    )
    attributes = built[0].attributes or {}
    assert attributes["gen_ai.conversation.id"] == session_hash(UUID, KEY)
    assert UUID not in str([span.to_json() for span in built])


QWEN, GEMINI = "QwenCode/0.24 (linux)", "GeminiCLI/0.61.0/gemini-3-pro (linux)"
MACHINE = "This is the agent. My operating system is: linux. The folder has these files: "


class Agent:
    """A conversation of an agent without a session header. `is_gemini`: with Gemini's API, whose calls have no ids here."""

    def __init__(
        self, prompt: str, *, is_gemini: bool = False, text_bytes: int = 0, session: str | None = None
    ) -> None:
        self.is_gemini, self.session = is_gemini, session
        self.messages: list[dict[str, Any]] = []
        for text in (MACHINE + "x" * text_bytes, prompt):
            self.says("user", text)
            if text != prompt and not is_gemini:
                self.says("assistant", "Got it.")

    def says(self, role: str, text: str) -> None:
        content = (
            {"parts": [{"text": text}], "role": role} if self.is_gemini else {"role": role, "content": text}
        )
        self.messages.append(content)

    def asks(
        self, start_s: float, end_s: float, call: str | None = None, *, fails: bool = False
    ) -> list[AnyRecord]:
        """A request, whose answer calls a tool. The next request has its result."""
        tools = {"tools": [{"name": "f"}]}
        body = tools | (
            {"contents": self.messages} if self.is_gemini else {"model": "m", "messages": self.messages}
        )
        body |= {"metadata": {"session_id": self.session}} if self.session else {}
        stream, at = stream_id(int(start_s * 1000) + 1), START_NS + int(start_s * SECOND_NS)
        path, app = "/v1/chat/completions", QWEN
        if self.is_gemini:
            path, app = "/v1beta/models/m:streamGenerateContent?alt=sse", GEMINI
        data, anatomy = json.dumps(body).encode(), None
        if is_long := len(data) > 65_536:
            condenser = CondensedBody(KEY)
            data = condenser.feed(data)
            anatomy = condenser.anatomy
        read = self._read(call)
        if fails:
            read = b'data: {"error": {"message": "overloaded", "code": 529}}\n\n'
        if call is not None:
            self._has_result(call)
        elif not fails:
            self.says("model" if self.is_gemini else "assistant", "done")
        return [
            opened(stream, path=path, headers=[("user-agent", app)], wall_ns=at),
            Request(stream, 1, data, False, condensed=is_long, anatomy=anatomy),
            Frames(stream, 2, [(MS, read)], head()),
            closed(stream, 3, end_ns=int((end_s - start_s) * SECOND_NS), response_bytes=len(read)),
        ]

    def _read(self, call: str | None) -> bytes:
        if self.is_gemini:
            part = {"functionCall": {"name": "f", "args": {}}} if call else {"text": "done"}
            chunk_ = {"candidates": [{"content": {"parts": [part], "role": "model"}, "finishReason": "STOP"}]}
            return b"data: " + json.dumps(chunk_).encode() + b"\n\n"
        delta = (
            {"tool_calls": [{"index": 0, "id": call, "function": {"name": "f", "arguments": "{}"}}]}
            if call
            else {"content": "done"}
        )
        choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if call else "stop"}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\ndata: [DONE]\n\n"

    def _has_result(self, call: str) -> None:
        if self.is_gemini:
            self.messages += [
                {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},
                {
                    "role": "user",
                    "parts": [{"functionResponse": {"id": call, "name": "f", "response": {"output": "r"}}}],
                },
            ]
        else:
            made = {"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            self.messages += [
                {"role": "assistant", "content": None, "tool_calls": [made]},
                {"role": "tool", "tool_call_id": call, "content": "r"},
            ]


def sessions_of(*requests: tuple[str, list[AnyRecord]]) -> dict[str, tuple[set[str], str | None]]:
    """Name of an agent → the sessions of its requests, and the name of the parent's session in its last request. Each request is
    measured when it has ended."""
    known, found, names = Sessions(), dict[str, tuple[set[str], str | None]](), dict[str, str]()
    by_end = sorted(requests, key=lambda one: one[1][0].wall_ns + one[1][-1].end_ns)  # type: ignore[union-attr]
    for name, records in by_end:
        [row] = measure(finished(records), sessions=known)["streams"].to_dicts()
        names.setdefault(row["session_id"], name)
        own, _ = found.setdefault(name, (set(), None))
        own.add(names[row["session_id"]])
        found[name] = own, names.get(row["parent_session_id"])
    return found


CALL_ID = "call_" + "0123456789abcdef" * 2


@pytest.mark.parametrize("text_bytes", [0, 100_000])
@pytest.mark.parametrize("is_gemini", [False, True])
@pytest.mark.parametrize("session", [None, UUID])
class TestAgentWithoutASessionHeader:
    @pytest.fixture
    def agent(self, is_gemini: bool, text_bytes: int, session: str | None) -> Any:
        return partial(Agent, is_gemini=is_gemini, text_bytes=text_bytes, session=session)

    def test_subagent_runs_while_its_parent_waits(self, agent: Any) -> None:
        parent, child = agent("Do all of it."), agent("Find the file.")
        found = sessions_of(
            ("parent", parent.asks(0, 1, CALL_ID + "1")),
            ("child", child.asks(1.1, 2, CALL_ID + "2")),
            ("child", child.asks(2.5, 3)),
            ("parent", parent.asks(3.1, 4, CALL_ID + "3")),
            ("parent", parent.asks(4.5, 5)),
        )
        assert found == {"parent": ({"parent"}, None), "child": ({"child"}, "parent")}

    def test_two_subagents_at_once(self, agent: Any) -> None:
        parent, one, other = agent("Do all of it."), agent("Find the file."), agent("Find the file.")
        found = sessions_of(
            ("parent", parent.asks(0, 1, CALL_ID + "1")),
            ("one", one.asks(1.1, 2, CALL_ID + "2")),
            ("other", other.asks(1.2, 2.2, CALL_ID + "3")),
            ("other", other.asks(2.3, 4, CALL_ID + "4")),
            ("one", one.asks(2.5, 3)),
            ("other", other.asks(4.1, 5)),
            ("parent", parent.asks(5.1, 6)),
        )
        assert {name: parent for name, (_, parent) in found.items()} == {
            "parent": None,
            "one": "parent",
            "other": "parent",
        }
        assert found["parent"][0] == {"parent"}
        if not agent.keywords[
            "is_gemini"
        ]:  # without ids of calls, equal subagents at the same time cannot be told apart
            assert (found["one"][0], found["other"][0]) == ({"one"}, {"other"})

    def test_subagent_of_a_subagent(self, agent: Any) -> None:
        parent, child, inner = agent("Do all of it."), agent("Find the file."), agent("Read the file.")
        found = sessions_of(
            ("parent", parent.asks(0, 1, CALL_ID + "1")),
            ("child", child.asks(1.1, 2, CALL_ID + "2")),
            ("inner", inner.asks(2.1, 3, CALL_ID + "3")),
            ("inner", inner.asks(3.1, 4)),
            ("child", child.asks(4.1, 5)),
            ("parent", parent.asks(5.1, 6)),
        )
        assert found == {
            "parent": ({"parent"}, None), "child": ({"child"}, "parent"), "inner": ({"inner"}, "child"),
        }  # fmt: skip

    def test_next_turns_and_retries_continue_the_conversation(self, agent: Any) -> None:
        one = agent("Do all of it.")
        requests = [one.asks(0, 1, fails=True), one.asks(1.1, 2, CALL_ID + "1"), one.asks(3, 4)]
        one.says("user", "And now the rest.")
        assert sessions_of(*(("one", r) for r in [*requests, one.asks(60, 61)])) == {"one": ({"one"}, None)}

    def test_last_subagent_is_that_of_the_caller_that_still_waits(self, agent: Any) -> None:
        parent, one, late = agent("Do all of it."), agent("Find the file."), agent("Count the lines.")
        found = sessions_of(
            ("parent", parent.asks(0, 1, CALL_ID + "1")),
            ("one", one.asks(1.1, 2, CALL_ID + "2")),
            ("late", late.asks(2.1, 3, CALL_ID + "3")),  # may be a subagent of either
            ("one", one.asks(3.1, 3.5)),  # does not wait for it
            ("late", late.asks(4, 5)),
            ("parent", parent.asks(5.1, 6)),
        )
        assert found["late"] == ({"late"}, "parent")


def test_other_run_of_the_same_program_is_a_session_of_its_own() -> None:
    one, other, again = Agent("Do all of it."), Agent("Something else."), Agent("Do all of it.")
    found = sessions_of(
        ("one", one.asks(0, 1, CALL_ID + "1")),
        ("other", other.asks(1.5, 2, CALL_ID + "2")),
        ("one", one.asks(3, 4)),
        ("other", other.asks(5, 6)),
        ("again", again.asks(10, 11)),
    )
    assert found == {"one": ({"one"}, None), "other": ({"other"}, None), "again": ({"again"}, None)}


def test_conversation_without_known_messages_continues_by_its_turns() -> None:
    """As in logs of earlier versions."""

    def asks(number: int, turn: int, *, calls_tool: bool = False, **more: Any) -> list[AnyRecord]:
        messages = [user(), *([{"role": "assistant"}, user()] * (turn - 1))]
        body = {"messages": messages, "tools": [{}]}
        records = request(number, body, **{"app": QWEN, "calls_tool": calls_tool} | more)
        return [
            msgspec.structs.replace(r, conversation=Conversation(turns=turn, has_tools=True))
            if isinstance(r, Request)
            else r
            for r in records
        ]

    known = Sessions()
    first, second, third = (stream_id(number) for number in (1, 3, 7))
    assert found(known, asks(1, 2, calls_tool=True), asks(2, 2, calls_tool=True)) == [(first, 2)] * 2
    # A subagent begins at its own first turn, between two requests of its parent.
    assert found(known, asks(3, 1, calls_tool=True), asks(4, 1)) == [(second, 1)] * 2
    assert found(known, asks(5, 2), asks(6, 3)) == [(first, 2), (first, 3)]
    # Another run of the same program. Both conversations could go on with turn 2: the latest does.
    assert found(known, asks(7, 1), asks(8, 2)) == [(third, 1), (third, 2)]
    title = request(9, {"messages": [user()]}, app=QWEN)
    other = asks(10, 2, app="OpenAI/Python 2.8")
    late = asks(9 + 30 * 60, 4)
    assert found(known, title, other, late) == [(None, None), (None, 2), (stream_id(9 + 30 * 60), 4)]


# -- views ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        yield con


def add(
    con: duckdb.DuckDBPyConnection, rows: Sequence[tuple[str, float, float, int | None, int, str]]
) -> None:
    """(session, start in s, duration in s, turn, tool calls, outcome)."""
    for number, (session, start_s, for_s, turn, tools, outcome) in enumerate(rows):
        con.execute(
            "INSERT INTO streams BY NAME SELECT ?::UUID AS stream_id, ? AS session_id, 'c' AS client_id, 'm' AS request_model, "
            "TIMESTAMPTZ '2026-11-01 00:00:00+00' + to_microseconds(?) AS started_at, ?::BIGINT AS end_ns, ?::INTEGER AS turn, "
            "?::INTEGER AS tool_call_count, ? AS outcome, 10 AS output_tokens, 5 AS input_tokens",
            [stream_id(number), session, int(start_s * 1e6), int(for_s * 1e9), turn, tools, outcome],
        )


def test_wait_for_subagents_is_neither_time_of_tools_nor_counted_twice(
    con: duckdb.DuckDBPyConnection,
) -> None:
    add(
        con,
        [
            ("s", 0, 2, 1, 3, "ok"),
            ("a", 3, 2, 1, 1, "ok"),
            ("b", 4, 3, 1, 0, "ok"),  # at the same time as the first subagent
            ("a", 8, 1, 1, 0, "ok"),  # after 3 s of the subagent's own tools
            ("c", 10, 1, 1, 1, "ok"),
            ("d", 12, 4, 1, 0, "ok"),  # a subagent of a subagent
            ("c", 17, 1, 1, 0, "ok"),
            ("s", 20, 2, 1, 0, "ok"),
            ("s", 30, 1, 2, 0, "ok"),
            ("b", 31, 1, 2, 0, "ok"),  # within a later pause for tools
            ("s", 33, 1, 2, 0, "ok"),
        ],
    )
    for child, parent in (("a", "s"), ("b", "s"), ("c", "s"), ("d", "c")):
        con.execute("UPDATE streams SET parent_session_id = ? WHERE session_id = ?", [parent, child])
    rows = {row["session_id"]: row for row in con.execute("FROM sessions").pl().to_dicts()}
    times = {
        name: (row["model_ns"], row["tool_ns"], row["subagent_ns"], row["user_wait_ns"])
        for name, row in rows.items()
    }
    assert times == {
        "s": (
            6e9,
            5e9,
            15e9,
            8e9,
        ),  # 18 s of tools and subagents (3 to 9 and 10 to 18), then 2 s with 1 s of a subagent
        "a": (3e9, 3e9, 0, 0),
        "b": (4e9, 0, 0, 24e9),
        "c": (2e9, 2e9, 4e9, 0),
        "d": (4e9, 0, 0, 0),
    }
    for row in rows.values():
        whole = sum(row[name] for name in ("model_ns", "tool_ns", "subagent_ns", "user_wait_ns"))
        assert whole == (row["last_at"] - row["first_at"]).total_seconds() * 1e9
    assert rows["d"]["parent_session_id"] == "c"
    day = Selection(since=datetime(2026, 11, 1, tzinfo=UTC), until=datetime(2026, 11, 2, tzinfo=UTC))
    assert run_summary.times(lambda sql: con.execute(sql).pl(), day) == (18e9, 10e9, 5)


def test_session_time_is_split_between_user_model_and_tools(con: duckdb.DuckDBPyConnection) -> None:
    add(
        con,
        [
            ("s", 0, 2, 1, 1, "ok"),
            ("s", 5, 1, 1, 0, "ok"),  # 3 s of tools
            ("s", 16, 4, 2, 0, "http_error"),  # 10 s of the user
            ("s", 17, 1, 2, 0, "ok"),  # within the one before
            ("s", 19, 3, 2, 0, "client_abort"),  # overlaps it by 1 s
            ("t", 1, 1, None, 0, "ok"),
        ],
    )
    [row] = con.execute("FROM sessions WHERE session_id = 's'").pl().to_dicts()
    assert (row["turns"], row["requests"], row["errors"], row["models"]) == (2, 5, 1, ["m"])
    assert (row["user_wait_ns"], row["tool_ns"], row["model_ns"]) == (10e9, 3e9, 9e9)
    assert (row["last_at"] - row["first_at"]).total_seconds() == 22
    assert (row["input_tokens"], row["output_tokens"], row["unfinished_output_tokens"]) == (25, 50, 20)
    requests = con.execute(
        "SELECT request, pause, pause_ns, model_ns FROM session_turns WHERE session_id = 's'"
    )
    assert requests.fetchall() == [
        (1, None, None, 2e9), (2, "tool", 3e9, 1e9), (3, "user", 10e9, 4e9), (4, None, None, 0), (5, None, None, 2e9),
    ]  # fmt: skip


def test_calls_of_tools_are_no_requests_of_a_session(con: duckdb.DuckDBPyConnection) -> None:
    add(
        con,
        [
            ("s", 0, 1, 1, 1, "ok"),
            ("s", 1.5, 2, None, 0, "ok"),
            ("s", 4, 1, 1, 0, "ok"),
            ("m", 0, 1, None, 0, "ok"),
        ],
    )
    con.execute("UPDATE streams SET dialect = 'mcp' WHERE turn IS NULL")
    assert con.execute("SELECT session_id, requests, model_ns, tool_ns FROM sessions").fetchall() == [
        ("s", 2, 2e9, 3e9)
    ]
    day = Selection(since=datetime(2026, 11, 1, tzinfo=UTC), until=datetime(2026, 11, 2, tzinfo=UTC))
    add(con, [("w", 0, 3600, None, 0, "ok")])
    con.execute("UPDATE streams SET operation = 'websocket' WHERE session_id = 'w'")
    assert run_summary.times(lambda sql: con.execute(sql).pl(), day) == (2e9, 3e9, 1)


def test_pauses_without_turns_follow_from_tool_calls(con: duckdb.DuckDBPyConnection) -> None:
    add(con, [("s", 0, 1, None, 2, "ok"), ("s", 2, 1, None, 0, "ok"), ("s", 4, 1, None, 0, "ok")])
    assert con.execute("SELECT pause FROM session_turns ORDER BY request").fetchall() == [
        (None,), ("tool",), ("user",),
    ]  # fmt: skip
    assert con.execute("SELECT turns FROM sessions").fetchall() == [(2,)]


def test_inner_streams_of_hops_are_no_requests_of_a_session(con: duckdb.DuckDBPyConnection) -> None:
    add(con, [("s", 0, 2, 1, 0, "ok"), ("s", 0.5, 1, 1, 0, "ok")])
    con.execute(
        "INSERT INTO hops BY NAME SELECT ?::UUID AS outer_stream_id, ?::UUID AS inner_stream_id, now() AS outer_started_at, "
        "'trace' AS matched_by, 1 AS attempt, 'ok' AS inner_outcome",
        [stream_id(0), stream_id(1)],
    )
    assert con.execute("SELECT requests FROM sessions").fetchall() == [(1,)]


def test_a_response_is_a_session_only_if_a_request_continues_it(con: duckdb.DuckDBPyConnection) -> None:
    add(
        con,
        [
            ("resp_1", 0, 1, 1, 0, "ok"),
            ("resp_2", 1, 1, 1, 0, "ok"),
            ("resp_2", 3, 1, 2, 0, "ok"),
            ("named", 5, 1, 1, 0, "ok"),
        ],
    )
    for number, response_id in enumerate(["resp_1", "resp_2", "resp_3", "resp_4"]):
        con.execute(
            "UPDATE streams SET response_id = ? WHERE stream_id = ?::UUID", [response_id, stream_id(number)]
        )
    assert con.execute("SELECT session_id, requests FROM sessions ORDER BY ALL").fetchall() == [
        ("named", 1),
        ("resp_2", 2),
    ]
    day = Selection(since=datetime(2026, 11, 1, tzinfo=UTC), until=datetime(2026, 11, 2, tzinfo=UTC))

    def query(sql: str) -> pl.DataFrame:
        return con.execute(sql).pl()

    assert set(reports.table(query, day)["session_id"]) == {"named", "resp_2"}
    assert reports.count(query, day) == {"sessions": 2, "in_session": 3, "requests": 4}

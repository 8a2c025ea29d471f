"""Spans of finished streams: ids, times, names, phases, replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.consumer import CommitPolicy, Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.telemetry.semconv import names_of
from streamgauge.analytics.telemetry.spans import MAX_STALLS, SpanBuilder
from streamgauge.analytics.telemetry.telemetry import Telemetry
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request, Wait
from tests.analytics import log_entries, stream_records, test_realtime
from tests.analytics.log_entries import MemoryLog, entries
from tests.analytics.sockets import SOCKET, Sent, create, recorded
from tests.analytics.stores import new_store
from tests.options import telemetry_options

MS = 1_000_000


def finished(records: list[AnyRecord], *, content: bool = False) -> FinishedStream:
    assembler = Assembler(capture=("*",) if content else ())
    assembler.feed("w0", 0, records)
    (stream,) = assembler.take_finished()
    return stream


def spans(records: list[AnyRecord], *, profile: str = "1.41", content: bool = False) -> list[ReadableSpan]:
    stream = finished(records, content=content)
    row = measure([stream])["streams"].row(0, named=True)
    return SpanBuilder(names_of(profile), Resource({}), content=content).build(stream, row)


def stream_of_reads(
    reads: list[tuple[int, bytes]],
    *,
    cause: Any = "complete",
    status: int = 200,
    body: bytes = b"{}",
    waits: list[Wait] | None = None,
    **opened_fields: Any,
) -> list[AnyRecord]:
    sid = stream_records.stream_id(1)
    return [
        stream_records.opened(sid, **opened_fields),
        Request(sid, 1, body, False),
        Frames(sid, 2, reads, stream_records.head(status)),
        stream_records.closed(
            sid, 3, cause=cause, end_ns=(reads[-1][0] if reads else 50) + 5 * MS, waits=waits
        ),
    ]


def events_of(span: ReadableSpan) -> list[tuple[str, int]]:
    return [(e.name.removeprefix("streamgauge."), e.timestamp - (span.start_time or 0)) for e in span.events]


def test_operation_span_has_the_ids_of_traceparent_and_the_times_of_the_tap() -> None:
    records = stream_of_reads(
        [(100 * MS, stream_records.chunk("a")), (200 * MS, stream_records.chunk("b")), (300 * MS, stream_records.finish_chunk())],
        trace_id="ab" * 16, span_id="cd" * 8, parent_span_id="ef" * 8, body=b'{"model":"m","temperature":0.5,"n":1}',
    )  # fmt: skip
    operation = spans(records)[0]
    assert operation.context is not None
    assert operation.parent is not None
    assert f"{operation.context.trace_id:x}" == "ab" * 16
    assert f"{operation.context.span_id:x}" == "cd" * 8
    assert f"{operation.parent.span_id:x}" == "ef" * 8
    assert operation.kind is SpanKind.CLIENT
    assert operation.name == "chat m"
    assert (operation.start_time, operation.end_time) == (
        stream_records.START_NS,
        stream_records.START_NS + 305 * MS,
    )
    assert operation.attributes is not None
    assert operation.attributes["gen_ai.request.temperature"] == 0.5
    assert operation.attributes["gen_ai.response.time_to_first_chunk"] == 0.1
    assert operation.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert operation.attributes["server.port"] == 8000
    assert operation.attributes["openai.api.type"] == "chat_completions"
    assert "gen_ai.request.choice.count" not in operation.attributes
    assert "error.type" not in operation.attributes
    assert events_of(operation) == [
        ("first_chunk", 100 * MS),
        ("first_output", 100 * MS),
        ("terminal", 300 * MS),
    ]


def test_phase_spans_cover_the_exchange() -> None:
    def delta(**fields: Any) -> bytes:
        return stream_records.chunk(choices=[{"index": 0, "delta": fields}])

    def tool(arguments: str, **more: Any) -> bytes:
        return delta(tool_calls=[{"index": 0, "function": {"arguments": arguments, **more}}])

    records = stream_of_reads(
        [
            (100 * MS, delta(reasoning_content="hm")),
            (200 * MS, delta(reasoning_content="so")),
            (300 * MS, delta(content="Well")),
            (400 * MS, tool("", name="gauge")),
            (500 * MS, tool('{"a":1}')),
            (600 * MS, stream_records.finish_chunk("tool_calls")),
        ]
    )
    operation, *phases = spans(records)
    assert operation.context is not None
    began = operation.start_time or 0
    times = {p.name: ((p.start_time or 0) - began, (p.end_time or 0) - began) for p in phases}
    assert times == {
        "connect": (0, 10),
        "wait for headers": (10, 50),
        "wait for first output": (50, 100 * MS),
        "reasoning": (100 * MS, 200 * MS),
        "output": (300 * MS, 500 * MS),
        "tool call gauge": (400 * MS, 500 * MS),
        "linger": (600 * MS, 605 * MS),
    }
    assert all(p.parent == operation.context for p in phases)
    assert len({p.context.span_id for p in phases if p.context}) == len(phases)


def test_tool_that_the_provider_runs_has_no_span() -> None:
    def event(name: str, **fields: Any) -> bytes:
        return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()

    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    arguments = {"type": "input_json_delta", "partial_json": '{"query":"x"}'}
    records = stream_of_reads(
        [
            (100 * MS, event("message_start", message={"id": "m", "model": "claude", "role": "assistant", "content": []})),
            (200 * MS, event("content_block_start", index=0, content_block=search)),
            (300 * MS, event("content_block_delta", index=0, delta=arguments)),
            (400 * MS, event("content_block_stop", index=0)),
            (500 * MS, event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})),
            (600 * MS, event("message_stop")),
        ],
        path="/v1/messages",
    )  # fmt: skip
    assert finished(records).body.tool_times
    operation, *phases = spans(records)
    assert not [p.name for p in phases if p.name.startswith("tool call")]
    assert "streamgauge.tool_call" not in dict(events_of(operation))


@pytest.mark.parametrize(
    ("method", "operation"), [("tools/call", "execute_tool"), ("tools/list", "tools/list")]
)
def test_mcp_request_has_its_method_as_an_attribute(method: str, operation: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "level"}}
    request = json.dumps(message).encode()
    records = stream_of_reads([(MS, b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')], body=request)
    (span, *_) = spans(records)
    tool = "level" if method == "tools/call" else None
    assert span.name == " ".join(filter(None, (method, tool)))
    assert span.attributes is not None
    assert span.attributes.get("gen_ai.tool.name") == tool
    assert span.attributes["mcp.method.name"] == method
    assert span.attributes["gen_ai.operation.name"] == operation


def test_replay_builds_the_same_spans() -> None:
    records = log_entries.stream(3)
    assert [s.to_json() for s in spans(records)] == [s.to_json() for s in spans(records)]


@pytest.mark.parametrize(
    ("cause", "reads", "error"),
    [
        ("complete", [(MS, stream_records.chunk("a"))], "stream_truncated"),
        ("upstream_reset", [(MS, stream_records.chunk("a"))], "upstream_reset"),
        ("client_left", [(MS, stream_records.chunk("a"))], None),
        ("complete", [(MS, stream_records.chunk("a")), (2 * MS, stream_records.finish_chunk())], None),
    ],
)
def test_only_upstream_failures_are_errors(
    cause: str, reads: list[tuple[int, bytes]], error: str | None
) -> None:
    operation = spans(stream_of_reads(reads, cause=cause))[0]
    assert operation.status.is_unset is (error is None)
    assert (operation.attributes or {}).get("error.type") == error


def test_stalls_have_their_cause_also_if_the_upstream_had_none() -> None:
    reads = [(i * MS, stream_records.chunk("x")) for i in range(3)]
    reads += [(900 * MS, stream_records.chunk("late")), (901 * MS, stream_records.finish_chunk())]
    [operation, *_] = spans(stream_of_reads(reads, waits=[(5 * MS, 880 * MS, "client")]))
    [stall] = [event for event in operation.events if event.name == "streamgauge.stall"]
    assert stall.attributes == {"streamgauge.stall.duration": 0.898, "streamgauge.stall.cause": "client"}
    assert (operation.attributes or {}).get("streamgauge.stall_count") == 0


def test_stalls_are_events_and_bounded() -> None:
    reads = [(i * MS, stream_records.chunk("x")) for i in range(200)]
    at_ns = reads[-1][0]
    for _ in range(MAX_STALLS + 8):
        at_ns += 600 * MS
        reads.append((at_ns, stream_records.chunk("late")))
    operation = spans(stream_of_reads([*reads, (at_ns + MS, stream_records.finish_chunk())]))[0]
    assert operation.attributes is not None
    assert operation.attributes["streamgauge.stall_count"] == MAX_STALLS + 8
    assert [name for name, _ in events_of(operation)].count("stall") == MAX_STALLS
    assert operation.attributes["streamgauge.stalls_not_shown"] == 8


def test_text_is_exported_only_if_captured_and_enabled() -> None:
    records = stream_of_reads([(MS, stream_records.chunk("secret")), (2 * MS, stream_records.finish_chunk())])
    assert "secret" not in "".join(s.to_json() for s in spans(records))
    messages = (spans(records, content=True)[0].attributes or {})["gen_ai.output.messages"]
    assert json.loads(str(messages))[0]["parts"] == [{"type": "text", "content": "secret"}]


def test_spans_are_stored_once_despite_a_restart(tmp_path: Path) -> None:
    payloads = list(entries(range(1, 25), chunks=5))
    store = new_store(tmp_path)
    for end in (9, 20, len(payloads)):
        log = MemoryLog({"w0": payloads[:end]})
        run = Consumer(
            log,
            store,
            Assembler(),
            measure,
            CommitPolicy(commit_interval_s=0.0),
            hooks=[Telemetry(telemetry_options())],
        )
        run.start()
        run.step(0)
        run.finish()
    found = store.cursor().execute(
        "SELECT count(*), count(DISTINCT span_id), count(DISTINCT stream_id), count(*) FILTER (kind = 'client'), "
        "count(*) FILTER (kind = 'client' AND span_id NOT IN (SELECT span_id FROM streams)) FROM spans"
    ).fetchone()  # fmt: skip
    store.close()
    assert found is not None
    rows, ids, streams, operations, strangers = found
    assert rows == ids
    assert (streams, operations, strangers) == (24, 24, 0)
    assert rows > 24 * 4


def test_genai_main_has_finish_reason_error_for_an_unfinished_choice() -> None:
    def finish_reasons(profile: str, *events: bytes) -> Any:
        records = stream_of_reads([(i * MS, event) for i, event in enumerate(events)])
        return (spans(records, profile=profile)[0].attributes or {}).get("gen_ai.response.finish_reasons")

    one_of_two = [
        stream_records.chunk(
            choices=[{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]
        ),
        stream_records.chunk(choices=[{"index": 1, "delta": {}, "finish_reason": "stop"}]),
    ]
    assert list(finish_reasons("1.41", *one_of_two)) == ["stop"]
    assert list(finish_reasons("genai-main", *one_of_two)) == ["error", "stop"]
    assert finish_reasons("1.41", stream_records.chunk("a")) is None
    assert list(finish_reasons("genai-main", stream_records.chunk("a"))) == ["error"]
    assert list(finish_reasons("genai-main", stream_records.chunk("a"), stream_records.finish_chunk())) == [
        "stop"
    ]


@pytest.mark.parametrize(
    ("profile", "named"),
    [("1.41", {"creation"}), ("genai-main", {"write"}), ("1.41+genai-main", {"creation", "write"})],
)
def test_cache_write_tokens_are_an_attribute(profile: str, named: set[str]) -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 40,
        "cache_read_input_tokens": 5,
        "output_tokens": 1,
    }
    start: dict[str, Any] = {
        "type": "message_start",
        "message": {"id": "m", "model": "c", "role": "assistant", "usage": usage},
    }
    stop: dict[str, Any] = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 9},
    }
    reads = [
        (MS, b"event: %b\ndata: %b\n\n" % (v["type"].encode(), json.dumps(v).encode())) for v in (start, stop)
    ]
    found = spans(stream_of_reads(reads, path="/v1/messages"), profile=profile)[0].attributes or {}
    written = {kind: found.get(f"gen_ai.usage.cache_{kind}.input_tokens") for kind in ("creation", "write")}
    assert written == {kind: 40 if kind in named else None for kind in written}
    assert found["gen_ai.usage.cache_read.input_tokens"] == 5
    assert found["gen_ai.usage.input_tokens"] == 48


def test_conditional_request_parameters() -> None:
    def attributes(body: dict[str, Any], profile: str = "1.41") -> Any:
        reads = [(MS, stream_records.chunk("a")), (2 * MS, stream_records.finish_chunk())]
        return spans(stream_of_reads(reads, body=json.dumps(body).encode()), profile=profile)[0].attributes

    assert "openai.request.service_tier" not in attributes({"service_tier": "auto"})
    assert attributes({"service_tier": "flex"})["openai.request.service_tier"] == "flex"
    assert attributes({"n": 2})["gen_ai.request.choice.count"] == 2
    assert isinstance(attributes({"top_k": 40})["gen_ai.request.top_k"], float)
    assert isinstance(attributes({"top_k": 40}, "genai-main")["gen_ai.request.top_k"], int)
    assert "gen_ai.request.reasoning.level" not in attributes({"reasoning_effort": "low"})
    assert attributes({"reasoning_effort": "low"}, "genai-main")["gen_ai.request.reasoning.level"] == "low"
    both = attributes({"top_k": 40, "reasoning_effort": "low"}, "1.41+genai-main")
    assert isinstance(both["gen_ai.request.top_k"], float)
    assert both["gen_ai.request.reasoning.level"] == "low"


def test_genai_main_has_the_modalities_of_tokens_and_the_previous_response() -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"audio_tokens": 30, "image_tokens": 20, "cached_tokens": 0},
        "output_tokens": 50,
        "output_tokens_details": {"audio_tokens": 40},
    }
    done = {"type": "response.completed", "response": {"id": "r", "status": "completed", "usage": usage}}
    reads = [(MS, b"event: response.completed\ndata: %b\n\n" % json.dumps(done).encode())]
    body = json.dumps({"model": "m", "stream": True, "previous_response_id": "resp_1"}).encode()
    found = {
        profile: spans(stream_of_reads(reads, path="/v1/responses", body=body), profile=profile)[0].attributes
        or {}
        for profile in ("1.41", "1.41+genai-main")
    }
    assert not any(".audio." in name or "previous" in name for name in found["1.41"])
    expected = {
        "gen_ai.usage.audio.input_tokens": 30,
        "gen_ai.usage.audio.output_tokens": 40,
        "gen_ai.usage.image.input_tokens": 20,
        "gen_ai.request.previous_response.id": "resp_1",
    }
    assert expected.items() <= found["1.41+genai-main"].items()


def test_stream_with_failing_spans_is_counted_and_committed() -> None:
    stream = finished(log_entries.stream(1))
    telemetry = Telemetry(telemetry_options())
    tables = measure([stream])
    stream.request = None  # type: ignore[assignment]  # simulates a bug
    assert telemetry.rows([stream], tables)["spans"].is_empty()
    telemetry.committed()
    assert telemetry.counters()["spans_not_made"] == 1
    assert isinstance(stream.closed, Closed)
    assert isinstance(stream.opened, Opened)


def test_span_of_an_answer_on_a_websocket_has_its_connection_and_its_audio() -> None:
    messages = [test_realtime.session(), test_realtime.sent(1000, "client", "response.create")]
    assembler = Assembler()
    assembler.feed("w0", 0, recorded([*messages, *test_realtime.answer(1000, "r0")], path="/v1/realtime"))
    answer, socket = (
        SpanBuilder(names_of("1.41"), Resource({})).build(
            stream, measure([stream])["streams"].row(0, named=True)
        )[0]
        for stream in assembler.take_finished()
    )
    found = {
        name.removeprefix("streamgauge."): value for name, value in (answer.attributes or {}).items()
        if name.endswith(("audio", "connection_id", "response_index", "protocol.name"))
    }  # fmt: skip
    assert found == {
        "network.protocol.name": "websocket", "connection_id": SOCKET, "response_index": 0, "first_audio": 0.11, "audio": 0.2,
    }  # fmt: skip
    (event,) = (event for event in answer.events if event.name == "streamgauge.first_audio")
    assert event.timestamp - (answer.start_time or 0) == 110 * MS
    assert "streamgauge.connection_id" not in (socket.attributes or {})


def test_answer_on_a_websocket_has_the_phases_of_others() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell"}
    sent = [
        (100, {"type": "response.created", "response": {"id": "r", "model": "m", "status": "in_progress"}}),
        (200, {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0, "summary_index": 0, "delta": "why"}),
        (300, {"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0, "summary_index": 0, "delta": "."}),
        (400, {"type": "response.output_item.added", "output_index": 1, "item": item | {"arguments": ""}}),
        (500, {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 1, "delta": "{}"}),
        (600, {"type": "response.completed", "response": {"id": "r", "model": "m", "status": "completed"}}),
    ]  # fmt: skip
    messages: list[Sent] = [(0, "client", create())]
    messages += [(at, "server", json.dumps(event).encode()) for at, event in sent]
    assembler = Assembler()
    assembler.feed("w0", 0, recorded(messages))
    answer = next(one for one in assembler.take_finished() if one.stream_id != SOCKET)
    built = SpanBuilder(names_of("1.41"), Resource({})).build(
        answer, measure([answer])["streams"].row(0, named=True)
    )
    start = built[0].start_time or 0
    phases = {span.name: ((span.start_time or 0) - start, (span.end_time or 0) - start) for span in built[1:]}
    assert phases == {
        "wait for first output": (0, 200 * MS),
        "reasoning": (200 * MS, 300 * MS),
        "output": (400 * MS, 500 * MS),
        "tool call shell": (400 * MS, 500 * MS),
    }

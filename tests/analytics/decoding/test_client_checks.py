"""Streams that break rules of strict clients have exactly the codes of these rules, however they arrive."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from streamgauge.analytics.decoding.client_checks.base import ClientChecks
from streamgauge.analytics.decoding.client_checks.by_dialect import CHECKS
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import RawEvent
from streamgauge.analytics.schema.strict_clients import CHAT, CLIENTS, MESSAGES, RESPONSES, RULES
from streamgauge.ingest.redaction.body_redactor import BodyRedactor
from tests.analytics import strict_streams
from tests.analytics.strict_streams import (
    PATHS,
    STREAMS,
    Stream,
    chat_call,
    chat_text,
    chat_tool,
    chunk,
    data,
    delta_of,
    joined,
    message_text,
    message_tool,
    named,
)


def decoded(stream: Stream, read_bytes: int) -> StreamDecoder:
    exchange = ExchangeInfo(
        path=PATHS[stream.dialect], content_type=stream.content_type, stream_requested=True, has_prompt=True
    )
    decoder = StreamDecoder(exchange)
    body = stream.body
    decoder.feed([(at, body[at : at + read_bytes]) for at in range(0, len(body), read_bytes)])
    decoder.finish()
    return decoder


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_stream_has_the_codes_of_the_rules_that_it_breaks(stream: Stream) -> None:
    redacted = replace(stream, body=BodyRedactor().feed(stream.body))
    for given, read_bytes in ((stream, len(stream.body)), (stream, 1), (redacted, 97)):
        hidden = {"malformed_input", "unparsable_input"} if given is redacted else set()
        assert decoded(given, read_bytes).violations(ended=True) == sorted(set(stream.rules) - hidden)


def test_each_rule_is_broken_by_a_stream_of_each_of_its_dialects() -> None:
    broken = {(rule, stream.dialect) for stream in STREAMS for rule in stream.rules}
    assert {(rule.code, dialect) for rule in RULES.values() for dialect in rule.clients} == broken
    assert {c for rule in RULES.values() for clients in rule.clients.values() for c in clients} == set(
        CLIENTS
    )
    assert {dialect for rule in RULES.values() for dialect in rule.clients} == set(CHECKS)


def delta_with(**choice: Any) -> dict[str, Any]:
    return {**chunk({}), "choices": [choice]}


def long_chat(*extra: bytes) -> bytes:
    """A chat answer of 300 chunks, so that the template decodes nearly all of them."""
    start, *_, finish, usage, done = chat_text()
    return joined(
        [start, *(chunk({"content": f"w{n} "}) for n in range(300)), *extra, finish, usage, done], data
    )


@pytest.mark.parametrize(
    ("extra", "rules"),
    [(b"", []), (data({"type": "ping"}), ["foreign_event"]), (data(b"oops"), ["invalid_json"])],
)
def test_event_unlike_the_others_is_found_among_events_that_match_the_template(extra: bytes, rules: list[str]) -> None:  # fmt: skip
    stream = Stream("long", CHAT, long_chat(extra), ())
    lines = [event + b"\n\n" for event in stream.body.split(b"\n\n")[:-1]]
    decoder = StreamDecoder(ExchangeInfo(path=PATHS[CHAT], content_type=stream.content_type))
    decoder.feed(list(enumerate(lines)))
    decoder.finish()
    assert decoder.violations(ended=True) == rules


@pytest.mark.parametrize("at", [5, 100, 250])
def test_output_whose_other_members_differ_is_found_among_padded_ones(at: int) -> None:
    start, *_, finish, usage, done = chat_text()
    padded = [{**chunk({"content": f"w{n} "}), "obfuscation": "x" * (n % 7)} for n in range(300)]
    padded[at]["choices"][0]["finish_reason"] = []
    stream = Stream("padded", CHAT, joined([start, *padded, finish, usage, done], data), ())
    assert decoded(stream, 97).violations(ended=True) == ["wrong_type"]


@pytest.mark.parametrize("read_bytes", [97, 10**6])
def test_second_tool_call_is_checked_after_many_arguments_of_the_first(read_bytes: int) -> None:
    start, part, *_ = chat_tool()
    second = chat_call(id="call_2", function={"name": "shell", "arguments": ""})
    delta_of(second)["tool_calls"][0]["index"] = 1
    stream = Stream("calls", CHAT, joined([start, *[part] * 300, second, *chat_tool()[3:]], data), ())
    assert decoded(stream, read_bytes).violations(ended=True) == ["tool_call_without_type"]


def test_what_a_stream_lacks_at_its_end_counts_only_if_it_ended() -> None:
    stream = next(s for s in STREAMS if s.name == "anthropic_messages: no message_stop")
    assert decoded(stream, 97).violations(ended=False) == []


@pytest.mark.parametrize("events", [message_text(), message_tool()], ids=["text", "tool"])
def test_messages_whose_events_are_out_of_order_are_checked(events: list[Any]) -> None:
    """Also those whose `message_start` follows a block, or the parts of one."""
    for at in range(1, len(events)):
        late = [*events[1 : at + 1], events[0], *events[at + 1 :]]
        stream = Stream("late", MESSAGES, joined(late, named), ())
        assert "missing_message_start" in decoded(stream, 97).violations(ended=True)


def test_errors_inside_a_stream_break_no_rule() -> None:
    error = {"error": {"message": "overloaded", "type": "server_error"}}
    stream = Stream("error", CHAT, joined([*chat_text()[:3], error], data), ())
    assert decoded(stream, 97).violations(ended=False) == []


@pytest.mark.parametrize(
    ("path", "event", "rules"),
    [
        (
            PATHS[CHAT],
            delta_with(index=[], delta={"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}),
            ["missing_choice", "missing_index", "wrong_type"],
        ),
        (
            PATHS[CHAT],
            delta_with(index=0, delta={"role": {}, "tool_calls": 5}),
            ["missing_finish", "missing_role", "wrong_role", "wrong_tool_calls", "wrong_type"],
        ),
        (
            PATHS[RESPONSES],
            {"type": "response.output_item.done", "output_index": {}, "item": 3},
            [
                "incomplete_event",
                "missing_item",
                "missing_response_created",
                "output_index_gap",
                "unknown_output_index",
            ],
        ),
    ],
)
def test_members_of_other_types_are_counted(path: str, event: dict[str, Any], rules: list[str]) -> None:
    decoder = StreamDecoder(ExchangeInfo(path=path, content_type="text/event-stream"))
    decoder.feed([(1, data(event))])
    decoder.finish()
    assert decoder.violations(ended=True) == rules


def test_long_stream_lacks_no_end_that_was_not_checked() -> None:
    stream = next(s for s in STREAMS if s.dialect == MESSAGES and not s.rules)
    start, *rest = stream.body.split(b"\n\n")
    pings = [b'event: ping\ndata: {"type": "ping"}'] * 300
    long = replace(stream, body=b"\n\n".join([start, *pings, *rest]))
    assert decoded(long, 97).violations(ended=True) == []


VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    1.5,
    2**70,
    "",
    "a",
    "assistant",
    "é",
    "\ud83d",
    [],
    ["a"],
    [{}],
    {},
    {"a": "é", "type": "a"},
]
BYTES = [
    b"\xff",
    b"\\",
    b'"',
    b"\x01",
    b"\\ud83d",
    b"\\x",
    b"0",
    b"-",
    b",",
    b"]",
    b"}",
    b"NaN",
    "é".encode(),
    b" ",
    b"",
]


def mutated(value: Any, rng: random.Random) -> Any:
    """A JSON value with one member added, removed or replaced at any depth."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy: Any = value.copy()
    act = rng.random()
    if act < 0.2:
        del copy[key]
    elif act < 0.3 and isinstance(copy, dict):
        copy[rng.choice(["error", "usage", "role", "tool_calls", "x"])] = rng.choice(VALUES)
    else:
        copy[key] = mutated(copy[key], rng)
    return copy


def mutated_data(data: bytes, rng: random.Random) -> bytes:
    """The data of an event with changes of its value or of its bytes."""
    if rng.random() < 0.5:
        at = rng.randrange(len(data))
        return data[:at] + rng.choice(BYTES) + data[at + rng.randrange(2) :]
    try:
        return json.dumps(mutated(json.loads(data), rng), ensure_ascii=rng.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
    except ValueError:
        return data


@pytest.mark.parametrize(
    "dialect", [d for d, of in CHECKS.items() if of._accepts is not ClientChecks._accepts]
)
def test_event_that_is_accepted_early_breaks_no_rule(dialect: str) -> None:
    rng = random.Random(dialect)
    streams = [stream.body for stream in STREAMS if stream.dialect == dialect]
    slow_checks = type("", (CHECKS[dialect],), {"_accepts": ClientChecks._accepts})
    for _ in range(8000):
        parts = [part.rpartition(b"data: ") for part in rng.choice(streams).split(b"\n\n")]
        names = ["x" if head.startswith(b"event: ") else "" for head, _, _ in parts]
        events = [RawEvent(name, data, 0, 0) for name, (_, _, data) in zip(names, parts, strict=True) if data]
        for _ in range(rng.randrange(4)):
            event = rng.choice(events)
            event.data = mutated_data(event.data, rng) or b"{}"
            event.name = rng.choice(["x", event.name, ""])
        if rng.random() < 0.3:
            end = rng.randrange(len(events))
            del events[rng.randrange(end + 1) : end + 1]
        kinds = [rng.choice(["text", "other", "start"]) for _ in events]
        fast, slow = CHECKS[dialect](), slow_checks()
        fast.check(events, kinds, [1] * len(events), [None] * len(events))
        slow.check(events, kinds, [1] * len(events), [None] * len(events))
        broken = [of.violations(ended=True, framing=(), arguments={0: '{"a": 1}'}) for of in (fast, slow)]
        assert broken[0] == broken[1], events


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", b'{"choices": []}'), ("/x", data({"a": 1}))]
)
def test_other_formats_have_no_violations(path: str, body: bytes) -> None:
    decoder = StreamDecoder(ExchangeInfo(path=path, content_type="application/json"))
    decoder.feed([(1, body)])
    decoder.finish()
    assert decoder.violations(ended=True) is None


def test_streams_are_told_apart_by_their_names() -> None:
    assert len({stream.name for stream in strict_streams.STREAMS}) == len(STREAMS)

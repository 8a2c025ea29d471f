"""Streams that break one rule of strict clients each, and streams that all of these clients accept.

Each is a complete answer with the text "Hello strict world" or a call of the tool `shell`, the finish reason and a usage of 7 and 3
tokens, as the API sends it, with one change. `tests/e2e/test_strict_clients.py` runs the clients on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES

Event = dict[str, Any]
Change = Callable[[list[Any]], object]
PATHS = {CHAT: "/v1/chat/completions", MESSAGES: "/v1/messages", RESPONSES: "/v1/responses"}
TEXTS = ("Hello", " strict", " world")


@dataclass(frozen=True)
class Stream:
    name: str
    dialect: str
    body: bytes
    rules: tuple[str, ...]
    """Codes of the rules that it breaks."""
    content_type: str = "text/event-stream"
    is_tool_call: bool = False


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def data(value: Any) -> bytes:
    """One event without a name. Bytes are the data as it is."""
    return b"data: " + (value if isinstance(value, bytes) else compact(value)) + b"\n\n"


def named(event: Event, name: str | None = None) -> bytes:
    return b"event: " + (name or event["type"]).encode() + b"\n" + data(event)


def joined(events: list[Any], write: Callable[[Event], bytes]) -> bytes:
    """The bytes of events; those that are bytes already are kept."""
    return b"".join(event if isinstance(event, bytes) else write(event) for event in events)


def without(*keys: str) -> Callable[[Event], Event]:
    return lambda event: {k: v for k, v in event.items() if k not in keys}


def replaced(events: list[Any], new: Callable[[Event], Any]) -> None:
    """Replace all events."""
    events[:] = map(new, events)


# The answers as the APIs send them


def chunk(delta: Event | None, finish: str | None = None, **more: Any) -> Event:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return {**head, "choices": choices, **more}


CHAT_USAGE = chunk(None, choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})


def chat_text() -> list[Any]:
    """0: role, 1–3: text, 4: finish reason, 5: usage, 6: [DONE]."""
    texts = [chunk({"content": text}) for text in TEXTS]
    return [
        chunk({"role": "assistant", "content": ""}),
        *texts,
        chunk({}, "stop"),
        {**CHAT_USAGE},
        data(b"[DONE]"),
    ]


def chat_call(**more: Any) -> Event:
    """A delta of a tool call."""
    return chunk({"tool_calls": [{"index": 0, **more}]})


def chat_tool() -> list[Any]:
    """0: start of the call, 1–2: arguments, 3: finish reason, 4: usage, 5: [DONE]."""
    start = chat_call(id="call_1", type="function", function={"name": "shell", "arguments": ""})
    start["choices"][0]["delta"]["role"] = "assistant"
    arguments = [chat_call(function={"arguments": part}) for part in ('{"a"', ":1}")]
    return [start, *arguments, chunk({}, "tool_calls"), {**CHAT_USAGE}, data(b"[DONE]")]


def call_of(event: Event) -> Event:
    found: Event = event["choices"][0]["delta"]["tool_calls"][0]
    return found


def delta_of(event: Event) -> Event:
    found: Event = event["choices"][0]["delta"]
    return found


def message_text() -> list[Any]:
    """0: start, 1: block start, 2: ping, 3–5: text, 6: block stop, 7: finish and usage, 8: stop."""
    usage = {"input_tokens": 7, "output_tokens": 1}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
    }
    return [
        {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in TEXTS),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]  # fmt: skip


def message_tool() -> list[Any]:
    """As `message_text`, with a tool call instead of the text."""
    events = message_text()
    events[1]["content_block"] = {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {}}
    parts = ("", '{"a"', ":1}")
    events[3:6] = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": part}} for part in parts
    ]  # fmt: skip
    events[7]["delta"]["stop_reason"] = "tool_use"
    return events


def response(status: str, output: list[Event], usage: Event | None = None) -> Event:
    return {
        "id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status, "model": "m", "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
        "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1, "usage": usage,
    }  # fmt: skip


def response_of(added: Event, deltas: list[Event], done: Event) -> list[Any]:
    usage = {
        "input_tokens": 7, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10,
    }  # fmt: skip
    events: list[Event] = [
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.in_progress", "response": response("in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": added},
        *deltas,
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": response("completed", [{**done}], usage)},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def response_text() -> list[Any]:
    """0–1: start, 2: item, 3: part, 4–6: text, 7–9: its end, 10: completed."""
    place = {"item_id": "item_1", "output_index": 0, "content_index": 0}
    text = "".join(TEXTS)

    def part(text: str) -> Event:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(status: str, content: list[Event]) -> Event:
        return {"type": "message", "id": "item_1", "status": status, "role": "assistant", "content": content}

    deltas: list[Event] = [
        {"type": "response.content_part.added", **place, "part": part("")},
        *({"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []} for piece in TEXTS),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part(text)},
    ]
    return response_of(item("in_progress", []), deltas, item("completed", [part(text)]))


def response_tool() -> list[Any]:
    """0–1: start, 2: item, 3–4: arguments, 5–6: its end, 7: completed."""
    place = {"item_id": "fc_1", "output_index": 0}
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "shell",
        "arguments": "",
        "status": "in_progress",
    }
    arguments = '{"a":1}'
    deltas = [
        *(
            {"type": "response.function_call_arguments.delta", **place, "delta": part}
            for part in ('{"a"', ":1}")
        ),
        {"type": "response.function_call_arguments.done", **place, "name": "shell", "arguments": arguments},
    ]
    return response_of(item, deltas, {**item, "arguments": arguments, "status": "completed"})


WRITERS: dict[str, tuple[Callable[[], list[Any]], Callable[[], list[Any]], Callable[[Event], bytes]]] = {
    CHAT: (chat_text, chat_tool, data),
    MESSAGES: (message_text, message_tool, named),
    RESPONSES: (response_text, response_tool, named),
}

STREAMS: list[Stream] = []


def add(
    dialect: str,
    name: str,
    *rules: str,
    change: Change = len,
    to_bytes: Callable[[bytes], bytes] = bytes,
    tool: bool = False,
    kind: str = "text/event-stream",
) -> None:
    text, call, write = WRITERS[dialect]
    events = call() if tool else text()
    change(events)
    body = to_bytes(joined(events, write))
    STREAMS.append(Stream(f"{dialect}: {name}", dialect, body, rules, kind, tool))


def inserted(at: int, *new: Any) -> Change:
    def change(events: list[Any]) -> None:
        events[at:at] = new

    return change


def removed(*at: int) -> Change:
    def change(events: list[Any]) -> None:
        for index in sorted(at, reverse=True):
            del events[index]

    return change


def updated(get: Callable[[list[Any]], Event], **new: Any) -> Change:
    return lambda events: get(events).update(new)


def popped(get: Callable[[list[Any]], Event], *keys: str) -> Change:
    return lambda events: [get(events).pop(key) for key in keys]


def split(at: int, between: bytes) -> Change:
    """Cut the JSON of one event in two."""

    def change(events: list[Any]) -> None:
        event = events[at]
        line = compact(event)
        head = b"event: " + event["type"].encode() + b"\n" if "type" in event else b""
        events[at] = head + b"data: " + line[:40] + between.replace(b"HEAD", head) + line[40:] + b"\n\n"

    return change


def merged(at: int) -> Change:
    """Two events without the blank line between them."""

    def change(events: list[Any]) -> None:
        first, second = events[at], events[at + 1]
        write = named if "type" in first else data
        events[at : at + 2] = [write(first)[:-1] + data(second)]

    return change


def indented(events: list[Any]) -> None:
    lines = json.dumps(events[1], indent=1).encode().split(b"\n")
    events[1] = b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def unprefixed(at: int) -> Change:
    """One event without `data:`."""

    def change(events: list[Any]) -> None:
        event = events[at]
        head = b"event: " + event["type"].encode() + b"\n" if "type" in event else b""
        events[at] = head + compact(event) + b"\n\n"

    return change


def each(function: Callable[[Event], object]) -> Change:
    return lambda events: [function(event) for event in events if isinstance(event, dict)]


def replaced_text(events: list[Any]) -> None:
    for event in events[1:4]:
        (choice,) = event["choices"]
        choice["text"] = choice.pop("delta")["content"]


# What all clients accept

for _dialect in PATHS:
    add(_dialect, "as sent by the API")
    add(_dialect, "tool call", tool=True)
    for _kind in ("application/json", "text/plain"):
        add(_dialect, f"as {_kind}", kind=_kind)
    add(_dialect, "CRLF", to_bytes=lambda body: body.replace(b"\n", b"\r\n"))
    add(_dialect, "comments", change=inserted(0, b": keepalive\n\n"))
    add(_dialect, "no space after data:", to_bytes=lambda body: body.replace(b"data: ", b"data:"))
    add(_dialect, "two blank lines", to_bytes=lambda body: body.replace(b"\n\n", b"\n\n\n"))
add(CHAT, "no [DONE]", change=removed(-1))
add(CHAT, "ids change", change=lambda x: [e.update(id=f"c{n}") for n, e in enumerate(x[:-1])])
add(CHAT, "no model, no created", change=lambda x: replaced(x[:-1], without("model", "created")))
add(CHAT, "byte order mark", "hidden_first_event", to_bytes=lambda body: b"\xef\xbb\xbf" + body)
add(CHAT, "unterminated [DONE]", to_bytes=lambda body: body[:-2])
add(
    CHAT,
    "chunk of Azure's filter",
    change=inserted(0, {**chunk(None), "id": "", "object": "", "model": "", "choices": []}),
)
add(CHAT, "event name", to_bytes=lambda body: body.replace(b"data: ", b"event: message\ndata: "))
add(CHAT, "JSON over several data lines", change=indented)
add(
    CHAT,
    "id of the call repeats",
    tool=True,
    change=lambda x: [call_of(e).update(id="call_1") for e in x[:3]],
)
add(
    CHAT,
    "empty names later",
    tool=True,
    change=lambda x: [call_of(e)["function"].update(name="") for e in x[1:3]],
)
add(
    CHAT,
    "counts without the total",
    change=lambda x: x[5].update(usage={"prompt_tokens": 7, "completion_tokens": 3}),
)
add(MESSAGES, "[DONE] without a name", change=inserted(9, data(b"[DONE]")))
add(MESSAGES, "ping without data", change=inserted(3, b"event: ping\n\n"))
add(
    MESSAGES,
    "name after data",
    to_bytes=lambda body: b"".join(
        b"\n".join(reversed(e.split(b"\n"))) + b"\n\n" for e in body.split(b"\n\n")[:-1]
    ),
)
add(MESSAGES, "no id, no model", change=popped(lambda x: x[0]["message"], "id", "model"))
add(MESSAGES, "finish before the end of the block", change=lambda x: x.insert(6, x.pop(7)))
add(
    RESPONSES,
    "no event names",
    to_bytes=lambda body: b"".join(line + b"\n" for line in body.split(b"\n")[:-1] if line[:6] != b"event:"),
)
add(RESPONSES, "[DONE]", change=inserted(11, data(b"[DONE]")))
add(RESPONSES, "no sequence numbers", change=lambda x: replaced(x, without("sequence_number")))
add(RESPONSES, "keepalive", change=inserted(4, {"type": "keepalive", "sequence_number": 4}))
add(RESPONSES, "no end of the text", change=removed(7, 8))
add(
    RESPONSES,
    "usage without details",
    change=lambda x: x[10]["response"]["usage"].update(input_tokens_details=None, output_tokens_details=None),
)

# The frame of the events

for _dialect, _at in ((CHAT, 1), (MESSAGES, 3), (RESPONSES, 4)):
    add(_dialect, "merged events", "invalid_json", change=merged(_at))
    add(_dialect, "split event", "invalid_json", change=split(_at, b"\n\nHEADdata: "))
    add(
        _dialect,
        "cut JSON",
        "invalid_json",
        change=inserted(_at, b'event: content_block_delta\ndata: {"id":\n\n'),
    )
    add(
        _dialect,
        "empty data",
        "empty_data",
        change=inserted(_at, b"event: keepalive\ndata: \n\n" if _dialect == MESSAGES else data(b"")),
    )
add(CHAT, "text in place of JSON", "invalid_json", change=inserted(2, data(b"ping")))
add(CHAT, "null", "invalid_json", change=inserted(2, data(b"null")))
add(CHAT, "other terminator", "invalid_json", change=lambda x: x.append(data(b"[done]") + x.pop()))
add(RESPONSES, "text in place of JSON", "invalid_json", change=inserted(4, data(b"ping")))
for _dialect in (CHAT, RESPONSES):
    add(_dialect, "ping without data", "event_without_data", change=inserted(2, b"event: ping\n\n"))
    add(_dialect, "retry alone", "lone_field", change=inserted(0, b"retry: 1000\n\n"))
    add(_dialect, "id alone", "lone_field", change=inserted(2, b"id: 1\n\n"))
for _dialect in PATHS:
    add(
        _dialect,
        "invalid UTF-8",
        "invalid_utf8",
        to_bytes=lambda body: body.replace(b"strict", b"stri\xffct"),
    )
add(CHAT, "finish without data:", "missing_data_prefix", "missing_finish", change=unprefixed(4))
add(MESSAGES, "finish without data:", "missing_data_prefix", change=unprefixed(7))
add(RESPONSES, "end without data:", "event_without_data", "missing_data_prefix", change=unprefixed(10))
add(MESSAGES, "byte order mark", "byte_order_mark", to_bytes=lambda body: b"\xef\xbb\xbf" + body)
add(RESPONSES, "byte order mark", "byte_order_mark", to_bytes=lambda body: b"\xef\xbb\xbf" + body)
add(CHAT, "unterminated usage", "unterminated_end", change=removed(-1), to_bytes=lambda body: body[:-1])
add(MESSAGES, "unterminated end", "missing_message_stop", "unterminated_end", to_bytes=lambda body: body[:-1])
add(RESPONSES, "unterminated end", "unterminated_end", to_bytes=lambda body: body[:-2])
add(CHAT, "metrics", "foreign_event", change=inserted(3, {"type": "metrics", "tps": 3}))
add(CHAT, "ping as JSON", "foreign_event", change=inserted(3, b'event: ping\ndata: {"type":"ping"}\n\n'))
add(MESSAGES, "metrics", "foreign_event", "wrong_type", change=inserted(3, {"type": "metrics", "tps": 3}))
add(RESPONSES, "metrics", "foreign_event", change=inserted(3, {"type": "metrics", "tps": 3}))
add(CHAT, "created as text", "wrong_type", change=each(lambda e: e.update(created="2026-01-01")))
add(
    MESSAGES,
    "input of a call as text",
    "wrong_type",
    tool=True,
    change=updated(lambda x: x[1]["content_block"], input=""),
)
add(
    MESSAGES, "call without id", "wrong_type", tool=True, change=popped(lambda x: x[1]["content_block"], "id")
)
add(
    CHAT,
    "parts in place of text",
    "text_not_string",
    "unjoined_text",
    "wrong_type",
    change=updated(lambda x: delta_of(x[1]), content=[{"type": "text", "text": "Hello"}]),
)
add(CHAT, "text of completions", "missing_delta", "text_not_string", change=replaced_text)
add(
    CHAT,
    "arguments as object",
    "text_not_string",
    "unjoined_text",
    "wrong_type",
    tool=True,
    change=lambda x: (call_of(x[0])["function"].update(arguments={"a": 1}), removed(1, 2)(x)),
)
add(
    MESSAGES,
    "text is null",
    "text_not_string",
    "unjoined_text",
    "wrong_type",
    change=updated(lambda x: x[3]["delta"], text=None),
)
add(
    RESPONSES,
    "text as object",
    "incomplete_event",
    "text_not_string",
    change=updated(lambda x: x[4], delta={"text": "Hello"}),
)


# Chat completions

add(CHAT, "usage without choices", "missing_choices", change=popped(lambda x: x[5], "choices"))
add(CHAT, "choices null", "missing_choices", change=updated(lambda x: x[5], choices=None))
add(CHAT, "choices an empty object", "foreign_event", change=updated(lambda x: x[5], choices={}))
add(
    CHAT,
    "index in digits",
    "missing_finish",
    "missing_index",
    "wrong_type",
    change=updated(lambda x: x[2]["choices"][0], index="7"),
)
add(CHAT, "role in another object", "wrong_object", change=updated(lambda x: x[0], object="chunk"))
add(CHAT, "role after [DONE]", "usage_after_done", change=lambda x: x.append(x.pop(0)))
add(CHAT, "chunk without choices", "missing_choices", change=inserted(3, without("choices")(chunk(None))))
add(CHAT, "error null", "null_error", change=updated(lambda x: x[1], error=None))
add(CHAT, "no id", "missing_id", "usage_then_null", change=each(lambda e: e.pop("id")))
add(CHAT, "no object", "usage_not_last", "wrong_object", change=each(lambda e: e.pop("object")))
add(
    CHAT,
    "object of a whole answer",
    "usage_not_last",
    "wrong_object",
    change=each(lambda e: e.update(object="chat.completion")),
)
add(
    CHAT,
    "no index",
    "missing_choice",
    "missing_index",
    "wrong_type",
    change=lambda x: [e["choices"][0].pop("index") for e in x[:5]],
)
add(CHAT, "finish without delta", "missing_delta", change=popped(lambda x: x[4]["choices"][0], "delta"))
add(CHAT, "finish with delta null", "missing_delta", change=updated(lambda x: x[4]["choices"][0], delta=None))
add(CHAT, "no role", "missing_role", change=popped(lambda x: delta_of(x[0]), "role"))
add(
    CHAT,
    "empty role",
    "missing_role",
    "wrong_role",
    "wrong_type",
    change=updated(lambda x: delta_of(x[0]), role=""),
)
add(
    CHAT,
    "role of Gemini",
    "missing_role",
    "wrong_role",
    "wrong_type",
    change=updated(lambda x: delta_of(x[0]), role="model"),
)
add(CHAT, "usage after [DONE]", "usage_after_done", change=lambda x: x.append(x.pop(5)))
add(
    CHAT,
    "call without index",
    "tool_call_without_index",
    "wrong_type",
    tool=True,
    change=lambda x: [call_of(e).pop("index") for e in x[:3]],
)
add(
    CHAT,
    "call without function",
    "tool_call_without_function",
    "wrong_type",
    tool=True,
    change=popped(lambda x: call_of(x[1]), "function"),
)
add(
    CHAT,
    "call without type",
    "tool_call_without_type",
    tool=True,
    change=popped(lambda x: call_of(x[0]), "type"),
)
add(
    CHAT,
    "name of the call comes late",
    "tool_call_without_name",
    tool=True,
    change=lambda x: call_of(x[1])["function"].update(name=call_of(x[0])["function"].pop("name")),
)
add(
    CHAT,
    "name of the call repeats",
    "repeated_tool_name",
    tool=True,
    change=lambda x: [call_of(e)["function"].update(name="shell") for e in x[:3]],
)
add(
    CHAT,
    "calls count from 1",
    "tool_index_gap",
    tool=True,
    change=lambda x: [call_of(e).update(index=1) for e in x[:3]],
)
add(
    CHAT,
    "two calls of one index",
    "tool_index_reused",
    tool=True,
    change=inserted(
        3,
        chat_call(id="call_2", type="function", function={"name": "shell", "arguments": ""}),
        chat_call(function={"arguments": "{}"}),
    ),
)

# Messages

add(MESSAGES, "no event names", "missing_event_name", change=lambda x: replaced(x, data))
add(MESSAGES, "[DONE] with a name", "named_done", change=inserted(9, b"event: done\n" + data(b"[DONE]")))
add(
    MESSAGES,
    "no type",
    "missing_message_start",
    "missing_message_stop",
    "missing_type",
    change=lambda x: replaced(x, lambda e: named(without("type")(e), e["type"])),
)
add(
    MESSAGES,
    "delta without type",
    "delta_without_type",
    "wrong_type",
    change=popped(lambda x: x[3]["delta"], "type"),
)
add(
    MESSAGES,
    "start without block",
    "inactive_block",
    "start_without_block",
    "wrong_type",
    change=popped(lambda x: x[1], "content_block"),
)
add(MESSAGES, "no message_start", "missing_message_start", change=removed(0))
add(MESSAGES, "two message_start", "repeated_message_start", change=lambda x: x.insert(1, x[0]))
add(
    MESSAGES,
    "start without usage",
    "message_without_usage",
    "start_without_usage",
    "wrong_type",
    change=popped(lambda x: x[0]["message"], "usage"),
)
add(
    MESSAGES,
    "start with empty usage",
    "start_without_usage",
    "wrong_type",
    change=updated(lambda x: x[0]["message"], usage={}),
)
add(
    MESSAGES,
    "start without content",
    "start_without_content",
    change=popped(lambda x: x[0]["message"], "content"),
)
add(
    MESSAGES,
    "finish without usage",
    "delta_without_usage",
    "null_delta",
    "wrong_type",
    change=popped(lambda x: x[7], "usage"),
)
add(
    MESSAGES,
    "finish with usage null",
    "delta_without_usage",
    "null_delta",
    "wrong_type",
    change=updated(lambda x: x[7], usage=None),
)
add(
    MESSAGES,
    "delta of another block",
    "delta_without_block",
    "inactive_block",
    change=inserted(7, {**message_text()[3], "index": 1}),
)
add(
    MESSAGES,
    "delta after its block",
    "delta_after_block",
    change=lambda x: x.insert(6, x.pop(5)),
)
add(MESSAGES, "block does not stop", "unstopped_block", change=removed(6))
add(
    MESSAGES,
    "blocks count from 1",
    "block_index_gap",
    "delta_without_block",
    "stop_without_block",
    change=each(lambda e: e.update(index=1) if "index" in e else None),
)
add(
    MESSAGES,
    "block without text",
    "block_without_text",
    "wrong_type",
    change=popped(lambda x: x[1]["content_block"], "text"),
)
add(MESSAGES, "no message_stop", "missing_message_stop", change=removed(8))

# Responses

add(RESPONSES, "no response.created", "missing_response_created", change=removed(0))
add(RESPONSES, "id changes", "response_id_changes", change=updated(lambda x: x[10]["response"], id="resp_2"))
add(
    RESPONSES,
    "message done with another id",
    "item_id_changes",
    "message_not_open",
    change=updated(lambda x: x[9]["item"], id="item_2"),
)
add(
    RESPONSES,
    "deltas with another id",
    "delta_of_other_item",
    change=each(lambda e: e.update(item_id="x") if "item_id" in e else None),
)
add(RESPONSES, "text only at the end", "text_without_delta", change=removed(*range(3, 9)))
add(
    RESPONSES,
    "delta without item id",
    "delta_of_other_item",
    "incomplete_event",
    change=each(lambda e: e.pop("item_id", None)),
)
add(
    RESPONSES,
    "created without a time",
    "incomplete_event",
    change=popped(lambda x: x[0]["response"], "created_at"),
)
add(
    RESPONSES,
    "call without its id",
    "call_without_done",
    "call_without_id",
    "incomplete_event",
    tool=True,
    change=lambda x: [x[at]["item"].pop("call_id") for at in (2, 6)],
)
add(
    RESPONSES,
    "call without status",
    "incomplete_event",
    tool=True,
    change=lambda x: [x[at]["item"].pop("status") for at in (2, 6)],
)
add(
    RESPONSES,
    "no item",
    "delta_of_other_item",
    "item_not_added",
    "message_not_open",
    "output_index_gap",
    change=removed(2),
)
add(RESPONSES, "no item of a call", "item_not_added", "output_index_gap", tool=True, change=removed(2))
add(RESPONSES, "no part", "part_not_added", "unknown_part", change=removed(3))
add(
    RESPONSES,
    "parts count from 1",
    "part_not_added",
    "unknown_part",
    change=each(lambda e: e.update(content_index=1) if "content_index" in e else None),
)
add(
    RESPONSES,
    "item without content",
    "item_without_content",
    change=popped(lambda x: x[2]["item"], "content"),
)
add(
    RESPONSES,
    "items count from 1",
    "output_index_gap",
    change=each(lambda e: e.update(output_index=1) if "output_index" in e else None),
)
add(
    RESPONSES, "created without output", "missing_output", change=popped(lambda x: x[0]["response"], "output")
)
add(
    RESPONSES,
    "completed without output",
    "missing_output",
    change=popped(lambda x: x[10]["response"], "output"),
)
add(
    RESPONSES,
    "completed with empty output",
    "empty_final_output",
    change=updated(lambda x: x[10]["response"], output=[]),
)
add(RESPONSES, "item is not done", "missing_item_done", change=removed(9))
add(RESPONSES, "item is done after the end", "missing_item_done", change=lambda x: x.append(x.pop(9)))
add(
    RESPONSES,
    "response.done",
    "missing_response_completed",
    change=updated(lambda x: x[10], type="response.done"),
)
add(
    RESPONSES,
    "completed without id",
    "completed_without_id",
    change=popped(lambda x: x[10]["response"], "id"),
)
add(
    RESPONSES,
    "no usage",
    "missing_usage",
    change=updated(lambda x: x[10]["response"], usage=None),
)
add(
    RESPONSES,
    "usage without total",
    "incomplete_usage",
    change=popped(lambda x: x[10]["response"]["usage"], "total_tokens"),
)
add(
    RESPONSES,
    "usage with empty details",
    "incomplete_usage",
    change=updated(lambda x: x[10]["response"]["usage"], input_tokens_details={}),
)
add(
    RESPONSES,
    "no type",
    "missing_response_created",
    "missing_type",
    change=lambda x: replaced(x, lambda e: named(without("type")(e), e["type"])),
)

# Streams with reasoning


def response_reasoning(part: str) -> Change:
    """Adds an item of reasoning after the message: 10: item, 11: part, 12: text, 13: end of the part, 14: end of the item."""
    summary = part == "summary_text"
    family = "reasoning_summary" if summary else "content"
    text = "reasoning_summary_text" if summary else "reasoning_text"
    place = {"item_id": "rs_1", "output_index": 1, ("summary_index" if summary else "content_index"): 0}

    def item(text: str) -> Event:
        parts = [{"type": part, "text": text}] if text else []
        return {
            "type": "reasoning",
            "id": "rs_1",
            "summary": parts if summary else [],
            **({} if summary else {"content": parts}),
        }

    def change(events: list[Any]) -> None:
        events[-1]["response"]["output"].append(item("Hm"))
        events[10:10] = [
            {"type": "response.output_item.added", "output_index": 1, "item": item("")},
            {"type": f"response.{family}_part.added", **place, "part": {"type": part, "text": ""}},
            {"type": f"response.{text}.delta", **place, "delta": "Hm"},
            {"type": f"response.{family}_part.done", **place, "part": {"type": part, "text": "Hm"}},
            {"type": "response.output_item.done", "output_index": 1, "item": item("Hm")},
        ]

    return change


def after(*changes: Change) -> Change:
    """One change after the other."""
    return lambda events: [change(events) for change in changes]


def thinking(block: Event) -> Change:
    def change(events: list[Any]) -> None:
        events[1]["content_block"] = block
        for event in events[3:6]:
            event["delta"] = {"type": "thinking_delta", "thinking": event["delta"]["text"]}

    return change


add(MESSAGES, "thinking", change=thinking({"type": "thinking", "thinking": "", "signature": ""}))
add(RESPONSES, "summary of reasoning", change=response_reasoning("summary_text"))
add(RESPONSES, "text of reasoning", change=response_reasoning("reasoning_text"))

# One client's own rules

add(CHAT, "space after [DONE]", "padded_done", change=lambda x: x.append(data(b"[DONE] ") * bool(x.pop())))
add(RESPONSES, "space after [DONE]", "padded_done", change=inserted(11, data(b"[DONE] ")))
add(RESPONSES, "[DONE] before the end", "usage_after_done", change=inserted(7, data(b"[DONE]")))
add(
    CHAT,
    "number in place of a choice",
    "wrong_choice",
    "wrong_type",
    change=inserted(2, chunk(None, choices=[7])),
)
add(
    CHAT,
    "error after the finish",
    "late_error",
    change=inserted(5, chunk({"role": "assistant"}, error={"message": "limit"})),
)
add(
    CHAT,
    "choices count from 2",
    "choice_index_gap",
    "missing_choice",
    change=lambda x: [e["choices"][0].update(index=2) for e in x[:5]],
)
add(
    CHAT,
    "logprobs as text",
    "wrong_logprobs",
    "wrong_type",
    change=updated(lambda x: x[1]["choices"][0], logprobs="x"),
)
add(
    CHAT,
    "empty message beside a delta",
    "message_beside_delta",
    change=updated(lambda x: x[4]["choices"][0], message={"content": None, "role": "assistant"}),
)
add(
    CHAT,
    "list without indices",
    "unindexed_list",
    change=lambda x: [delta_of(e).update(reasoning_details=[{"text": "a"}]) for e in x[1:3]],
)
add(
    CHAT,
    "tool calls as number",
    "wrong_tool_calls",
    "wrong_type",
    tool=True,
    change=updated(lambda x: delta_of(x[1]), tool_calls=7),
)
add(
    CHAT,
    "custom tool",
    "tool_type_changes",
    "wrong_tool_type",
    "wrong_type",
    tool=True,
    change=updated(lambda x: call_of(x[0]), type="custom"),
)
add(CHAT, "id of a call as number", "wrong_type", tool=True, change=updated(lambda x: call_of(x[0]), id=123))
add(
    CHAT,
    "chunks of Azure's asynchronous filter",
    change=inserted(
        2,
        {
            **chunk(None),
            "id": "",
            "object": "",
            "model": "",
            "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}],
        },
    ),
)
add(
    MESSAGES,
    "metrics of Bedrock",
    change=updated(lambda x: x[8], **{"amazon-bedrock-invocationMetrics": {"inputTokenCount": 7}}),
)
add(
    MESSAGES,
    "text on the block of a tool",
    "inactive_block",
    tool=True,
    change=inserted(6, {**message_text()[3], "delta": {"type": "text_delta", "text": "\n"}}),
)
add(
    MESSAGES,
    "number in place of the delta",
    "missing_delta",
    "wrong_type",
    change=updated(lambda x: x[7], delta=7),
)
add(MESSAGES, "ping that is no JSON", "invalid_ping", change=inserted(3, b"event: ping\ndata: {\n\n"))
add(
    MESSAGES,
    "message_start with another id",
    "repeated_message_start",
    "second_message",
    change=lambda x: x.insert(1, {"type": "message_start", "message": {**x[0]["message"], "id": "msg_2"}}),
)
add(
    MESSAGES,
    "finish without a count",
    "uncounted_delta",
    "wrong_type",
    change=updated(lambda x: x[7], usage={}),
)
add(
    MESSAGES,
    "count as text",
    "wrong_count",
    "wrong_type",
    change=updated(lambda x: x[7]["usage"], input_tokens="x"),
)
add(MESSAGES, "count of 1.5", "wrong_count", change=updated(lambda x: x[7]["usage"], input_tokens=1.5))
add(MESSAGES, "index of 0.5", "block_without_index", change=updated(lambda x: x[4], index=0.5))
add(MESSAGES, "finish again after message_stop", change=lambda x: x.append(x[7]))
add(MESSAGES, "finish after message_stop", "finish_after_stop", change=lambda x: x.append(x.pop(7)))
add(
    MESSAGES,
    "text after message_stop",
    "content_after_stop",
    "delta_after_block",
    change=lambda x: x.append(x.pop(5)),
)
add(
    MESSAGES,
    "second message_delta",
    "finish_overwritten",
    change=inserted(8, {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}}),
)
add(
    MESSAGES,
    "no block",
    "delta_before_blocks",
    "delta_without_block",
    "inactive_block",
    "stop_without_block",
    change=removed(1),
)
add(
    MESSAGES,
    "delta without index",
    "block_without_index",
    "wrong_type",
    change=popped(lambda x: x[4], "index"),
)
add(MESSAGES, "tool call does not stop", "unstopped_tool", tool=True, change=removed(6))
add(MESSAGES, "tool call starts twice", "reopened_tool", tool=True, change=lambda x: x.insert(2, x[1]))
add(
    MESSAGES,
    "thinking without its member",
    "block_without_text",
    "block_without_thinking",
    "wrong_type",
    change=thinking({"type": "thinking"}),
)
add(
    MESSAGES,
    "arguments are no JSON",
    "malformed_input",
    "unparsable_input",
    tool=True,
    change=updated(lambda x: x[4]["delta"], partial_json='{"a",'),
)
add(
    MESSAGES,
    "index of a tool call comes again",
    "block_index_gap",
    tool=True,
    change=inserted(7, *message_tool()[1:2], *message_tool()[4:7]),
)
add(
    RESPONSES,
    "number in place of an item",
    "delta_of_other_item",
    "incomplete_event",
    "message_not_open",
    "missing_item",
    "unknown_output_index",
    change=updated(lambda x: x[2], item=7),
)
add(
    RESPONSES,
    "item null",
    "incomplete_event",
    "item_id_changes",
    "missing_item",
    "null_item",
    change=updated(lambda x: x[9], item=None),
)
add(RESPONSES, "item is added twice", "output_index_reused", change=lambda x: x.insert(3, x[2]))
add(
    RESPONSES,
    "item is done at two indices",
    "item_id_repeats",
    "message_not_open",
    "output_index_gap",
    change=lambda x: x.insert(10, {**x[9], "output_index": 1}),
)
add(RESPONSES, "call is done twice", "item_done_again", tool=True, change=lambda x: x.insert(7, x[6]))
add(
    RESPONSES,
    "delta of another type",
    "delta_of_other_type",
    change=inserted(5, {**response_tool()[3], "item_id": "item_1"}),
)
add(
    RESPONSES,
    "index as list",
    "item_not_added",
    "unknown_output_index",
    change=updated(lambda x: x[4], output_index=[]),
)
add(
    RESPONSES,
    "index of an item changes",
    "unknown_output_index",
    tool=True,
    change=updated(lambda x: x[2], output_index=1),
)
add(
    RESPONSES,
    "number in place of a part",
    "missing_part",
    "part_not_added",
    change=updated(lambda x: x[3], part=7),
)
add(
    RESPONSES,
    "text after its item without part",
    "delta_of_other_item",
    "part_of_other_type",
    change=lambda x: (removed(3)(x), x.insert(3, x.pop(8))),
)
add(
    RESPONSES,
    "no part of reasoning",
    "reasoning_part_not_added",
    "unknown_part",
    change=after(response_reasoning("reasoning_text"), removed(11)),
)
add(
    RESPONSES,
    "no part of a summary",
    "summary_part_not_added",
    change=after(response_reasoning("summary_text"), removed(11)),
)
add(
    RESPONSES,
    "summary of another item",
    "reasoning_not_open",
    change=after(response_reasoning("summary_text"), updated(lambda x: x[12], item_id="rs_2")),
)
add(
    RESPONSES,
    "item without an end",
    "unfinished_item",
    change=inserted(
        10,
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": {"type": "reasoning", "id": "rs_1", "summary": []},
        },
    ),
)
add(
    RESPONSES,
    "incomplete",
    "incomplete_response",
    change=lambda x: (
        x[10].update(type="response.incomplete"),
        x[10]["response"].update(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    ),
)
add(RESPONSES, "response.in_progress at the end", "event_after_completed", change=lambda x: x.append(x[1]))
add(RESPONSES, "other status", "wrong_status", change=updated(lambda x: x[10]["response"], status="done"))

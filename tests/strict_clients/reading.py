"""What the bytes of a stream carry by the documented protocols, read without the project's decoder.

A reading has every value that is whole by the protocol. Where a protocol repeats content, as the Responses API does in its closing
events, a client may take it from any of the places. Content that the protocol does not allow in its place carries nothing: a delta
whose block or part did not start or has another type, or a member of another type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES

Call = tuple[str, Any]
Answer = dict[str, Any]


@dataclass
class Reading:
    texts: list[str] = field(default_factory=list)
    """The text, from each place that has it."""
    reasoning: list[str] = field(default_factory=list)
    calls: list[list[Call]] = field(default_factory=list)
    finishes: set[str] = field(default_factory=set)
    more_finishes: set[str] = field(default_factory=set)
    """Finish reasons of other choices, which a client may state."""
    more_texts: list[str] = field(default_factory=list)
    """Text that a client may read beyond what the protocol says."""
    more_reasoning: list[str] = field(default_factory=list)
    has_role: bool = False
    """A chunk states that the first choice is the assistant's."""
    usages: list[list[Any]] = field(default_factory=list)
    """Counts of input and output tokens, as a client may state them."""


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    """The data of the events that are JSON objects, also of lines without `data:`."""
    lines: list[str] = []
    for line in [*re.split("\r\n|\n|\r", body.decode("utf-8", "replace").removeprefix("\ufeff")), ""]:
        name, _, value = line.partition(":")
        if name == "data":
            lines.append(value.removeprefix(" "))
        elif line[:1] == "{":
            lines.append(line)
        elif not line and lines:
            text, lines = "\n".join(lines), []
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _dict(value: Any, *keys: str) -> dict[str, Any]:
    """A member of a member, or {}."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _chat(body: bytes) -> Reading:
    found, text, every_text = Reading(), "", ""
    of_first: dict[Any, list[Any]] = {}  # index → [id, name, arguments]
    of_all: dict[Any, list[Any]] = {}
    counts = None
    finishes: dict[bool, set[str]] = {True: set(), False: set()}
    for chunk in _events(body):
        usage = _dict(chunk, "usage")
        if (
            _count(usage.get("prompt_tokens")) is not None
            or _count(usage.get("completion_tokens")) is not None
        ):
            counts = [_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))]
        for choice in _list(chunk.get("choices")):
            delta, index = _dict(choice, "delta"), choice.get("index")
            parts = "".join(_text(part.get("text")) for part in _list(delta.get("content")))
            whole = "" if delta else _text(choice.get("text"))
            piece = whole + _text(delta.get("content")) + parts + _text(delta.get("refusal"))
            every_text += piece
            if index == 0 and type(index) is int:
                text += piece
                found.has_role |= delta.get("role") == "assistant"
            if _text(choice.get("finish_reason")):
                finishes[type(index) is int and index == 0].add(choice["finish_reason"])
            for call in _list(delta.get("tool_calls")):
                _add_call(of_all, call)
                if type(index) is int and index == 0:
                    _add_call(of_first, call)
    found.texts = [text, every_text]
    found.calls = [
        [(name, arguments) for _, name, arguments in calls.values()] for calls in (of_first, of_all)
    ]
    found.finishes, found.more_finishes = finishes[True], finishes[False]
    found.usages = [counts] if counts else []
    return found


def _add_call(calls: dict[Any, list[Any]], call: dict[str, Any]) -> None:
    """Add a delta of a tool call. Another id with a name starts another call."""
    function, key, new_id = _dict(call, "function"), str(call.get("index")), _text(call.get("id"))
    known = calls.get(key)
    if known is None or (new_id and _text(function.get("name")) and known[0] not in ("", new_id)):
        if known is not None:
            calls[f"{key} {len(calls)}"] = calls.pop(key)
        known = calls[key] = [new_id, "", ""]
    known[0] = known[0] or new_id
    known[1] = known[1] or _text(function.get("name"))
    known[2] += _text(function.get("arguments"))


BLOCK_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}
MEMBER_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def _messages(body: bytes) -> Reading:
    events = list(_events(body))
    by_index, by_place = _message(events, by_place=False), _message(events, by_place=True)
    # Where the two differ, a client that reads by place has lost nothing if it reads as much.
    for found, other, more in (
        (by_index.texts, by_place.texts, by_index.more_texts),
        (by_index.reasoning, by_place.reasoning, by_index.more_reasoning),
    ):
        more += [text for text in other if len(text) >= len(found[0])]
    if _valid_inputs(by_place) >= _valid_inputs(by_index):
        by_index.calls += by_place.calls
    deltas = [_dict(event, "delta") for event in events]
    by_index.more_texts += [
        "".join(_text(delta.get(of)) for delta in deltas for of in members)
        for members in (("text",), ("text", "content"))
    ]
    return by_index


def _valid_inputs(found: Reading) -> int:
    return sum(_json(arguments) is not None for calls in found.calls for _, arguments in calls)


def _message(events: list[dict[str, Any]], *, by_place: bool) -> Reading:
    """`by_place`: the index of a delta is the place of its block, not the index that its block has."""
    blocks: list[dict[str, Any]] = []
    open_blocks: dict[Any, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    iterations: list[dict[str, Any]] = []
    found = Reading()
    for event in events:
        kind, index, delta = event.get("type"), event.get("index"), _dict(event, "delta")
        if kind in ("message_start", "message_delta"):
            report = _dict(event, "message", "usage") if kind == "message_start" else _dict(event, "usage")
            # The output tokens of `message_start` are those so far, not a total.
            skipped = ("output_tokens",) if kind == "message_start" else ()
            iterations = _list(report.get("iterations"))
            usage |= {
                key: value
                for key, value in report.items()
                if _count(value) is not None and key not in skipped
            }
            if _text(delta.get("stop_reason")):
                found.finishes = {delta["stop_reason"]}
        elif kind == "content_block_start" and (by_place or type(index) is int):
            block = _dict(event, "content_block")
            index = len(blocks) if by_place else index
            open_blocks[index] = {"type": block.get("type"), "text": "", "block": block, "arguments": ""}
            if block.get("type") in ("text", "thinking"):
                open_blocks[index]["text"] = _text(block.get(block["type"]))
            blocks.append(open_blocks[index])
        elif kind == "content_block_delta" and type(index) is int and index in open_blocks:
            name, known = _text(delta.get("type")), open_blocks[index]
            if name in BLOCK_OF and BLOCK_OF[name] == known["type"]:
                known["arguments" if name == "input_json_delta" else "text"] += _text(
                    delta.get(MEMBER_OF[name])
                )
    found.texts = ["".join(block["text"] for block in blocks if block["type"] == "text")]
    found.reasoning = ["".join(block["text"] for block in blocks if block["type"] == "thinking")]
    found.calls = [[
        (_text(block["block"].get("name")), block["arguments"] or json.dumps(block["block"].get("input") or {}))
        for block in blocks if block["type"] == "tool_use"
    ]]  # fmt: skip
    if iterations:
        found.usages = [
            [sum(_count(turn.get(f"{of}_tokens")) or 0 for turn in iterations) for of in ("input", "output")]
        ]
    if usage:
        cached = sum(usage.get(f"cache_{part}_input_tokens", 0) for part in ("read", "creation"))
        counts = [usage.get("input_tokens"), usage.get("output_tokens")]
        found.usages += [counts, [(counts[0] or 0) + cached, counts[1]]] if cached else [counts]
    return found


CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


def _of_items(items: list[dict[str, Any]], found: Reading) -> None:
    """Add the content of whole items."""
    text = reasoning = ""
    calls: list[Call] = []
    for item in items:
        kind, parts = item.get("type"), _list(item.get("content"))
        if kind == "message":
            text += "".join(_text(part.get("text")) or _text(part.get("refusal")) for part in parts)
        elif kind == "reasoning":
            reasoning += "".join(_text(part.get("text")) for part in [*parts, *_list(item.get("summary"))])
        elif isinstance(kind, str) and kind in CALLS and _text(item.get("name")):
            calls.append((item["name"], _text(item.get(CALLS[kind]))))
    found.texts.append(text)
    found.reasoning.append(reasoning)
    found.calls.append(calls)


def _responses(body: bytes) -> Reading:
    found, final = Reading(), None
    started: dict[Any, dict[str, Any]] = {}
    done: dict[Any, dict[str, Any]] = {}
    deltas: dict[str, str] = {"text": "", "reasoning": "", "summary": ""}
    for event in _events(body):
        kind, index = _text(event.get("type")), event.get("output_index")
        piece = _text(event.get("delta"))
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            deltas["text"] += piece
        elif kind == "response.reasoning_text.delta":
            deltas["reasoning"] += piece
        elif kind == "response.reasoning_summary_text.delta":
            deltas["summary"] += piece
        elif kind == "response.output_item.added" and type(index) is int:
            started[index] = {**_dict(event, "item")}
        elif kind == "response.output_item.done" and type(index) is int:
            done[index] = _dict(event, "item")
        elif kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
            item = started.get(index) if type(index) is int else None
            member = CALLS.get(_text(item.get("type"))) if item else None
            if item and member:
                item[member] = _text(item.get(member)) + piece
        elif kind in ("response.completed", "response.incomplete", "response.done"):
            final = _dict(event, "response")
            found.finishes = {
                kind.replace("done", "completed").rpartition(".")[2],
                _text(_dict(final, "incomplete_details").get("reason")),
            } - {""}
            usage = _dict(final, "usage")
            counts = [_count(usage.get("input_tokens")), _count(usage.get("output_tokens"))]
            found.usages = [counts] if any(count is not None for count in counts) else []
    found.texts.append(deltas["text"])
    found.reasoning += [deltas["reasoning"] + deltas["summary"], deltas["summary"]]
    _of_items([done[index] for index in sorted(done)], found)
    _of_items(_list((final or {}).get("output")), found)
    _of_items([started[index] for index in sorted(started)], found)
    return found


READERS = {CHAT: _chat, MESSAGES: _messages, RESPONSES: _responses}


def reading_of(dialect: str, body: bytes) -> Reading:
    return READERS[dialect](body)


def _json(text: Any) -> Any:
    """The value of a JSON text, {} for null, and None if it is none."""
    try:
        return json.loads(text or "{}") or {}
    except (ValueError, TypeError):
        return None


def _same_calls(seen: list[Any], carried: list[Call], *, is_exact: bool) -> bool:
    """Whether the calls are the same. `is_exact`: clients state arguments that are no JSON as they are."""
    if len(seen) != len(carried) or None in seen:
        return False
    for (name, arguments), (of_name, of_arguments) in zip(seen, carried, strict=True):
        wanted = _json(of_arguments)
        if of_name and name != of_name:
            return False
        if (
            (arguments != of_arguments)
            if wanted is None and is_exact
            else (wanted is not None and _json(arguments) != wanted)
        ):
            return False
    return True


FINISH_OF_AI = {"completed": {"stop", "tool-calls", "content-filter"}}


def lost(answer: Answer, reading: Reading, client: str, dialect: str) -> list[str]:
    """What a client did not read of what the bytes carry; "error" if it raised."""
    if "error" in answer:
        return ["error"]
    found = ["role"] if reading.has_role and not answer.get("role", client == "ai-sdk") else []
    texts = [text for text in reading.texts if text] or [""]
    if answer["text"] not in texts + reading.more_texts:
        found.append("text")
    if dialect != CHAT:  # whose protocol has no reasoning
        reasoning = [text for text in reading.reasoning if text] or [""]
        # The AI SDK reads summaries alone.
        if answer["reasoning"] not in reasoning + reading.more_reasoning and not (
            client == "ai-sdk" and dialect == RESPONSES and answer["reasoning"] == reading.reasoning[1]
        ):
            found.append("reasoning")
    most = max(map(len, reading.calls), default=0)
    if not any(
        len(calls) == most and _same_calls(answer["calls"], calls, is_exact=dialect != MESSAGES)
        for calls in reading.calls or [[]]
    ):
        found.append("calls")
    finishes = reading.finishes
    if client == "ai-sdk" and dialect == RESPONSES:
        finishes = finishes.union(*(FINISH_OF_AI.get(reason, set()) for reason in finishes))
    if finishes and str(answer.get("finish")) not in finishes | reading.more_finishes:
        found.append("finish")
    if reading.usages and not any(_has_counts(answer.get("usage"), counts) for counts in reading.usages):
        found.append("usage")
    return found


def _has_counts(seen: Any, carried: list[Any]) -> bool:
    return isinstance(seen, list) and all(
        count in (None, of) for count, of in zip(carried, seen, strict=True)
    )

"""Requests with prompts that tests make of segments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.ingest.keyed_ids import RECORDED
from streamgauge.ingest.records import (
    AnyRecord,
    Conversation,
    Frames,
    Request,
    RequestAnatomy,
    Segment,
    SegmentKind,
)
from tests.analytics.stream_records import START_NS, chunk, closed, finish_chunk, head, opened, stream_id

SECOND_NS = 10**9
MS = 10**6


def segment(
    kind: SegmentKind,
    text: str,
    message: int = -1,
    *,
    name: str | None = None,
    role: str | None = None,
    mark: str | None = None,
) -> Segment:
    """A segment of a text, with its length as size."""
    return Segment(kind, name, message, len(text), blake2b(text.encode(), digest_size=8).digest(), role, mark)


def prompt_of(turns: int, *, tools: int = 40, system: str = "s" * 9_000) -> list[Segment]:
    """An agent's prompt: two messages per turn."""
    messages: list[Segment] = []
    for turn in range(turns):
        user = ("text", "user") if not turn else ("tool_result", "user")
        messages += [
            segment(user[0], f"question {turn}" * 40, 2 * turn, role="user"),  # type: ignore[arg-type]
            segment("text", f"answer {turn}" * 9, 2 * turn + 1, role="assistant"),
            segment("tool_call", f"call {turn}" * 5, 2 * turn + 1, name="Bash", role="assistant"),
        ]
    last = segment("text", f"next {turns}" * 9, 2 * turns, role="user")
    return [
        segment("model", "claude-sonnet-4-5"),
        segment("settings", "auto", name="tool_choice"),
        *(segment("tool", f"tool {n}" * 90, name=f"mcp__files__t{n}" if n % 4 else f"Tool{n}") for n in range(tools)),
        segment("system", system),
        *messages,
        last,
    ]  # fmt: skip


def marked(segments: Sequence[Segment], *at: int, ttl: str = "5m") -> list[Segment]:
    """The segments with a cache mark at these places."""
    found = list(segments)
    for place in at:
        one = found[place]
        found[place] = Segment(one.kind, one.name, one.message, one.size, one.hash, one.role, ttl)
    return found


def chat_usage(input_tokens: int, cached: int | None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": input_tokens, "completion_tokens": 5, **details}


def request(
    number: int,
    segments: Sequence[Segment] | None,
    *,
    session: str | None = "session-1",
    usage: dict[str, Any] | None = None,
    events: Sequence[bytes] | None = None,
    path: str = "/v1/chat/completions",
    at_s: float | None = None,
    left_out: int = 0,
    conversation: dict[str, Any] | None = None,
    model: str = "m",
    **more: Any,
) -> list[AnyRecord]:
    """The records of a request with this prompt. `usage`, or all `events` of the response; `more` is for `Opened`."""
    stream = stream_id(number)
    headers = [*more.pop("headers", []), *([(RECORDED, session)] if session else [])]
    wall_ns = START_NS + int((number if at_s is None else at_s) * SECOND_NS)
    told = Conversation(
        turns=1,
        anatomy=RequestAnatomy(
            encoded_segments=msgspec.Raw(msgspec.msgpack.encode(segments)), left_out=left_out
        ),
    )
    for name, value in (conversation or {}).items():
        told = Conversation(**{**{f: getattr(told, f) for f in told.__struct_fields__}, name: value})
    reads = events or [
        chunk("a"), finish_chunk(), chunk(usage=usage or chat_usage(1000, None), choices=[]), b"data: [DONE]\n\n",
    ]  # fmt: skip
    response = more.pop("response", head())
    return [
        opened(stream, path=path, headers=headers, wall_ns=wall_ns, **more),
        Request(stream, 1, json.dumps({"model": model}).encode(), False, conversation=told),
        Frames(stream, 2, [((i + 1) * MS, read) for i, read in enumerate(reads)], response),
        closed(stream, 3, end_ns=9 * MS, response_bytes=sum(map(len, reads))),
    ]


def finished(*streams: Sequence[AnyRecord]) -> list[FinishedStream]:
    assembler = Assembler(client_key=b"k" * 32)
    for records in streams:
        assembler.feed("w0", 0, list(records))
    assert not assembler.take_failures()
    return assembler.take_finished()

"""The small shape that every dialect has, and the values it speaks in.

A dialect answers three questions: does it know this exchange, does it know this event, and what does an event (or a whole
non-streamed body) say. It is told bytes and answers values; it keeps no clock and logs nothing; bad data is a value.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

Kind = Literal[
    # output: at least one non-empty fragment of what the model generated
    "text", "reasoning", "refusal", "tool_call", "audio",
    # not output
    "start",       # role-only, message_start, response.created, chat.start …
    "finish",      # finish reason without output
    "usage",       # usage without output
    "terminal",    # [DONE], message_stop, chat.end …
    "error",
    "ping",        # named ping events (comments are no events)
    "progress",    # model_load.*, prompt_processing.*, response.in_progress …
    "annotation",  # signatures, citations, filter results, server tool results, *.done repeats
    "malformed",
    "other",
]  # fmt: skip

OUTPUT_KINDS: frozenset[str] = frozenset({"text", "reasoning", "refusal", "tool_call", "audio"})


class Exchange(msgspec.Struct, frozen=True):
    """What is known before the body: the request's line and head, and the response's. Header names in lower case."""

    method: str = "POST"
    path: str = ""
    status: int = 200
    content_type: str = ""
    request_headers: dict[str, str] = {}
    response_headers: dict[str, str] = {}
    host: str = ""
    """Host name of the upstream, "" when it is not known: tells vendors apart that speak alike."""


class ToolFragment(msgspec.Struct, gc=False):
    """A piece of one tool call. `key` tells the calls of one choice apart (index, item id, or made up in order)."""

    key: str | int
    id: str = ""
    name: str = ""
    arguments: str = ""
    """Where the dialect sent a JSON object: its JSON text."""
    joint: str = ""
    """JSON text that belongs before `arguments` and that nobody generated: a dialect makes it up where the vendor sends
    arguments as paths and values, or no arguments at all. Part of the call, but no output."""
    server: bool = False
    """The provider runs this call itself (web search, code execution …): output like any other, but not one of the calls
    that the client is asked to run, so it does not stand among `tool_calls`."""


class Fragment(msgspec.Struct, gc=False):
    """What one event adds to one choice."""

    choice: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    audio_chars: int = 0
    plan: str = ""
    """What the model says it will do with its tools (Cohere's tool_plan): output on the reasoning channel, but part of neither
    the text nor the reasoning."""
    tools: list[ToolFragment] | None = None
    finish_reason: str | None = None
    tokens: int | None = None
    """n_i, where the server says it (logprobs, token_ids); continuous usage is differenced by the caller."""
    audio_data_chars: int = 0
    """Audio itself, encoded: output, but no content to read; a transcript is `audio_chars`."""


class Usage(msgspec.Struct, gc=False):
    """One usage report, normalised; `raw` is the object as reported. None = not said."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None
    raw: Any = None


class ErrorSeen(msgspec.Struct, gc=False):
    """An error inside the stream or in an error response. `type`: the provider's type, else its code."""

    type: str | None
    message: str | None = None
    raw: Any = None
    """The error object as sent."""


class ServerStat(msgspec.Struct, gc=False):
    """One number that the server reported of its own doing; `value` normalised to `unit` (ns, tok/s, tokens, 1)."""

    source: str
    name: str
    value: float | None
    unit: str
    raw: str


class Reading(msgspec.Struct, gc=False):
    """What a dialect says of one event."""

    kind: Kind = "other"
    fragments: list[Fragment] | None = None
    usage: Usage | None = None
    error: ErrorSeen | None = None
    terminal: bool = False
    """The semantic terminal: nothing after it can fail the stream. A finish reason is one too (see `finish_reason`)."""
    response_id: str | None = None
    model: str | None = None
    server_stats: list[ServerStat] | None = None
    tool_failure: bool = False
    late: bool = False
    """Output that only a `*.done` event tells, without any delta: a client sees it now, so it is output, but recorded streams
    do not count such events as content."""
    provider: str | None = None
    """The vendor, where a field of the event tells it."""
    done: bool = False
    """The `[DONE]` marker: ends the stream, proves nothing. Dialects need not look for it, `analytics.decoding.stream_decoder` does."""


class Delta(msgspec.Struct, gc=False):
    """The reading of the most frequent event: one piece of one output channel of one choice, and at most a usage report.

    A reader may answer it in place of a `Reading`; it costs a third.
    """

    kind: Kind
    """"text" or "reasoning"."""
    piece: str
    """Not empty."""
    choice: int = 0
    tokens: int | None = None
    usage: Usage | None = None


def in_full(answer: Reading | Delta) -> Reading:
    """An answer in its long form."""
    if isinstance(answer, Reading):
        return answer
    text, reasoning = (answer.piece, "") if answer.kind == "text" else ("", answer.piece)
    fragment = Fragment(choice=answer.choice, text=text, reasoning=reasoning, tokens=answer.tokens)
    return Reading(kind=answer.kind, fragments=[fragment], usage=answer.usage)


class Run(msgspec.Struct, gc=False):
    """Deltas of successive events that differ in their piece only. `analytics.decoding.template` answers it, no reader does."""

    kind: Kind
    pieces: list[str]
    choice: int = 0


class Reader(Protocol):
    """Reads one stream. May keep what it must know of earlier events (tool names, indices)."""

    def read(self, name: str, data: bytes) -> Reading | Delta:
        """One SSE event: its `event` name ("" when there was none) and its data. Never raises on bad data."""

    def read_body(self, body: bytes) -> list[Reading]:
        """A whole non-streamed (or error) body, as readings. Never raises on bad data."""


class Dialect(Protocol):
    """One vendor's or family's way of speaking. A module in this folder that defines `DIALECT` is found by itself."""

    name: str
    """As stored in `streams.dialect`."""
    provider: str
    """As stored in `streams.provider` when nothing better is known (GenAI conventions' well-known values)."""
    operation: str
    """gen_ai.operation.name: chat | text_completion | generate_content | embeddings …"""

    def claims(self, exchange: Exchange) -> int:
        """How sure it is from the request alone: 0 = not mine, 1 = possible, 5 = by path, 9 = by path and vendor header.

        It is told method, path, host and which headers there are (their values are empty): what many requests share.
        """

    def recognises(self, name: str, data: bytes) -> int:
        """How sure it is from one of the first events: 0 … 9, the same scale."""

    def reader(self, exchange: Exchange) -> Reader: ...

"""What dialects read and return: raw events, decoded events, and the reports of servers (usage, errors, statistics).

A dialect returns a `DecodedEvent`, or a `TextDelta` for the frequent event that carries one text. None and "" mean that the
event does not have the value. Bad data becomes `kind="malformed"`, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from streamgauge.analytics.schema.event_kinds import OUTPUT_KINDS as OUTPUT_KINDS
from streamgauge.analytics.schema.event_kinds import OutputKind

EventKind = Literal[
    OutputKind,
    "start",       # role-only, message_start, response.created, chat.start …
    "finish",      # finish reason without output
    "usage",       # usage without output
    "terminal",    # [DONE], message_stop, chat.end …
    "error",
    "ping",        # named ping events (comments are not events)
    "progress",    # model_load.*, prompt_processing.*, response.in_progress …
    "annotation",  # signatures, citations, filter results, server tool results, *.done repeats
    "malformed",
    "other",       # an event that the dialect does not know; the last one of a stream may be an error without a label
]  # fmt: skip


class ToolCallDelta(msgspec.Struct, gc=False):
    """The part of one tool call that one event carries."""

    key: str | int
    """Identifies the call within its choice: an index, an item id, or a running number."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """JSON text, also where the dialect sends an object."""
    inserted_json: str = ""
    """JSON text to put before `arguments` that the model did not generate. A dialect supplies it where the vendor sends
    arguments as paths and values, or sends none. Part of the call, but not output."""
    server_side: bool = False
    """The provider runs this call (web search, code execution …). It counts as output, but is not listed in
    `tool_calls`, the calls that the client must run."""


class ChoiceDelta(msgspec.Struct, gc=False):
    """The part of one choice that one event carries."""

    choice: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    audio_chars: int = 0
    """Length of an audio transcript."""
    tool_plan: str = ""
    """How the model plans to use its tools (Cohere). Output on the reasoning channel, but part of neither text nor
    reasoning."""
    tool_calls: list[ToolCallDelta] | None = None
    finish_reason: str | None = None
    tokens: int | None = None
    """Tokens of this event, where the server lists them (logprobs, token_ids)."""
    audio_data_chars: int = 0
    """Length of encoded audio: output without readable content."""
    audio_ns: int = 0
    """Length of that audio in time, if its format is known."""
    images: int = 0
    """Number of images, or of previews of one: output without readable content."""


class DecodedEvent(msgspec.Struct, gc=False):
    kind: EventKind = "other"
    """What an event without output is. Ignored where the members decide: with output the first channel is the kind, with an
    error `error`; `other` with a finish reason becomes `finish`."""
    deltas: list[ChoiceDelta] | None = None
    usage: Usage | None = None
    error: ErrorReport | None = None
    terminal: bool = False
    """Semantic terminal: nothing after it makes the stream fail. Finish reasons of all choices have the same effect."""
    response_id: str | None = None
    model: str | None = None
    server_stats: list[ServerStat] | None = None
    tool_failure: bool = False
    interruption: bool = False
    """The user began to speak, or the client cancelled."""
    not_streamed: bool = False
    """The output comes whole in a closing event (`*.done`), without deltas before it. It counts as output but not in
    `content_event_count`."""
    provider: str | None = None
    """The vendor, where a field of the event identifies it."""
    done_marker: bool = False
    """`[DONE]`: ends the stream but does not prove success."""
    billing: dict[str, Any] | None = None
    """Columns of `streams` that change the price or say why the prompt cache missed, stated outside of the usage report. None: not
    stated."""


class TextDelta(msgspec.Struct, gc=False):
    """The most frequent event: text or reasoning of one choice, and at most a usage report.

    Costs a third of a `DecodedEvent`. `streamgauge.analytics.decoding.template` reuses it for later events with the same bytes around
    the text, so a reader may return it only if the result depends on no earlier event.
    """

    kind: EventKind
    """"text" or "reasoning"."""
    text: str
    """Not empty."""
    choice: int = 0
    tokens: int | None = None
    usage: Usage | None = None


class DeltaRun(msgspec.Struct, gc=False):
    """Successive `TextDelta`s that differ only in their text. Made by `streamgauge.analytics.decoding.template`, not by dialects."""

    kind: EventKind
    texts: list[str]
    choice: int = 0


class TextSoFar:
    """The text that an event adds, for formats whose events repeat the text so far."""

    def __init__(self) -> None:
        self._before: dict[object, str] = {}
        self._increments = False

    def added(self, channel: object, text: str) -> str:
        """The part of `text` that is new in its channel."""
        if self._increments or not text:
            return text
        before = self._before.get(channel, "")
        if text.startswith(before):
            self._before[channel] = text
            return text[len(before) :]
        # One event that does not begin with the text so far shows that the server sends increments, as the client may ask.
        self._increments = True
        return text


def as_decoded_event(answer: DecodedEvent | TextDelta) -> DecodedEvent:
    """Convert a `TextDelta`; a `DecodedEvent` is returned as it is."""
    if isinstance(answer, DecodedEvent):
        return answer
    text, reasoning = (answer.text, "") if answer.kind == "text" else ("", answer.text)
    delta = ChoiceDelta(choice=answer.choice, text=text, reasoning=reasoning, tokens=answer.tokens)
    return DecodedEvent(kind=answer.kind, deltas=[delta], usage=answer.usage)


def text_event(
    text: str | None, kind: EventKind = "text", empty: EventKind = "annotation"
) -> DecodedEvent | TextDelta:
    """An event with this text or reasoning; without any, its kind is `empty`."""
    return TextDelta(kind, text) if text else DecodedEvent(empty)


def joined(deltas: Iterable[ChoiceDelta]) -> ChoiceDelta:
    """The parts of one choice as one part."""
    whole = ChoiceDelta()
    for delta in deltas:
        whole.text += delta.text
        whole.reasoning += delta.reasoning
        whole.refusal += delta.refusal
        whole.images += delta.images
        whole.tool_calls = [*(whole.tool_calls or ()), *(delta.tool_calls or ())] or None
    return whole


def tool_call_event(*calls: ToolCallDelta) -> DecodedEvent:
    """An event with only deltas of tool calls. It is output if one has a name or arguments."""
    return DecodedEvent("annotation", [ChoiceDelta(tool_calls=list(calls))])


# The types of this file have `gc=False`: the cycle collector does not track them. A stream has thousands of them, they live
# until its commit, and they cannot be part of a cycle.
class RawEvent(msgspec.Struct, gc=False):
    """An SSE event, a JSON line or an element of a JSON array, framed but not yet decoded by a dialect."""

    name: str
    """The SSE `event` field; "" when there is none."""
    data: bytes
    at_ns: int
    """Arrival of the read that completed the event, in ns from t0."""
    read_seq: int
    """Number of that read, from 0. Events of one read share a time."""


class Usage(msgspec.Struct, gc=False):
    """One usage report, normalised. None = not reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None
    raw: Any = None
    """The object as reported."""
    beyond_total: int = 0
    """Tokens of the input and output that the report's own total leaves out."""
    unclear: str = ""
    """Member of which it is unknown whether it contains another one."""


FAILED_FINISHES = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})
"""Finish reasons that mean failure, in lower case, of all dialects."""


def finish_failed(reason: str | None) -> bool:
    """Whether the model server gave up: the stream is an in-band error of this type."""
    return reason is not None and reason.lower() in FAILED_FINISHES


class ErrorReport(msgspec.Struct, gc=False):
    """An error inside the stream or in an error response."""

    type: str | None
    """The provider's type, else its code."""
    message: str | None = None
    raw: Any = None
    """The error object as sent."""


class ServerStat(msgspec.Struct, gc=False):
    """One statistic that the server reports about its processing."""

    source: str
    name: str
    value: float | None
    """In `unit`."""
    unit: str
    """ns, tok/s, tokens or 1."""
    raw: str

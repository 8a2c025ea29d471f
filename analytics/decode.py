"""Read one response body: content coding, framing, dialect. No I/O, no clock: bytes and times in, values out.

The dialect is guessed from the exchange (path, headers) and judged by the first events: the one that recognises them
most surely reads the stream, and when that is another than the guess, the first events are read again by it. Without any
that knows them the stream is `unknown`: its bytes, events and times are measured all the same.

An event without its blank line at the end is never an event (no row, no time of its own); if it is a terminator or whole JSON,
what it says is taken and `unterminated_tail` is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from analytics.coding import BodyDecoder
from analytics.dialects import all_dialects, choose_by_event, choose_by_exchange
from analytics.dialects.errors import read_error
from analytics.dialects.payload import json_or_none
from analytics.dialects.shape import (
    OUTPUT_KINDS,
    Delta,
    Dialect,
    ErrorSeen,
    Exchange,
    Fragment,
    Reader,
    Reading,
    ServerStat,
    Usage,
)
from analytics.dialects.unknown import NAME as UNKNOWN
from analytics.dialects.unknown import UnknownReader
from analytics.dialects.vendors import header_stats, vendor_of
from analytics.framing import Framer
from analytics.sse import Event
from analytics.stencil import Stencil
from analytics.tally import EventColumns, Tally, ToolCall

SURE = 5
"""A score at which an event settles the dialect."""
GUESS = 3
"""A claim below this is dropped when no event bears it out."""
MAX_HEAD_EVENTS = 16
MAX_HEAD_BYTES = 2**20
_DONE = Reading(kind="terminal", done=True)
_STREAM_TYPES = ("event-stream", "ndjson", "stream+json", "jsonl")


class StreamDecoder:
    """Decodes one response. Every result is valid at any time, and final after `finish`."""

    def __init__(self, exchange: Exchange, *, keep_text: bool = False) -> None:
        self.exchange = exchange
        self.first_byte_ns: int | None = None
        self.body_bytes = 0
        """As received, content coding included."""
        self.unterminated_tail = False
        self.tail_event_count = 0
        """1 if the tail was whole and has been read: an event to a reader of files, none by the rules of SSE."""
        self._keep_text = keep_text
        self._coding = BodyDecoder(exchange.response_headers.get("content-encoding", ""))
        self._framer = Framer(exchange.content_type, streams=exchange.status < 400)
        self._dialect: Dialect | None
        self._dialect, self._claim = choose_by_exchange(exchange)
        self._vendor = vendor_of(exchange)
        self._tally = Tally(keep_text=keep_text)
        self._reader: Reader = self._new_reader()
        self._answers = Stencil(self._reader).read_many
        self._head: list[Event] | None = []  # the first events, until the dialect is settled
        self._head_bytes = 0
        self._borne_out = False  # some event was recognised by the dialect
        self._last_read_ns = 0
        self._body_read = False
        self._header_stats = header_stats(exchange.response_headers)

    # -- feeding -------------------------------------------------------------------------------------------------

    def feed(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Reads of the body, in order: (arrival in ns from t0, bytes)."""
        feed = self._framer.feed
        events: list[Event] = []
        for at_ns, data in frames:
            if not data:
                continue
            self.body_bytes += len(data)
            self._last_read_ns = at_ns
            if self.first_byte_ns is None:
                self.first_byte_ns = at_ns
            if not self._coding.plain:
                data = self._coding.feed(data)
                if not data:
                    continue
            events += feed(data, at_ns)
        if events:
            self._read(events)

    def finish(self) -> None:
        """The body is over, cleanly or not."""
        if self._body_read:
            return
        self._body_read = True
        ending = self._framer.finish()
        if ending.events:
            for event in ending.events:
                event.at_ns = self._last_read_ns
            self._read(ending.events)
        if ending.tail is not None:
            self._read_tail(ending.tail)
        if ending.body is not None:
            self._read_body(ending.body)
        if self._head:
            head = self._head
            if self.exchange.status >= 400 and self._tally.error is None:
                self._tally.error = read_error(head[0].data)
            else:
                self._settle(head)

    def _read(self, events: list[Event]) -> None:
        if self._head is not None:
            self._judge(events)
        self._tally.add_events(events, self._answers(events))

    def _read_tail(self, tail: Event) -> None:
        done = _is_done(tail.data)
        if not done and not isinstance(json_or_none(tail.data), (dict, list)):
            return
        self.unterminated_tail = True
        self.tail_event_count = 1
        if self._head is not None:
            self._judge([tail])
        answer = _DONE if done else self._reader.read(tail.name, tail.data)
        self._tally.add(_reading(answer), self._last_read_ns, row=False)

    def _read_body(self, body: bytes) -> None:
        if self.exchange.status >= 400:
            self._tally.error = read_error(body)
            return
        if not body.strip():
            return
        if self._dialect is None or not self._dialect.recognises("", body):
            found, score = choose_by_event("", body)
            if found is not None and score >= SURE and found is not self._dialect:
                self._dialect = found
                self._restart()
        for reading in self._reader.read_body(body):
            self._tally.add(reading, self._last_read_ns if reading.error else None, row=False)

    # -- choosing the dialect ------------------------------------------------------------------------------------

    def _judge(self, events: list[Event]) -> None:
        """Let the first events speak for a dialect. If they speak for another one, what was read is read again by it."""
        head = self._head or []
        before = self._dialect
        sure = any(self._speaks(event) >= SURE for event in events)
        if self._dialect is not before:
            self._restart()
            self._tally.add_events(head, self._answers(head))
        self._head_bytes += sum(len(event.data) for event in events)
        if sure or len(head) + len(events) > MAX_HEAD_EVENTS or self._head_bytes > MAX_HEAD_BYTES:
            self._settle(head)
        else:
            self._head = [*head, *events]

    def _settle(self, head: list[Event]) -> None:
        """The first events have spoken. What was claimed by a vague path only, and borne out by none of them, is dropped."""
        self._head = None
        if self._dialect is not None and not self._borne_out and self._claim < GUESS:
            self._dialect = None
            self._restart()
            self._tally.add_events(head, self._answers(head))

    def _speaks(self, event: Event) -> int:
        """Choose the dialect that this event speaks for; how surely it does."""
        if not event.data or _is_done(event.data):
            return 0
        own = self._dialect
        sureness = own.recognises(event.name, event.data) if own is not None else 0
        if own is not None and sureness >= SURE:
            self._borne_out = True
            return sureness
        best, best_score = own, sureness and sureness + self._claim
        for dialect in all_dialects():
            found = dialect.recognises(event.name, event.data)
            claim = dialect.claims(self.exchange) if found else 0
            if found and found + claim > best_score:
                best, best_score, sureness, self._claim = dialect, found + claim, found, claim
        self._dialect = best
        self._borne_out |= best_score > 0
        return sureness

    def _restart(self) -> None:
        self._tally = Tally(keep_text=self._keep_text)
        self._reader = self._new_reader()
        self._answers = Stencil(self._reader).read_many

    def _new_reader(self) -> Reader:
        return UnknownReader() if self._dialect is None else self._dialect.reader(self.exchange)

    # -- what was found --------------------------------------------------------------------------------------------

    @property
    def dialect(self) -> str:
        return UNKNOWN if self._dialect is None else self._dialect.name

    @property
    def provider(self) -> str | None:
        """The vendor: told by the exchange, else by a field of the stream, else what the dialect is named after."""
        return self._vendor or self._tally.provider or (self._dialect.provider if self._dialect else None)

    @property
    def operation(self) -> str | None:
        return self._dialect.operation if self._dialect else None

    @property
    def framing(self) -> str:
        """sse | lines | array | body | undecided."""
        return self._framer.framing

    @property
    def body_is_json(self) -> bool:
        """Whether a body that was not streamed is JSON, as far as its first bytes tell."""
        return self._framer.begins_with_json

    @property
    def coding_note(self) -> str | None:
        """What is wrong with the content coding, in words."""
        if self._coding.broken:
            return "the compressed bytes do not decode: read up to there"
        if self._coding.bomb:
            return "the compressed bytes grow beyond all proportion: read up to there"
        return (
            "the compressed bytes end before their end"
            if self._body_read and self._coding.unfinished
            else None
        )

    @property
    def streamed(self) -> bool:
        """Whether it came as events. Where nothing came, what the response called itself."""
        if self._framer.framing in ("sse", "lines", "array"):
            return True
        if self.body_bytes and not self._coding.broken:
            return False
        return self.exchange.status < 400 and any(
            t in self.exchange.content_type.lower() for t in _STREAM_TYPES
        )

    @property
    def events(self) -> EventColumns:
        return self._tally.events

    @property
    def event_count(self) -> int:
        return len(self._tally.events)

    @property
    def output_event_count(self) -> int:
        return self._tally.output_event_count

    @property
    def content_event_count(self) -> int:
        return self._tally.content_event_count

    @property
    def first_event_ns(self) -> int | None:
        return self._tally.first_event_ns

    @property
    def first_output_ns(self) -> int | None:
        return self._tally.first_output_ns

    @property
    def first_nonreasoning_output_ns(self) -> int | None:
        return self._tally.first_nonreasoning_output_ns

    @property
    def last_output_ns(self) -> int | None:
        return self._tally.last_output_ns

    @property
    def last_event_ns(self) -> int | None:
        at_ns = self._tally.events.at_ns
        return at_ns[-1] if at_ns else None

    @property
    def response_id(self) -> str | None:
        return self._tally.response_id

    @property
    def response_model(self) -> str | None:
        return self._tally.response_model

    @property
    def finish_reason(self) -> str | None:
        return self._tally.finish_reason

    @property
    def finish_ns(self) -> int | None:
        """When the first choice finished."""
        return self._tally.finish_ns

    @property
    def terminal_ns(self) -> int | None:
        """The semantic terminal: every choice seen has finished, or a terminal event came."""
        return self._tally.terminal_ns

    @property
    def terminal_seq(self) -> int | None:
        return self._tally.terminal_seq

    @property
    def done_seen(self) -> bool:
        return self._tally.done_seen

    @property
    def done_ns(self) -> int | None:
        """When `[DONE]` came."""
        return self._tally.done_ns

    @property
    def error(self) -> ErrorSeen | None:
        return self._tally.error

    @property
    def error_ns(self) -> int | None:
        return self._tally.error_ns

    @property
    def error_seq(self) -> int | None:
        return self._tally.error_seq

    @property
    def usage(self) -> Usage | None:
        return self._tally.usage

    @property
    def usage_source(self) -> str | None:
        """`usage`, or `usage_delta` where the last report is of a stream that never finished."""
        if self._tally.usage is None:
            return None
        whole = self._tally.finish_ns is not None or self._tally.terminal_seen or not self.streamed
        return "usage" if whole else "usage_delta"

    @property
    def usage_reports(self) -> list[tuple[int, int | None, Usage]]:
        """(seq of the event, its time, the report)."""
        return self._tally.usage_reports

    @property
    def server_stats(self) -> list[tuple[int | None, ServerStat]]:
        """(seq of the event, or None for response headers; the number)."""
        return [*((None, stat) for stat in self._header_stats), *self._tally.server_stats]

    @property
    def text(self) -> str:
        return str(self._tally.first_choice.text)

    @property
    def reasoning(self) -> str:
        return str(self._tally.first_choice.reasoning)

    @property
    def refusal(self) -> str:
        return str(self._tally.first_choice.refusal)

    @property
    def tool_calls(self) -> list[dict[str, str]]:
        return _tool_calls(self._tally.first_choice.tools.values())

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Every choice: index, text, reasoning, refusal, tool_calls, finish_reason."""
        return [
            {
                "index": index,
                "text": str(choice.text),
                "reasoning": str(choice.reasoning),
                "refusal": str(choice.refusal),
                "tool_calls": _tool_calls(choice.tools.values()),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in sorted(self._tally.choices.items())
        ]

    @property
    def choice_count(self) -> int:
        return len(self._tally.choices)

    @property
    def text_chars(self) -> int:
        return self._tally.text_chars

    @property
    def reasoning_chars(self) -> int:
        return self._tally.reasoning_chars

    @property
    def reasoning_seen(self) -> bool:
        return self._tally.reasoning_chars > 0

    @property
    def tool_call_count(self) -> int:
        return self._tally.tool_call_count

    @property
    def tool_failure_count(self) -> int:
        return self._tally.tool_failure_count

    @property
    def comment_count(self) -> int:
        return self._framer.comment_count

    @property
    def malformed_events(self) -> int:
        """Events that could not be read or were over the bound, and one for a content coding that did not hold."""
        return (
            self._tally.malformed_events
            + self._framer.oversized_events
            + (self._coding.broken or self._coding.bomb)
        )

    @property
    def reads(self) -> list[tuple[int, int]]:
        """(arrival, bytes of output events) of each read that completed output."""
        found: list[tuple[int, int]] = []
        last = -1
        columns = self._tally.events
        for read_seq, at_ns, kind, size in zip(
            columns.read_seq, columns.at_ns, columns.kind, columns.bytes, strict=True
        ):
            if kind not in OUTPUT_KINDS:
                continue
            if read_seq == last:
                found[-1] = (at_ns, found[-1][1] + size)
            else:
                found.append((at_ns, size))
                last = read_seq
        return found


def _is_done(data: bytes) -> bool:
    return data.strip() == b"[DONE]"


def _reading(answer: Reading | Delta) -> Reading:
    """A `Delta` in its long form."""
    if isinstance(answer, Reading):
        return answer
    text, reasoning = (answer.piece, "") if answer.kind == "text" else ("", answer.piece)
    return Reading(
        kind=answer.kind,
        fragments=[Fragment(choice=answer.choice, text=text, reasoning=reasoning, tokens=answer.tokens)],
    )


def _tool_calls(calls: Iterable[ToolCall]) -> list[dict[str, str]]:
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls if not call.server]

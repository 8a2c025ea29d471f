"""Decode one response body: content coding, framing, dialect. No I/O, no clock.

Input: reads (arrival in ns from t0, bytes) in order. Output: the attributes of `StreamDecoder`, valid at any time and final after
`finish`. When the first events select another dialect than the request did, they are decoded again with it.

An event without its blank line at the end of the body is not dispatched: it has no row and no time. If it is a terminator or
complete JSON, its content counts and `unterminated_tail` is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from streamgauge.analytics.decoding.accumulator import StreamAccumulator
from streamgauge.analytics.decoding.client_checks.by_dialect import CHECKS
from streamgauge.analytics.decoding.dialect_selection import UNKNOWN, DialectSelector, UnknownReader
from streamgauge.analytics.decoding.framing import Envelope, Framer
from streamgauge.analytics.decoding.stream_output import Audio, EventColumns, OutputStart, ToolCall
from streamgauge.analytics.decoding.template import EventTemplate
from streamgauge.analytics.dialects.dialect import DialectReader, ExchangeInfo
from streamgauge.analytics.dialects.error_bodies import error_in_body, unlabelled_error
from streamgauge.analytics.dialects.events import (
    DecodedEvent,
    DeltaRun,
    ErrorReport,
    RawEvent,
    ServerStat,
    Usage,
    as_decoded_event,
)
from streamgauge.analytics.dialects.tolerant_json import json_or_none
from streamgauge.analytics.dialects.vendors import header_stats, vendor_of
from streamgauge.ingest.content_coding import BodyDecoder
from streamgauge.ingest.records import CodingFault, body_coding
from streamgauge.ingest.redaction.filler import is_filler


def _from_accumulator(name: str) -> Any:
    """Read the attribute of this name from the accumulator."""
    return property(attrgetter(f"_accumulator.{name}"))


def _text_of_first_choice(channel: str) -> Any:
    return property(lambda stream: str(getattr(stream._accumulator.first_choice, channel)))


def _tool_calls(calls: Iterable[ToolCall]) -> list[dict[str, str]]:
    return [
        {"id": call.id, "name": call.name, "arguments": call.arguments}
        for call in calls
        if not call.server_side
    ]


_DONE = DecodedEvent(kind="terminal", done_marker=True)
MIN_FRAMED_READS, MAX_FRAMED_READS = 3, 512
"""Reads framed one by one before the template is tried on reads again; doubled after each failed attempt."""
FEW_READS = 6
"""This number of remaining reads, or fewer, is framed one by one without an attempt."""
_STREAM_TYPES = ("event-stream", "ndjson", "stream+json", "jsonl", "vnd.amazon.eventstream")


class StreamDecoder:
    """Decodes one response."""

    unterminated_tail = False

    def __init__(
        self, exchange: ExchangeInfo, *, keep_text: bool = False, coding_undone: bool = False
    ) -> None:
        """`coding_undone`: the body arrives without the content coding that its headers declare."""
        self.exchange = exchange
        self.first_byte_ns: int | None = None
        self.body_bytes = 0
        """As received, content coding included."""
        self.is_partial = False
        """Part of the body is not recorded, by rule."""
        self.tail_event_count = 0
        """1 if the body ended in an event without its blank line."""
        self._keep_text = keep_text
        self._coding_undone = coding_undone
        coding = body_coding(exchange.content_type, exchange.response_headers.get("content-encoding", ""))
        self._coding = BodyDecoder("" if coding_undone else coding)
        self._identity_coding = self._coding.plain
        self._framer = Framer(exchange.content_type, streams=exchange.status < 400 and not exchange.is_file)
        self._selector = DialectSelector(exchange)
        self._last_event: tuple[RawEvent, int | None] | None = None  # (event, seq if dispatched)
        self._last_kind = "other"  # of a last event that was not dispatched
        self._last_read_ns = 0
        self._finished = False
        self._unterminated_end = False  # the tail is an event other than `[DONE]`
        self._envelope: Envelope | None = None  # of the reads that match the template
        self._framed_reads = MIN_FRAMED_READS
        self._start_decoding()

    def feed(self, reads: Sequence[tuple[int, bytes]]) -> None:
        """Decode reads of the body: (arrival in ns from t0, bytes)."""
        if reads:
            times, data = zip(*reads, strict=True)
            self.feed_reads(times, data)

    def feed_reads(
        self, times: Sequence[int], reads: Sequence[bytes], *, wire_bytes: int | None = None
    ) -> None:
        """Decode at least one read; `times` are their arrivals.

        `wire_bytes`: their size as received, if the content coding is already undone.
        """
        sizes = list(map(len, reads))
        self.body_bytes += sum(sizes) if wire_bytes is None else wire_bytes
        self._last_read_ns = times[-1]
        if self.first_byte_ns is None:
            pairs = zip(times, reads, strict=True)
            # The tap sends reads without bytes while it undoes a coding: bytes arrived, but nothing is decoded so far.
            self.first_byte_ns = next((at_ns for at_ns, data in pairs if data or self._coding_undone), None)
        if self._coding_undone or not self._identity_coding:
            undo = bytes if self._coding_undone else self._coding.feed
            made = [(at_ns, plain) for at_ns, data in zip(times, reads, strict=True) if (plain := undo(data))]
            times, reads = zip(*made, strict=True) if made else ((), ())
            sizes = list(map(len, reads))
        at, count = 0, len(times)
        while at < count:
            before, at = at, self._decode_matching_reads(times, reads, sizes, at)
            # After reads that matched, one read usually interrupts the run (a comment, two events at once). Without a match the
            # next attempts get rarer, because streams with padding or a running number never match.
            framed = 1 if at > before else self._framed_reads
            self._framed_reads = min(2 * framed, MAX_FRAMED_READS)
            # An attempt on a few reads costs more than framing them.
            end = min(at + framed, count) if count - at > FEW_READS else count
            events = self._framer.feed_many(list(zip(times[at:end], reads[at:end], strict=True)))
            at = end
            if events:
                self._decode_events(events)
                # The envelope of the newest event: whether a server sends an event name or CRLF can change after its first events.
                if self._template.trusted and (at < count or self._envelope is None):
                    self._envelope = self._framer.envelope_of(reads[at - 1], events[-1]) or self._envelope

    def coding_failed(self, fault: CodingFault) -> None:
        """Record a fault of a content coding that was undone before."""
        setattr(self._coding, fault, True)

    def finish(self) -> None:
        """End the body, complete or not."""
        if self._finished:
            return
        self._finished = True
        end = self._framer.finish()
        if self._framer.unframed:
            self._decode_unframed()
        if end.tail is not None:
            self._decode_tail(end.tail)
        if end.body is not None:
            self._decode_body(end.body)
        first_events = self._selector.first_events
        if first_events:
            if self.exchange.status >= 400 and self._accumulator.error is None:
                self._accumulator.error = error_in_body(first_events[0].data)
            else:
                dialect = self._selector.dialect
                self._selector.settle()
                if self._selector.dialect is not dialect:
                    self._start_decoding(first_events)
        self._find_unlabelled_error()
        header = self.exchange.response_headers.get("x-amzn-errortype")
        if header and self.exchange.status >= 400:  # AWS has the type of an error in this header alone
            error = self._accumulator.error or ErrorReport(type=None)
            error.type = header.partition(":")[0]
            self._accumulator.error = error

    def _start_decoding(self, events: Sequence[RawEvent] = ()) -> None:
        """Start over with the selected dialect, from the first event."""
        dialect = self._selector.dialect
        # The reader and the accumulator have state of the former dialect, so all events so far are decoded again. The selector
        # keeps at most `MAX_FIRST_EVENTS` of them.
        self._reader: DialectReader = UnknownReader() if dialect is None else dialect.reader(self.exchange)
        self._accumulator = StreamAccumulator(keep_text=self._keep_text)
        self._template = EventTemplate(self._reader)
        self._envelope = None
        self._framed_reads = MIN_FRAMED_READS
        checks = CHECKS.get(self.dialect)
        self._checks = checks() if checks is not None else None
        if events:
            self._add_events(events)

    def _add_events(self, events: Sequence[RawEvent]) -> None:
        found, checks = self._accumulator, self._checks
        before, content_before = len(found.events), found.content_event_count
        answers = self._template.read_many(events)
        found.add_events(events, answers)
        if checks is None:
            return
        if not before:
            checks.has_mark = "byte_order_mark" in self._framer.broken_rules
        # Without a call for most events of a stream: all of them have content, enough of these were checked, and they are alike.
        has_others = found.content_event_count - content_before < len(events)
        rows = found.events
        if not has_others and not checks.outputs_left:
            matched = len(answers) == 1 and type(answers[0]) is DeltaRun
            if matched or (checks.alike(events) and not any(rows.finish_reason[before:])):
                return
        # Those that match the template are like the events before them.
        run = answers[-1]
        end = len(events) - (len(run.texts) if type(run) is DeltaRun else 0)
        for start, stop in ((0, end), (end, len(events))):
            if start < stop and (start == 0 or checks.outputs_left):
                at = slice(before + start, before + stop)
                checks.check(events[start:stop], rows.kind[at], rows.chars[at], rows.finish_reason[at])

    def _select_dialect(self, events: Sequence[RawEvent], *, dispatched: bool = True) -> None:
        selector = self._selector
        dialect, first_events = selector.dialect, selector.first_events
        selector.consider(events, dispatched=dispatched)
        if selector.dialect is not dialect:
            self._start_decoding(first_events)

    def _decode_events(self, events: Sequence[RawEvent]) -> None:
        if not self._selector.settled:
            self._select_dialect(events)
        self._add_events(events)
        # The event before `[DONE]` is the last one that can be an error without a label.
        back = 2 if len(events) > 1 and _is_done(events[-1].data) else 1
        if not _is_done(events[-back].data):
            self._last_event = (events[-back], self.event_count - back)

    def _decode_matching_reads(
        self, times: Sequence[int], reads: Sequence[bytes], sizes: Sequence[int], at: int
    ) -> int:
        """Decode the reads from `at` on that are one event each and match the template; return the index of the next."""
        template, envelope, framer = self._template, self._envelope, self._framer
        if envelope is None or envelope.event_name != template.event_name:
            return at
        # Enough outputs after another event are framed, for the checks of strict clients.
        checked = self._checks is None or not self._checks.outputs_left
        if not (template.trusted and framer.between_events and checked):
            return at
        run = template.match_reads(reads, at, envelope.prefix, envelope.suffix)
        if run is None:
            return at
        end = at + len(run.texts)
        envelope_bytes = len(envelope.prefix) + len(envelope.suffix)
        event_sizes = [size - envelope_bytes for size in sizes[at:end]]
        self._accumulator.add_run(run, envelope.event_name, times[at:end], event_sizes, framer.read_count)
        framer.skip_reads(end - at, times[end - 1])
        # An event that matches carries text, so it cannot be an error without a label.
        self._last_event = None
        return end

    def _decode_unframed(self) -> None:
        """Add the content of JSON outside of events, dated by its read.

        Decoded at the end, by the dialect that the events selected: the division into reads must not matter.
        """
        if not self._selector.settled and not self._selector.confirmed:
            self._select_dialect(self._framer.unframed, dispatched=False)
        for event in self._framer.unframed:
            answer = as_decoded_event(self._reader.read(event.name, event.data))
            self._last_kind = self._accumulator.add_event(answer, event.at_ns, row=False)
            self._last_event = (event, None)

    def _decode_tail(self, tail: RawEvent) -> None:
        self.tail_event_count = 1
        done = _is_done(tail.data)
        if not done and not isinstance(json_or_none(tail.data), (dict, list)):
            return
        self.unterminated_tail = True
        self._unterminated_end = not done
        if not self._selector.settled:
            self._select_dialect([tail], dispatched=False)
        answer = _DONE if done else self._reader.read(tail.name, tail.data)
        answer = as_decoded_event(answer)
        self._last_kind = self._accumulator.add_event(answer, self._last_read_ns, row=False)
        self._last_event = (RawEvent(tail.name, tail.data, self._last_read_ns, tail.read_seq), None)

    def _decode_body(self, body: bytes) -> None:
        if self.exchange.status >= 400:
            self._accumulator.error = error_in_body(body)
            return
        if not body.strip() or self.exchange.is_file:
            return
        dialect = self._selector.dialect
        self._selector.consider_body(body)
        if self._selector.dialect is not dialect:
            self._start_decoding()
        for event in self._reader.read_body(body):
            # Content of a whole body has no time: it was complete before its last byte. An error needs one, because the first
            # cause by time wins.
            self._accumulator.add_event(event, self._last_read_ns if event.error else None, row=False)

    def _find_unlabelled_error(self) -> None:
        """Find an error in the last event of a stream without a terminal, if its dialect does not know the event."""
        found = self._accumulator
        ended = found.error is not None or found.terminal_seen or found.finish_ns is not None
        if self._last_event is None or self._selector.dialect is None or ended:
            return
        event, seq = self._last_event
        kind = self._last_kind if seq is None else found.events.kind[seq]
        error = unlabelled_error(event.data) if kind in ("other", "malformed") else None
        if error is not None:
            found.error, found.error_ns, found.error_seq = error, event.at_ns, seq
            if seq is not None:
                found.events.kind[seq] = "error"

    # The results: those of the current accumulator, which is replaced when another dialect is selected. Times in ns from t0;
    # None = not seen so far.

    events: EventColumns = _from_accumulator("events")
    output_event_count: int = _from_accumulator("output_event_count")
    content_event_count: int = _from_accumulator("content_event_count")
    response_id: str | None = _from_accumulator("response_id")
    response_model: str | None = _from_accumulator("response_model")
    finish_reason: str | None = _from_accumulator("finish_reason")
    finish_ns: int | None = _from_accumulator("finish_ns")
    """When the first choice finished."""
    terminal_ns: int | None = _from_accumulator("terminal_ns")
    """The semantic terminal: each choice seen has finished, or a terminal event arrived."""
    terminal_seq: int | None = _from_accumulator("terminal_seq")
    output_after_finish: bool = _from_accumulator("output_after_finish")
    """The finish reasons do not prove the end: output followed one, and no terminal event or `[DONE]` followed the last one."""
    done_seen: bool = _from_accumulator("done_seen")
    error: ErrorReport | None = _from_accumulator("error")
    error_ns: int | None = _from_accumulator("error_ns")
    error_seq: int | None = _from_accumulator("error_seq")
    usage: Usage | None = _from_accumulator("usage")
    usage_reports: list[tuple[int, int | None, Usage]] = _from_accumulator("usage_reports")
    """(seq of the event, its time, the report)."""
    billing: dict[str, Any] = _from_accumulator("billing")
    text_chars: int = _from_accumulator("text_chars")
    reasoning_chars: int = _from_accumulator("reasoning_chars")
    audio: Audio = _from_accumulator("audio")
    refusal_chars: int = _from_accumulator("refusal_chars")
    tool_call_count: int = _from_accumulator("tool_call_count")
    tool_call_chars: int = _from_accumulator("tool_call_chars")
    tool_failure_count: int = _from_accumulator("tool_failure_count")
    output_start: OutputStart = _from_accumulator("output_start")
    text: str = _text_of_first_choice("text")
    reasoning: str = _text_of_first_choice("reasoning")
    refusal: str = _text_of_first_choice("refusal")

    @property
    def event_count(self) -> int:
        return len(self._accumulator.events)

    @property
    def last_event_ns(self) -> int | None:
        at_ns = self._accumulator.events.at_ns
        return at_ns[-1] if at_ns else None

    @property
    def tool_calls(self) -> list[dict[str, str]]:
        return _tool_calls(self._accumulator.first_choice.tool_calls.values())

    @property
    def tool_times(self) -> list[ToolCall]:
        """The tool calls of all choices that began in a dispatched event, by start time."""
        calls = [c for choice in self._accumulator.choices.values() for c in choice.tool_calls.values()]
        return sorted((c for c in calls if c.began_ns is not None), key=lambda c: c.began_ns or 0)

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Every choice: index, text, reasoning, refusal, tool_calls, finish_reason."""
        return [
            {
                "index": index,
                "text": str(choice.text),
                "reasoning": str(choice.reasoning),
                "refusal": str(choice.refusal),
                "tool_calls": _tool_calls(choice.tool_calls.values()),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in sorted(self._accumulator.choices.items())
        ]

    @property
    def choice_count(self) -> int:
        return len(self._accumulator.choices)

    @property
    def dialect(self) -> str:
        return UNKNOWN if self._selector.dialect is None else self._selector.dialect.name

    @property
    def provider(self) -> str | None:
        """The vendor: by host, path or headers, else by a field of the stream, else the dialect's own."""
        dialect = self._selector.dialect
        return (
            vendor_of(self.exchange) or self._accumulator.provider or (dialect.provider if dialect else None)
        )

    @property
    def operation(self) -> str | None:
        """By the request where the dialect has several, else the dialect's."""
        dialect = self._selector.dialect
        return getattr(self._reader, "operation", None) or (dialect.operation if dialect else None)

    @property
    def open_ended(self) -> bool:
        """The stream has no terminal: its end by either side is no failure."""
        return getattr(self._reader, "open_ended", False)

    @property
    def framing(self) -> str:
        """sse | lines | array | body | undecided."""
        return self._framer.framing

    @property
    def body_is_json(self) -> bool:
        """Whether a body that was not streamed begins as JSON."""
        return self._framer.begins_with_json

    @property
    def coding_note(self) -> str | None:
        """Description of the fault in the content coding, if any."""
        if self._coding.broken:
            return "the compressed bytes are invalid: decoded up to the fault"
        if self._coding.bomb:
            return "the compressed bytes expand beyond the limit: decoded up to it"
        unfinished = self._finished and self._coding.unfinished
        return "the compressed bytes are cut short: decoded up to their end" if unfinished else None

    @property
    def streamed(self) -> bool:
        """Whether the body arrived as events. Without a body, content type and request decide."""
        if self._framer.framing in ("sse", "lines", "array"):
            return True
        if not self._is_blank and not self._coding.broken:
            return False
        return self.stream_is_missing or (
            self.exchange.status < 400 and any(t in self.exchange.content_type.lower() for t in _STREAM_TYPES)
        )

    @property
    def stream_is_missing(self) -> bool:
        """The response has no event and no other body although the request asked for a stream."""
        if not self.exchange.stream_requested or self.exchange.status != 200 or self.is_partial:
            return False
        only_comments = self._framer.framing == "sse" and not (self.event_count or self.tail_event_count)
        return self._is_blank or (only_comments and not self._framer.unframed)

    @property
    def _is_blank(self) -> bool:
        """There is no body, or only white space."""
        return self._framer.framing == "undecided" and not self._framer.begins_with_json

    @property
    def counted_usage(self) -> Usage | None:
        """The last report with input and output, as it was sent: none of its numbers are of an earlier one."""
        reports = (usage for _, _, usage in reversed(self._accumulator.usage_reports))
        return next((u for u in reports if u.input_tokens is not None and u.output_tokens is not None), None)

    @property
    def usage_denies_output(self) -> bool:
        """The usage reports 0 output tokens although there was output."""
        found = self._accumulator
        return found.usage is not None and found.usage.output_tokens == 0 and found.output_event_count > 0

    @property
    def usage_denies_input(self) -> bool:
        """The usage reports 0 input tokens although the model answered a prompt."""
        usage = self._accumulator.usage
        if usage is None or usage.input_tokens != 0:
            return False
        return self.exchange.has_prompt or bool(usage.output_tokens or self._accumulator.output_event_count)

    @property
    def usage_is_final(self) -> bool:
        """The stream finished, so its last usage report is no running count."""
        found = self._accumulator
        return found.finish_ns is not None or found.terminal_seen or not self.streamed

    @property
    def server_stats(self) -> list[tuple[int | None, ServerStat]]:
        """(seq of the event, or None for a response header; the statistic)."""
        headers = [(None, stat) for stat in header_stats(self.exchange.response_headers)]
        return [*headers, *self._accumulator.server_stats]

    def violations(self, *, ended: bool) -> list[str] | None:
        """Codes of the rules of strict clients that the stream breaks. None if its format has no rules.

        `ended`: neither an error nor a client that left cut the stream, so what it lacks at its end breaks rules too.
        """
        if self._checks is None or self._framer.framing != "sse":
            return None
        codes = [*self._framer.broken_rules]
        if self._unterminated_end:
            codes.append("unterminated_end")
        calls = {key: "".join(parts) for (_, key), parts in self.output_start.arguments.items()}
        arguments = {key: text for key, text in calls.items() if not is_filler(text)}
        return self._checks.violations(ended=ended, framing=codes, arguments=arguments)

    @property
    def comment_count(self) -> int:
        return self._framer.comment_count

    @property
    def malformed_events(self) -> int:
        """Events that are malformed or too large, plus one for a faulty content coding."""
        coding_faults = self._coding.broken or self._coding.bomb
        return self._accumulator.malformed_events + self._framer.oversized_events + coding_faults


def _is_done(data: bytes) -> bool:
    return data.strip() == b"[DONE]"

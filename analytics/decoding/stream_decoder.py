"""Read one response body: content coding, framing, dialect. No I/O, no clock: bytes and times in, values out.

The dialect is guessed from the exchange (path, headers) and judged by the first events: the one that recognises them
most surely reads the stream, and when that is another than the guess, the first events are read again by it. Without any
that knows them the stream is `unknown`: its bytes, events and times are measured all the same.

An event without its blank line at the end is never an event (no row, no time of its own); if it is a terminator or whole JSON,
what it says is taken and `unterminated_tail` is set.
"""

from __future__ import annotations

from collections.abc import Sequence

from analytics.decoded.decoded_event import OUTPUT_KINDS, DecodedEvent, ServerStat, as_decoded_event
from analytics.decoded.dialect import Dialect, DialectReader, ExchangeInfo
from analytics.decoded.raw_event import RawEvent
from analytics.decoded.tolerant_json import json_or_none
from analytics.decoding.accumulator import StreamAccumulator
from analytics.decoding.content_coding import BodyDecoder
from analytics.decoding.decoded_stream import DecodedStream
from analytics.decoding.framing import Framer, Wrapping
from analytics.decoding.sse import MAX_EVENT_BYTES
from analytics.decoding.template import EventTemplate
from analytics.dialects import all_dialects, choose_by_event, choose_by_exchange
from analytics.dialects.errors import error_in_body, unlabelled_error
from analytics.dialects.unknown import NAME as UNKNOWN
from analytics.dialects.unknown import UnknownReader
from analytics.dialects.vendors import header_stats, vendor_of
from ingest.records import CodingFault

SURE = 5
"""A score at which an event settles the dialect."""
GUESS = 3
"""A claim below this is dropped when no event bears it out."""
MAX_HEAD_EVENTS = 16
MAX_HEAD_BYTES = 2**20
_DONE = DecodedEvent(kind="terminal", done_marker=True)
FIRST_STRIDE, MAX_STRIDE = 3, 512
"""So many reads are framed one by one before it is tried again to read many at once; each time in vain twice as many."""
FEW_READS = 6
"""So many are not worth a try."""
_STREAM_TYPES = ("event-stream", "ndjson", "stream+json", "jsonl")


class StreamDecoder(DecodedStream):
    """Decodes one response. Every result is valid at any time, and final after `finish`."""

    def __init__(
        self, exchange: ExchangeInfo, *, keep_text: bool = False, coding_undone: bool = False
    ) -> None:
        """`coding_undone`: the body comes without the content coding that its head tells of."""
        self.exchange = exchange
        self.first_byte_ns: int | None = None
        self.body_bytes = 0
        """As received, content coding included."""
        self.unterminated_tail = False
        self.tail_event_count = 0
        """1 if the tail was whole and has been read: an event to a reader of files, none by the rules of SSE."""
        self._keep_text = keep_text
        self._coding_undone = coding_undone
        self._coding = BodyDecoder(
            "" if coding_undone else exchange.response_headers.get("content-encoding", "")
        )
        self._coding_plain = self._coding.plain
        self._framer = Framer(exchange.content_type, streams=exchange.status < 400)
        self._dialect: Dialect | None
        self._dialect, self._claim = choose_by_exchange(exchange)
        self._accumulator = StreamAccumulator(keep_text=keep_text)
        self._reader: DialectReader = self._new_reader()
        self._template = EventTemplate(self._reader)
        self._wrapping: Wrapping | None = None
        self._stride = FIRST_STRIDE
        self._head: list[RawEvent] | None = []  # the first events, until the dialect is settled
        self._head_bytes = 0
        self._borne_out = False  # some event was recognised by the dialect
        self._last: tuple[RawEvent, int | None] | None = None  # the last event, and its row if it has one
        self._last_read_ns = 0
        self._body_read = False

    # -- feeding -------------------------------------------------------------------------------------------------

    def feed(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Reads of the body, in order: (arrival in ns from t0, bytes)."""
        if frames:
            times, reads = zip(*frames, strict=True)
            self.feed_reads(times, reads)

    def feed_reads(
        self, times: Sequence[int], reads: Sequence[bytes], *, wire_bytes: int | None = None
    ) -> None:
        """The same, arrivals and bytes apart, as they are used: equally many, at least one.

        `wire_bytes`: what all of them were as received, where the content coding was undone before.
        """
        self.body_bytes += sum(map(len, reads)) if wire_bytes is None else wire_bytes
        self._last_read_ns = times[-1]
        if self.first_byte_ns is None:
            pairs = zip(times, reads, strict=True)
            self.first_byte_ns = next((at_ns for at_ns, data in pairs if data or self._coding_undone), None)
        if self._coding_undone or not self._coding_plain:
            undo = bytes if self._coding_undone else self._coding.feed
            made = [(at_ns, plain) for at_ns, data in zip(times, reads, strict=True) if (plain := undo(data))]
            times, reads = zip(*made, strict=True) if made else ((), ())
        at, count = 0, len(times)
        while at < count:
            before, at = at, self._skim(times, reads, at)
            stride = 1 if at > before else self._stride
            self._stride = min(2 * stride, MAX_STRIDE)
            end = min(at + stride, count) if count - at > FEW_READS else count
            events = self._framer.feed_many(list(zip(times[at:end], reads[at:end], strict=True)))
            at = end
            if events:
                self._read(events)
                if self._template.trusted and (at < count or self._wrapping is None):
                    self._wrapping = self._framer.wrapping_of(reads[at - 1], events[-1]) or self._wrapping

    def _skim(self, times: Sequence[int], reads: Sequence[bytes], at: int) -> int:
        """Read the reads from `at` on that are one event each and fit the template; the index of the first that is not."""
        template, wrapping, framer = self._template, self._wrapping, self._framer
        if wrapping is None or wrapping.name != template.name or not (template.trusted and framer.at_rest):
            return at
        around_bytes = len(wrapping.lead) + len(wrapping.trail)
        while at < len(reads):
            window = template.window
            run = template.fit_reads(reads[at : at + window], wrapping.lead, wrapping.trail)
            if run is None:
                break
            end = at + len(run.texts)
            sizes = [len(read) - around_bytes for read in reads[at:end]]
            if max(sizes) > MAX_EVENT_BYTES:
                break
            self._accumulator.add_run(run, wrapping.name, times[at:end], sizes, framer.read_count)
            framer.pass_over(end - at, times[end - 1])
            self._last = None
            if end - at < window:
                return end
            at = end
        return at

    def coding_failed(self, fault: CodingFault) -> None:
        """The content coding, undone before, did not hold."""
        setattr(self._coding, fault, True)

    def finish(self) -> None:
        """The body is over, cleanly or not."""
        if self._body_read:
            return
        self._body_read = True
        ending = self._framer.finish()
        if self._framer.stray:
            self._read_stray()
        if ending.tail is not None:
            self._read_tail(ending.tail)
        if ending.body is not None:
            self._read_body(ending.body)
        if self._head:
            head = self._head
            if self.exchange.status >= 400 and self._accumulator.error is None:
                self._accumulator.error = error_in_body(head[0].data)
            else:
                self._settle(head)
        self._hear_last_words()

    def _read(self, events: list[RawEvent]) -> None:
        if self._head is not None:
            self._judge(events)
        self._accumulator.add_events(events, self._template.read_many(events))
        back = 2 if len(events) > 1 and _is_done(events[-1].data) else 1
        if not _is_done(events[-back].data):
            self._last = (events[-back], len(self._accumulator.events) - back)

    def _hear_last_words(self) -> None:
        """A stream that ends without its terminal may have said why in its last event, in no shape of its dialect."""
        accumulator = self._accumulator
        ended = (
            accumulator.error is not None or accumulator.terminal_seen or accumulator.finish_ns is not None
        )
        if self._last is None or self._dialect is None or ended:
            return
        event, seq = self._last
        if seq is not None and accumulator.events.kind[seq] in (*OUTPUT_KINDS, "ping"):
            return
        error = unlabelled_error(event.data)
        if error is not None:
            accumulator.error, accumulator.error_ns, accumulator.error_seq = error, event.at_ns, seq
            if seq is not None:
                accumulator.events.kind[seq] = "error"

    def _read_stray(self) -> None:
        """What was said between the events, or instead of them, counts for what it says, dated by its read.

        Read at the end, by the dialect that the events have settled: so the cut of the bytes changes nothing.
        """
        if self._head is not None and not self._borne_out:
            self._judge(self._framer.stray, rows=False)
        for event in self._framer.stray:
            self._accumulator.add_event(
                as_decoded_event(self._reader.read(event.name, event.data)), event.at_ns, row=False
            )
            self._last = (event, None)

    def _read_tail(self, tail: RawEvent) -> None:
        self.tail_event_count = 1
        done = _is_done(tail.data)
        if not done and not isinstance(json_or_none(tail.data), (dict, list)):
            return
        self.unterminated_tail = True
        if self._head is not None:
            self._judge([tail], rows=False)
        answer = _DONE if done else self._reader.read(tail.name, tail.data)
        self._accumulator.add_event(as_decoded_event(answer), self._last_read_ns, row=False)
        self._last = (RawEvent(tail.name, tail.data, self._last_read_ns, tail.read_seq), None)

    def _read_body(self, body: bytes) -> None:
        if self.exchange.status >= 400:
            self._accumulator.error = error_in_body(body)
            return
        if not body.strip():
            return
        if self._dialect is None or not self._dialect.recognises("", body):
            found, score = choose_by_event("", body)
            if found is not None and score >= SURE and found is not self._dialect:
                self._dialect = found
                self._restart()
        for reading in self._reader.read_body(body):
            self._accumulator.add_event(reading, self._last_read_ns if reading.error else None, row=False)

    # -- choosing the dialect ------------------------------------------------------------------------------------

    def _judge(self, events: list[RawEvent], *, rows: bool = True) -> None:
        """Let the first events speak for a dialect. If they speak for another one, what was read is read again by it.

        `rows`: they are events, to be read again with the others.
        """
        head = self._head or []
        before = self._dialect
        looked_at = len(head)
        settled = False
        for event in events:
            settled = self._speaks(event) >= SURE
            looked_at += 1
            self._head_bytes += len(event.data)
            settled |= looked_at > MAX_HEAD_EVENTS or self._head_bytes > MAX_HEAD_BYTES
            if settled:
                break  # as if the events had come one by one
        if self._dialect is not before:
            self._restart()
            self._accumulator.add_events(head, self._template.read_many(head))
        if settled:
            self._settle(head)
        elif rows:
            self._head = [*head, *events]

    def _settle(self, head: list[RawEvent]) -> None:
        """The first events have spoken. What was claimed by a vague path only, and borne out by none of them, is dropped."""
        self._head = None
        if self._dialect is not None and not self._borne_out and self._claim < GUESS:
            self._dialect = None
            self._restart()
            self._accumulator.add_events(head, self._template.read_many(head))

    def _speaks(self, event: RawEvent) -> int:
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
            if found < GUESS <= self._claim and not sureness:
                continue  # a word that many use (`error`, `ping`) does not outweigh the path
            claim = dialect.claims(self.exchange) if found else 0
            if found and found + claim > best_score:
                best, best_score, sureness, self._claim = dialect, found + claim, found, claim
        self._dialect = best
        self._borne_out |= best_score > 0
        return sureness

    def _restart(self) -> None:
        self._accumulator = StreamAccumulator(keep_text=self._keep_text)
        self._reader = self._new_reader()
        self._template = EventTemplate(self._reader)
        self._wrapping = None
        self._stride = FIRST_STRIDE

    def _new_reader(self) -> DialectReader:
        return UnknownReader() if self._dialect is None else self._dialect.reader(self.exchange)

    # -- what was found --------------------------------------------------------------------------------------------

    @property
    def dialect(self) -> str:
        return UNKNOWN if self._dialect is None else self._dialect.name

    @property
    def provider(self) -> str | None:
        """The vendor: told by the exchange, else by a field of the stream, else what the dialect is named after."""
        return (
            vendor_of(self.exchange)
            or self._accumulator.provider
            or (self._dialect.provider if self._dialect else None)
        )

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
    def usage_source(self) -> str | None:
        """`usage`, or `usage_delta` where the last report is of a stream that never finished."""
        if self._accumulator.usage is None:
            return None
        whole = (
            self._accumulator.finish_ns is not None or self._accumulator.terminal_seen or not self.streamed
        )
        return "usage" if whole else "usage_delta"

    @property
    def server_stats(self) -> list[tuple[int | None, ServerStat]]:
        """(seq of the event, or None for response headers; the number)."""
        return [
            *((None, stat) for stat in header_stats(self.exchange.response_headers)),
            *self._accumulator.server_stats,
        ]

    @property
    def comment_count(self) -> int:
        return self._framer.comment_count

    @property
    def malformed_events(self) -> int:
        """Events that could not be read or were over the bound, and one for a content coding that did not hold."""
        return (
            self._accumulator.malformed_events
            + self._framer.oversized_events
            + (self._coding.broken or self._coding.bomb)
        )


def _is_done(data: bytes) -> bool:
    return data.strip() == b"[DONE]"

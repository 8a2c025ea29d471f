"""Decode events that differ from an earlier one in a single JSON string, without parsing the rest.

Nearly all events of a stream consist of the same bytes around a different text. After a reader returns a `TextDelta`, the
bytes before and after its text form the template. An event with the same prefix and suffix, and one JSON string between
them, decodes to the same `TextDelta` with that string as its text.

The template is used after the reader has confirmed it on a second event. It is suspended for `PAUSE_EVENTS` when it does
not match: events with a running number or padding never do.

Many events are matched at once. The bytes between prefix and suffix are cut out of each, and the batch is rebuilt around
them; if the result equals the input, every event matches. Then all texts are decoded as one JSON string with a separator
between them. A text cannot hide a separator: after a backslash or inside a character it makes the JSON invalid.

Measured with `bench decode` ("openai_chat"): without templates the decoder handles a quarter of the events per second;
with templates on events only (`read_many`, not `match_reads`), less than half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from streamgauge.analytics.decoding.sse import MAX_EVENT_BYTES
from streamgauge.analytics.dialects.dialect import DialectReader
from streamgauge.analytics.dialects.events import DecodedEvent, DeltaRun, EventKind, RawEvent, TextDelta
from streamgauge.analytics.dialects.tolerant_json import FAULTS

_decode_string = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode

MAX_FAILED_TEMPLATES = 8
PAUSE_EVENTS = 512
MIN_SAMPLE, MAX_SAMPLE = 2, 64
"""Events passed to the reader at once while there is no template; doubled each time they yield none."""
MIN_WINDOW, MAX_WINDOW = 8, 128
"""Events matched at once: doubled after all of them matched, otherwise halved."""
MAX_UNLIKE_AT_END = 4
"""Events at the end of a batch that may be left out because their prefix differs (finish, usage, [DONE])."""
MAX_TEMPLATE_BYTES = 16 * 1024
_DONE = DecodedEvent(kind="terminal", done_marker=True)
_SEPARATOR = "\x7f"


class EventTemplate:
    """Decodes the events of one stream, by the template if they match it, else by the reader."""

    def __init__(self, reader: DialectReader) -> None:
        self.event_name = ""
        """The name of the events that match."""
        self.trusted = False
        """The reader has confirmed the template: matching events are decoded without it."""
        self._window = MAX_WINDOW
        self._read = reader.read
        self._read_many: Callable[[Sequence[RawEvent]], list[DecodedEvent | TextDelta]] | None = getattr(
            reader, "read_many", None
        )
        self._prefix = self._suffix = b""
        self._kind: EventKind = "text"
        self._choice = 0
        self._sample = MIN_SAMPLE
        self._failed_templates = 0
        self._pause = 0

    def read_many(self, events: Sequence[RawEvent]) -> list[DecodedEvent | TextDelta | DeltaRun]:
        """Decode events. A `DeltaRun` covers as many events as it has texts."""
        decoded: list[DecodedEvent | TextDelta | DeltaRun] = []
        at = 0
        while at < len(events):
            if self.trusted:
                # Cheaper than a failed batch: an event that begins otherwise ends a run (finish, usage), and is not held against the
                # template.
                likely = events[at].data.startswith(self._prefix)
                run = self._match_events(events, at) if likely else None
                if run is not None:
                    decoded.append(run)
                    at += len(run.texts)
                    continue
            elif not self._prefix:
                sample = events[at : at + (self._pause if self._pause > 0 else self._sample)]
                answers = self._read_by_reader(sample)
                decoded += answers
                at += len(sample)
                if self._pause > 0:
                    self._pause -= len(sample)
                # The last answer, because the first events of a stream (role, ids) are never like the rest.
                elif type(answers[-1]) is TextDelta:
                    self._learn(sample[-1], answers[-1])
                else:
                    # A reader decodes a batch faster than single events, so a stream without a template gets larger and larger ones.
                    self._sample = min(2 * self._sample, MAX_SAMPLE)
                continue
            decoded.append(self._confirm(events[at]))
            at += 1
        return decoded

    def match_reads(self, reads: Sequence[bytes], at: int, prefix: bytes, suffix: bytes) -> DeltaRun | None:
        """Decode the reads from `at` on that hold one matching event each, between `prefix` and `suffix`; None if there is none.

        Requires `trusted`.
        """
        prefix, suffix = prefix + self._prefix, self._suffix + suffix
        texts: list[str] = []
        full = True
        while full and at < len(reads):
            window = self._window
            found = self._texts(reads[at : at + window], prefix, suffix)
            texts += found
            at += window
            full = len(found) == window
        return DeltaRun(self._kind, texts, self._choice) if texts else None

    def _match_events(self, events: Sequence[RawEvent], at: int) -> DeltaRun | None:
        batch = events[at : at + self._window]
        same_name = next((n for n, event in enumerate(batch) if event.name != self.event_name), len(batch))
        texts = self._texts([event.data for event in batch[:same_name]], self._prefix, self._suffix)
        return DeltaRun(self._kind, texts, self._choice) if texts else None

    def _texts(self, parts: Sequence[bytes], prefix: bytes, suffix: bytes) -> list[str]:
        """The strings between prefix and suffix of the leading parts that match."""
        start, end = len(prefix), -len(suffix)
        count = len(parts)
        # The last events of most streams differ. Without them the batch still matches as a whole.
        while count > len(parts) - MAX_UNLIKE_AT_END and count and parts[count - 1][:start] != prefix:
            count -= 1
        tried = parts[:count]
        whole = b"".join(tried)
        # Reads that skip the framer must obey its limit: above it, an event counts as oversized.
        if len(whole) > MAX_EVENT_BYTES:
            tried = ()
        cut: list[bytes] = list(map(itemgetter(slice(start, end)), tried))
        # One comparison of the whole batch, in C, in place of two per event. Only if it fails is the first event that differs
        # searched.
        if prefix + (suffix + prefix).join(cut) + suffix != whole:
            cut = []
            for part in tried:
                if len(part) < start - end or part[:start] != prefix or part[end:] != suffix:
                    break
                cut.append(part[start:end])
        texts = _decode_strings(cut)
        if len(texts) < len(parts):
            self._window = max(MIN_WINDOW, self._window // 2)
        elif len(texts) == self._window:
            self._window = min(MAX_WINDOW, self._window * 2)
        if len(texts) > 1:
            self._failed_templates = 0
        return texts

    def _confirm(self, event: RawEvent) -> DecodedEvent | TextDelta:
        """Decode by the reader, and confirm the template with the result or learn a new one."""
        answer = self._read_by_reader((event,))[0]
        may_match = not self.trusted and event.name == self.event_name
        texts = self._texts((event.data,), self._prefix, self._suffix) if may_match else []
        if texts:
            # The reader decodes the second event too. If its result depends on earlier events (a text that is repeated so far),
            # it differs from the template's, which is then not used.
            self.trusted = answer == TextDelta(self._kind, texts[0], self._choice)
            if not self.trusted:
                self._suspend()
        elif type(answer) is TextDelta:
            self._learn(event, answer)
        return answer

    def _read_by_reader(self, events: Sequence[RawEvent]) -> list[DecodedEvent | TextDelta]:
        if self._read_many is not None:
            return self._read_many(events)
        read = self._read
        return [
            # The length excludes nearly all events before `strip` copies them.
            read(event.name, event.data) if len(event.data) > 16 or event.data.strip() != b"[DONE]" else _DONE
            for event in events
        ]

    def _learn(self, event: RawEvent, answer: TextDelta) -> None:
        self._failed_templates += 1
        self.trusted = False
        if self._failed_templates > MAX_FAILED_TEMPLATES:
            self._suspend()
            return
        data = event.data
        # The prefix and the suffix are joined once per event of a batch. With an image in them a batch would be huge.
        if len(data) > MAX_TEMPLATE_BYTES:
            return
        encoded = _encode(answer.text)
        at = data.find(encoded)
        # If the text occurs twice in the event, we cannot know which of them is the text. Tokens and usage differ from event
        # to event, so such an event has no template.
        unique = at >= 0 and data.find(encoded, at + 1) < 0
        if answer.tokens is not None or answer.usage is not None or not unique:
            self._prefix = b""
            return
        self._prefix, self._suffix = data[: at + 1], data[at + len(encoded) - 1 :]
        self.event_name, self._kind, self._choice = event.name, answer.kind, answer.choice
        self._sample = MIN_SAMPLE

    def _suspend(self) -> None:
        self._prefix = b""
        self.trusted = False
        self._failed_templates = 0
        self._pause = PAUSE_EVENTS


def _decode_strings(cut: Sequence[bytes]) -> list[str]:
    """Decode the leading parts that are the content of a non-empty JSON string."""
    if not cut:
        return []
    try:
        texts = _decode_string(b'"%b"' % b"\x7f".join(cut)).split(_SEPARATOR)
    except FAULTS:
        texts = []
    if len(texts) != len(cut):  # one of them is invalid, or contains the separator
        texts = []
        for part in cut:
            try:
                texts.append(_decode_string(b'"%b"' % part))
            except FAULTS:
                break
    return texts[: texts.index("")] if "" in texts else texts

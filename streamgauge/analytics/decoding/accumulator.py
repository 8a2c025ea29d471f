"""Accumulate decoded events: the event columns, and the running totals of one stream.

Keeps raw facts. `streamgauge.analytics.measures` computes the times between events. Rules, for every dialect:

- An event is output if any delta carries a character, audio or image data or a tool name. Its `kind` is its first output channel.
- A character that is split over two events counts in the second.
- A finish reason of "" is ignored, and the last one of a choice wins. The stream is finished when each choice seen has one.
- A finish reason that more output follows was no terminal. No finish reason of that stream proves its end then.
- A finish reason that means failure is an error of the stream.
- Ids, names and finish reasons obey `streamgauge.ingest.identifiers`.
- A usage report never replaces a number with NULL, nor a positive count with 0, except the cached input. Every report is kept.
- If every output event so far had a usage report, the tokens of an event are the difference to the previous report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamgauge.analytics.decoding import stream_output
from streamgauge.analytics.dialects.events import (
    OUTPUT_KINDS,
    ChoiceDelta,
    DecodedEvent,
    DeltaRun,
    ErrorReport,
    RawEvent,
    ServerStat,
    TextDelta,
    ToolCallDelta,
    Usage,
    finish_failed,
)
from streamgauge.analytics.dialects.tolerant_json import HALF, is_whole, join_halves
from streamgauge.ingest.identifiers import identifier, name

MAX_TOOL_CALLS = 10_000
MAX_REPORTS = 100_000
MAX_SERVER_STATS = 10_000


class StreamAccumulator:
    """Event columns and running totals of one stream, decoded by one reader. Times in ns from t0."""

    def __init__(self, *, keep_text: bool = False) -> None:
        self.keep_text = keep_text
        self.events = stream_output.EventColumns()
        self.output_start = stream_output.OutputStart()
        self.choices: dict[int, stream_output.Choice] = {}
        self.output_event_count = 0
        """Includes output without a row in `events`: a body that was not streamed, or an unterminated tail."""
        self.content_event_count = 0
        """Output events with readable content that was streamed."""
        self.response_id: str | None = None
        self.response_model: str | None = None
        self.provider: str | None = None
        self.finish_ns: int | None = None
        self.terminal_ns: int | None = None
        self.terminal_seq: int | None = None
        self.terminal_seen = False
        self.done_seen = False
        self.output_after_finish = False
        """A finish reason was followed by more output, and neither a terminal event nor `[DONE]` has confirmed the last one."""
        self.error: ErrorReport | None = None
        self.error_ns: int | None = None
        self.error_seq: int | None = None
        self.usage: Usage | None = None
        self.billing: dict[str, Any] = {}
        """Columns of `streams` that events state outside of usage reports. The last value counts, but no 0 after a positive one."""
        self.usage_reports: list[tuple[int, int | None, Usage]] = []
        self.server_stats: list[tuple[int, ServerStat]] = []
        self.audio = stream_output.Audio()
        self.text_chars = self.reasoning_chars = self.refusal_chars = 0
        self.tool_call_count = self.tool_call_chars = 0
        self.tool_failure_count = 0
        self.malformed_events = 0
        self._unfinished_choices = 0
        self._failed_finish: str | None = None
        self._first_halves: dict[tuple[int, str], str] = {}  # of characters, by choice and channel
        self._outputs_with_usage = 0

    def add_events(
        self, events: Sequence[RawEvent], decoded: Sequence[DecodedEvent | TextDelta | DeltaRun]
    ) -> None:
        """Add events and their decoded results, in the same order. A `DeltaRun` covers several events."""
        columns = self.events
        # Column by column: four list comprehensions take less time than four appends for each event.
        columns.read_seq += [e.read_seq for e in events]
        columns.at_ns += [e.at_ns for e in events]
        columns.event_name += [e.name for e in events]
        columns.bytes += [len(e.data) for e in events]
        alike: list[TextDelta] = []
        for answer in decoded:
            if type(answer) is TextDelta:
                if alike and (answer.kind != alike[0].kind or answer.choice != alike[0].choice):
                    self._add_text_deltas(alike)
                    alike = []
                alike.append(answer)
                continue
            if alike:
                self._add_text_deltas(alike)
                alike = []
            if isinstance(answer, DeltaRun):
                self._add_texts(answer.kind, answer.choice, answer.texts)
            elif isinstance(answer, DecodedEvent):
                self.add_event(answer, columns.at_ns[len(columns.kind)])
        if alike:
            self._add_text_deltas(alike)

    def add_run(
        self, run: DeltaRun, event_name: str, at_ns: Sequence[int], sizes: Sequence[int], first_read_seq: int
    ) -> None:
        """Add events of one name that arrived in one read each. `sizes` are in bytes; the reads count from `first_read_seq`."""
        columns = self.events
        count = len(at_ns)
        columns.read_seq += range(first_read_seq, first_read_seq + count)
        columns.at_ns += at_ns
        columns.event_name += [event_name] * count
        columns.bytes += sizes
        self._add_texts(run.kind, run.choice, run.texts)

    def add_event(self, event: DecodedEvent, at_ns: int | None, *, row: bool = True) -> str:
        """Add one decoded event; return its kind. `row=False`: it was never dispatched: its content counts, but has no row."""
        columns = self.events
        seq = len(columns.kind)
        channel, choice, chars, tokens, finish_reason = (
            self._add_deltas(event, at_ns, row=row) if event.deltas else (None, None, 0, None, None)
        )
        kind: str = channel or event.kind
        if channel is None and (kind == "other" or kind in OUTPUT_KINDS):
            # A kind of output was a claim of the dialect without a character that proves it.
            kind = "finish" if finish_reason is not None else "other"
        states_nothing = event.response_id is event.model is event.provider is None is event.billing
        if not (states_nothing and event.server_stats is None):
            self._add_facts(event, seq)
        if event.usage is not None:
            outputs = self.output_event_count if channel is not None else None
            difference = self._add_usage(event.usage, seq, at_ns, outputs)
            tokens = difference if tokens is None else tokens
        error = event.error
        if error is None and self._failed_finish is not None and self.error is None:
            error = ErrorReport(self._failed_finish)
        if error is not None:
            if channel is None:
                kind = "error"
            if self.error is None:
                self.error, self.error_ns, self.error_seq = error, at_ns, seq if row else None
                error.type = error.type or self._failed_finish
        if event.terminal or event.done_marker:
            self._add_terminal(event, seq, at_ns)
        if kind == "malformed":
            self.malformed_events += 1
        if event.tool_failure:
            self.tool_failure_count += 1
        if event.interruption:
            self.audio.interrupted_ns = at_ns
        if row:
            columns.kind.append(kind)
            columns.choice.append(choice)
            columns.chars.append(chars)
            columns.tokens.append(tokens)
            columns.finish_reason.append(finish_reason)
        return kind

    def _add_facts(self, event: DecodedEvent, seq: int) -> None:
        """Keep what few events state, beside output and usage."""
        if event.response_id and not self.response_id:
            self.response_id = identifier(event.response_id)
        if event.model and not self.response_model:
            self.response_model = name(event.model)
        if event.provider and not self.provider:
            self.provider = name(event.provider)
        for column, value in (event.billing or {}).items():
            if value or (value is not None and column not in self.billing):
                self.billing[column] = value
        for stat in event.server_stats or ():
            if len(self.server_stats) < MAX_SERVER_STATS:
                self.server_stats.append((seq, stat))

    def _add_text_deltas(self, deltas: Sequence[TextDelta]) -> None:
        """Add successive deltas of one kind and choice. It runs for all text that no template matches, so it adds them at once."""
        tokens = [delta.tokens for delta in deltas]
        usages = [delta.usage for delta in deltas]
        if usages.count(None) < len(usages):
            seq, count, at_ns = len(self.events), self.output_event_count, self.events.at_ns
            for number, usage in enumerate(usages):
                if usage is not None:
                    difference = self._add_usage(usage, seq + number, at_ns[seq + number], count + number + 1)
                    if tokens[number] is None:
                        tokens[number] = difference
        self._add_texts(deltas[0].kind, deltas[0].choice, [delta.text for delta in deltas], tokens)

    def _add_texts(
        self, kind: str, index: int, texts: Sequence[str], tokens: Sequence[int | None] | None = None
    ) -> None:
        """Add texts of one event each."""
        count = len(texts)
        joined = "".join(texts)
        # `isascii` reads a flag of the str. Halves of characters are rare, so the common text is not searched for them.
        if self._first_halves or not (joined.isascii() or is_whole(joined)):
            texts = [self._whole_characters(index, kind, text) for text in texts]
            joined = "".join(texts)
        columns = self.events
        columns.kind += [kind] * count
        columns.choice += [index] * count
        columns.chars += map(len, texts)
        columns.tokens += tokens or [None] * count
        columns.finish_reason += [None] * count
        choice = self._choice(index)
        if choice.finished:
            self._resume(choice)
        self.output_event_count += count
        self.content_event_count += count
        self._count_content(kind, joined, len(joined))
        if self.keep_text:
            channel = choice.text if kind == "text" else choice.reasoning
            for text in texts:
                channel.add(text)

    def _add_deltas(
        self, event: DecodedEvent, at_ns: int | None, *, row: bool
    ) -> tuple[str | None, int | None, int, int | None, str | None]:
        """(first output channel, its choice, characters, tokens, finish reason) of an event's deltas."""
        columns = self.events
        first_channel: str | None = None
        index: int | None = None
        chars = 0
        tokens: int | None = None
        finish_reason: str | None = None
        content = more_than_reasoning = False
        for delta in event.deltas or ():
            delta_chars, has_content, channel = self._add_delta(delta, at_ns)
            if delta.tokens is not None:
                tokens = (tokens or 0) + delta.tokens
            if channel is not None:
                if first_channel is None:
                    first_channel, index = channel, delta.choice
                elif delta.choice != index and row:
                    columns.more_choices.append((len(columns.kind), delta.choice))
                more_than_reasoning |= channel != "reasoning" or bool(delta.tool_calls)
                content |= has_content
            chars += delta_chars
            if finish_reason is None and delta.finish_reason:
                finish_reason = name(delta.finish_reason)
            if index is None:
                index = delta.choice
        if first_channel is not None:
            self.output_event_count += 1
            self.content_event_count += content and not event.not_streamed
            if row and first_channel == "reasoning" and more_than_reasoning:
                columns.more_than_reasoning.append(len(columns.kind))
        return first_channel, index, chars, tokens, finish_reason

    def _add_delta(self, delta: ChoiceDelta, at_ns: int | None) -> tuple[int, bool, str | None]:
        """(characters, whether there is readable content, output channel) of one delta."""
        choice = self._choice(delta.choice)
        chars = delta.audio_chars
        channel: str | None = "image" if delta.images else None
        if chars or delta.audio_data_chars:
            channel = "audio"
            if delta.audio_data_chars:
                self.audio.add(delta.audio_ns, at_ns)
        content = bool(chars)
        for call in delta.tool_calls or ():
            content |= bool(call.arguments)
            if call.arguments or call.name:
                channel = "tool_call"
            if arguments := call.arguments:
                # As in `_whole_characters`, without its call and its channel: most streams of tool calls consist of these.
                if self._first_halves or not arguments.isascii():
                    arguments = self._whole_characters(delta.choice, f"call {call.key}", arguments)
                    call.arguments = arguments
                chars += len(arguments)
                self.tool_call_chars += len(arguments)
            self._add_tool_call(choice, call, at_ns)
            if not call.server_side and (arguments := call.inserted_json + arguments):
                self.output_start.add_arguments(delta.choice, call.key, arguments)
        if delta.tool_plan:
            chars += len(delta.tool_plan)
            channel, content = "reasoning", True
        if delta.text or delta.reasoning or delta.refusal:
            for kind, text in (
                ("reasoning", delta.reasoning),
                ("refusal", delta.refusal),
                ("text", delta.text),
            ):
                if text:
                    whole = self._whole_characters(delta.choice, kind, text)
                    chars += len(whole)
                    channel, content = kind, True
                    if kind == "refusal":
                        self.refusal_chars += len(whole)
                    else:
                        self._count_content(kind, whole, len(whole))
                    if self.keep_text:
                        getattr(choice, kind).add(whole)
        if channel is not None and choice.finished:
            self._resume(choice)
        if delta.finish_reason:
            self._add_finish(choice, delta.finish_reason, at_ns)
        return chars, content, channel

    def _count_content(self, kind: str, text: str, size: int) -> None:
        """Count text or reasoning of `size` characters, and keep it while the start of the output is incomplete."""
        if kind == "text":
            if self.text_chars < stream_output.KEPT_CHARS:
                stream_output.add_part(self.output_start.text, text)
            self.text_chars += size
        else:
            if self.reasoning_chars < stream_output.KEPT_CHARS:
                stream_output.add_part(self.output_start.reasoning, text)
            self.reasoning_chars += size

    def _whole_characters(self, choice: int, channel: str, text: str) -> str:
        """The text after the half of a character that ended the previous event, without a half at its own end."""
        # Only the first and the last character can be a half, and comparing them takes less time than a search.
        if not self._first_halves and text[0] < HALF and text[-1] < HALF:
            return text
        whole, half = join_halves(self._first_halves.pop((choice, channel), "") + text)
        if half:
            self._first_halves[choice, channel] = half
        return whole

    def _choice(self, index: int) -> stream_output.Choice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = stream_output.Choice()
            self._unfinished_choices += 1
            # A further choice begins: the finish reasons of the others no longer end the stream.
            if not self.terminal_seen:
                self.terminal_ns = self.terminal_seq = None
        return choice

    def _add_finish(self, choice: stream_output.Choice, reason: str, at_ns: int | None) -> None:
        if not choice.finished:
            choice.finished = True
            self._unfinished_choices -= 1
            if self.finish_ns is None:
                self.finish_ns = at_ns
            if self._unfinished_choices == 0 and not self.terminal_seen:
                self.terminal_ns, self.terminal_seq = at_ns, len(self.events)
        choice.finish_reason = name(reason)
        if finish_failed(reason):
            self._failed_finish = reason

    def _resume(self, choice: stream_output.Choice) -> None:
        """Output follows the finish reason of this choice."""
        choice.finished = False
        self._unfinished_choices += 1
        if self._unfinished_choices == len(self.choices):
            self.finish_ns = None
        if not self.terminal_seen:
            self.terminal_ns = self.terminal_seq = None
            self.output_after_finish = True

    def _add_terminal(self, event: DecodedEvent, seq: int, at_ns: int | None) -> None:
        if event.terminal and not self.terminal_seen:
            self.terminal_seen = True
            self.output_after_finish = False
            if self.terminal_ns is None:
                self.terminal_ns, self.terminal_seq = at_ns, seq
        if event.done_marker and not self.done_seen:
            self.done_seen = True
            if self._unfinished_choices == 0:
                self.output_after_finish = False
            elif self.terminal_ns is None and self.finish_ns is not None and not self.output_after_finish:
                # Some gateways send the finish reason of one choice only; [DONE] then ends the others.
                self.terminal_ns, self.terminal_seq = at_ns, seq

    def _add_tool_call(self, choice: stream_output.Choice, delta: ToolCallDelta, at_ns: int | None) -> None:
        call = choice.tool_calls.get(delta.key)
        if call is None:
            if not (delta.id or delta.name or delta.arguments or delta.inserted_json):
                return
            self.tool_call_count += not delta.server_side
            if len(choice.tool_calls) >= MAX_TOOL_CALLS:
                return
            call = choice.tool_calls[delta.key] = stream_output.ToolCall(server_side=delta.server_side)
        call.add(delta, at_ns, keep_text=self.keep_text)

    def _add_usage(self, usage: Usage, seq: int, at_ns: int | None, outputs: int | None) -> int | None:
        """Keep the report. Return the tokens of this event if every output event so far had a report.

        `outputs`: the output events so far, if this is one.
        """
        old = self.usage
        before = old.output_tokens if old is not None else None
        self.usage = usage if old is None else _overlaid(old, usage)
        if len(self.usage_reports) < MAX_REPORTS:
            self.usage_reports.append((seq, at_ns, usage))
        else:
            # The last report is the one that counts, so it replaces the newest kept one.
            self.usage_reports[-1] = (seq, at_ns, usage)
        if outputs is None or usage.output_tokens is None:
            return None
        self._outputs_with_usage += 1
        # After an output event without a report, the difference would be the tokens of several events.
        if self._outputs_with_usage != outputs:
            return None
        tokens = usage.output_tokens - (before or 0)
        return tokens if tokens >= 0 else None

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of choice 0, else of the first choice that has one."""
        zero = self.choices.get(0)
        if zero is not None and zero.finish_reason:
            return zero.finish_reason
        return next((c.finish_reason for c in self.choices.values() if c.finish_reason), None)

    @property
    def first_choice(self) -> stream_output.Choice:
        """Choice 0, else the first seen, else an empty one."""
        return self.choices.get(0) or next(iter(self.choices.values()), None) or stream_output.Choice()


def _overlaid(old: Usage, new: Usage) -> Usage:
    """The new report, with numbers that it lacks taken from the old one. A zero is no number, except of cached tokens."""
    if (
        (new.input_tokens or old.input_tokens is None)
        and (new.output_tokens or old.output_tokens is None)
        and (new.reasoning_tokens or old.reasoning_tokens is None)
        and (new.cached_input_tokens is not None or old.cached_input_tokens is None)
        and (new.raw is not None or old.raw is None)
    ):
        return new
    return Usage(
        _newer(old.input_tokens, new.input_tokens),
        _newer(old.output_tokens, new.output_tokens),
        _newer(old.reasoning_tokens, new.reasoning_tokens),
        old.cached_input_tokens if new.cached_input_tokens is None else new.cached_input_tokens,
        old.raw if new.raw is None else new.raw,
    )


def _newer(old: int | None, new: int | None) -> int | None:
    return new or (new if old is None else old)

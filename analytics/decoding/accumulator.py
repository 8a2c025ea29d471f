"""Add up what a dialect says of each event: the event columns, and what the stream amounts to.

One `Tally` holds all that one reading of a stream found, so that a wrong first guess of the dialect is undone by making a
new one. Rules kept here, for every dialect alike:

- an event is output if any of its fragments carries a character (or a tool's name); its row's `kind` is its first channel;
- a finish reason of "" is none; the last one of a choice counts; a stream with several choices is over when each choice
  seen has finished;
- a usage report never turns a number back to nothing; every report is kept;
- where each output event so far came with a usage report, the differences are the tokens of the events.
"""

from __future__ import annotations

from collections.abc import Sequence

from analytics.decoding.choice import Choice, ToolCall
from analytics.decoding.sse import Event
from analytics.dialects.shape import (
    OUTPUT_KINDS,
    Delta,
    ErrorSeen,
    Fragment,
    Reading,
    Run,
    ServerStat,
    ToolFragment,
    Usage,
)

MAX_TOOL_CALLS = 10_000
MAX_REPORTS = 100_000
MAX_SERVER_STATS = 10_000


class EventColumns:
    """The rows of table `events`, column by column; all lists are equally long."""

    def __init__(self) -> None:
        self.read_seq: list[int] = []
        self.at_ns: list[int] = []
        self.kind: list[str] = []
        self.event_name: list[str] = []
        self.choice: list[int | None] = []
        self.chars: list[int] = []
        self.tokens: list[int | None] = []
        self.bytes: list[int] = []
        self.finish_reason: list[str | None] = []
        self.more_choices: list[tuple[int, int]] = []
        """(index of the event, choice) for the output of an event to choices beyond the one in `choice`."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def seq(self) -> range:
        return range(len(self.kind))


class Tally:
    """All that was found in one stream, read by one reader."""

    def __init__(self, *, keep_text: bool = False) -> None:
        self.keep_text = keep_text
        self.events = EventColumns()
        self.choices: dict[int, Choice] = {}
        self.first_event_ns: int | None = None
        self.first_output_ns: int | None = None
        self.first_nonreasoning_output_ns: int | None = None
        self.last_output_ns: int | None = None
        self.output_event_count = 0
        self.content_event_count = 0
        self.response_id: str | None = None
        self.response_model: str | None = None
        self.provider: str | None = None
        self.finish_ns: int | None = None
        self.terminal_ns: int | None = None
        self.terminal_seq: int | None = None
        self.terminal_seen = False
        self.done_seen = False
        self.error: ErrorSeen | None = None
        self.error_ns: int | None = None
        self.error_seq: int | None = None
        self.usage: Usage | None = None
        self.usage_reports: list[tuple[int, int | None, Usage]] = []
        self.server_stats: list[tuple[int, ServerStat]] = []
        self.text_chars = self.reasoning_chars = 0
        self.tool_call_count = 0
        self.tool_failure_count = 0
        self.malformed_events = 0
        self._unfinished = 0  # choices seen that have no finish reason yet
        self._outputs_with_usage = 0

    # -- adding --------------------------------------------------------------------------------------------------

    def add_events(self, events: Sequence[Event], answers: Sequence[Reading | Delta | Run]) -> None:
        """One answer for each event, in order; a `Run` answers several."""
        if not events:
            return
        columns = self.events
        if self.first_event_ns is None:
            self.first_event_ns = events[0].at_ns
        columns.read_seq += [e.read_seq for e in events]
        columns.at_ns += [e.at_ns for e in events]
        columns.event_name += [e.name for e in events]
        columns.bytes += [len(e.data) for e in events]
        at = 0
        for answer in answers:
            if isinstance(answer, Reading):
                self.add(answer, events[at].at_ns)
                at += 1
            elif isinstance(answer, Delta):
                self._add_delta(answer, events[at].at_ns)
                at += 1
            else:
                first, at = at, at + len(answer.pieces)
                self._add_pieces(answer, events[first].at_ns, events[at - 1].at_ns)

    def add_run(
        self, run: Run, name: str, at_ns: Sequence[int], sizes: Sequence[int], first_read_seq: int
    ) -> None:
        """Events of one name that came with one read each, from that read on: when, and of how many bytes."""
        columns = self.events
        if self.first_event_ns is None:
            self.first_event_ns = at_ns[0]
        count = len(at_ns)
        columns.read_seq += range(first_read_seq, first_read_seq + count)
        columns.at_ns += at_ns
        columns.event_name += [name] * count
        columns.bytes += sizes
        self._add_pieces(run, at_ns[0], at_ns[-1])

    def _add_delta(self, delta: Delta, at_ns: int) -> None:
        piece, index = delta.piece, delta.choice
        size = len(piece)
        columns = self.events
        choice = self.choices.get(index) or self._choice(index)
        self.output_event_count += 1
        self.content_event_count += 1
        tokens = delta.tokens
        if delta.usage is not None:
            difference = self._add_usage(delta.usage, len(columns.kind), at_ns, output=True)
            tokens = difference if tokens is None else tokens
        columns.kind.append(delta.kind)
        columns.choice.append(index)
        columns.chars.append(size)
        columns.tokens.append(tokens)
        columns.finish_reason.append(None)
        if delta.kind == "text":
            self.text_chars += size
            if self.keep_text:
                choice.text.add(piece)
            if self.first_nonreasoning_output_ns is None:
                self.first_nonreasoning_output_ns = at_ns
        else:
            self.reasoning_chars += size
            if self.keep_text:
                choice.reasoning.add(piece)
        if self.first_output_ns is None:
            self.first_output_ns = at_ns
        self.last_output_ns = at_ns

    def _add_pieces(self, run: Run, first_ns: int, last_ns: int) -> None:
        """Successive events of text or of reasoning."""
        kind, index, pieces = run.kind, run.choice, run.pieces
        count = len(pieces)
        sizes = list(map(len, pieces))
        columns = self.events
        columns.kind += [kind] * count
        columns.choice += [index] * count
        columns.chars += sizes
        columns.tokens += [None] * count
        columns.finish_reason += [None] * count
        choice = self._choice(index)
        self.output_event_count += count
        self.content_event_count += count
        if kind == "text":
            self.text_chars += sum(sizes)
            if self.first_nonreasoning_output_ns is None:
                self.first_nonreasoning_output_ns = first_ns
        else:
            self.reasoning_chars += sum(sizes)
        if self.keep_text:
            channel = choice.text if kind == "text" else choice.reasoning
            for piece in pieces:
                channel.add(piece)
        if self.first_output_ns is None:
            self.first_output_ns = first_ns
        self.last_output_ns = last_ns

    def add(self, reading: Reading, at_ns: int | None, *, row: bool = True) -> None:
        """One reading. Without `row` it was no dispatched event: it counts for what was said, not for when."""
        columns = self.events
        kind: str = reading.kind
        index: int | None = None
        chars = 0
        tokens: int | None = None
        finish_reason: str | None = None
        output = content = spoken = False
        for fragment in reading.fragments or ():
            made, has_content, channel = self._add_fragment(fragment, at_ns)
            if fragment.tokens is not None:
                tokens = (tokens or 0) + fragment.tokens
            if channel is not None:
                if not output:
                    kind, index, output = channel, fragment.choice, True
                elif fragment.choice != index and row:
                    columns.more_choices.append((len(columns.kind), fragment.choice))
                spoken |= channel != "reasoning" or bool(fragment.text or fragment.refusal or fragment.tools)
                content |= has_content
            chars += made
            finish_reason = finish_reason or fragment.finish_reason or None
            if index is None:
                index = fragment.choice
        if output:
            self.output_event_count += 1
            self.content_event_count += content and not reading.late
            if row and at_ns is not None:
                self.last_output_ns = at_ns
                if self.first_output_ns is None:
                    self.first_output_ns = at_ns
                if spoken and self.first_nonreasoning_output_ns is None:
                    self.first_nonreasoning_output_ns = at_ns
        elif kind in OUTPUT_KINDS:
            kind = "other"
        if reading.response_id and not self.response_id:
            self.response_id = reading.response_id
        if reading.model and not self.response_model:
            self.response_model = reading.model
        if reading.provider and not self.provider:
            self.provider = reading.provider
        seq = len(columns.kind)
        if reading.usage is not None:
            difference = self._add_usage(reading.usage, seq, at_ns, output=output)
            tokens = difference if tokens is None else tokens
        if reading.error is not None:
            if not output:
                kind = "error"
            if self.error is None:
                self.error, self.error_ns, self.error_seq = reading.error, at_ns, seq if row else None
        if reading.terminal and not self.terminal_seen:
            self.terminal_seen = True
            if self.terminal_ns is None:
                self.terminal_ns, self.terminal_seq = at_ns, seq
        if reading.done and not self.done_seen:
            self.done_seen = True
            if self.terminal_ns is None and self.finish_ns is not None:
                # Some gateways drop the finish reasons of all choices but one: with one of them, [DONE] is not alone.
                self.terminal_ns, self.terminal_seq = at_ns, seq
        if kind == "malformed":
            self.malformed_events += 1
        self.tool_failure_count += reading.tool_failure
        for stat in reading.server_stats or ():
            if len(self.server_stats) < MAX_SERVER_STATS:
                self.server_stats.append((seq, stat))
        if row:
            columns.kind.append(kind)
            columns.choice.append(index)
            columns.chars.append(chars)
            columns.tokens.append(tokens)
            columns.finish_reason.append(finish_reason)

    def _choice(self, index: int) -> Choice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = Choice()
            self._unfinished += 1
            if not self.terminal_seen:
                self.terminal_ns = self.terminal_seq = None
        return choice

    def _add_fragment(self, fragment: Fragment, at_ns: int | None) -> tuple[int, bool, str | None]:
        """(characters made, whether generated content, first output channel)."""
        choice = self._choice(fragment.choice)
        made = fragment.audio_chars
        channel: str | None = "audio" if made or fragment.audio_data_chars else None
        content = bool(made)
        if fragment.tools:
            for piece in fragment.tools:
                made += len(piece.arguments)
                content |= bool(piece.arguments)
                if piece.arguments or piece.name:
                    channel = "tool_call"
                self._add_tool(choice, piece, at_ns)
        if fragment.plan:
            made += len(fragment.plan)
            channel, content = "reasoning", True
        if fragment.reasoning:
            made += len(fragment.reasoning)
            self.reasoning_chars += len(fragment.reasoning)
            channel, content = "reasoning", True
            if self.keep_text:
                choice.reasoning.add(fragment.reasoning)
        if fragment.refusal:
            made += len(fragment.refusal)
            channel, content = "refusal", True
            if self.keep_text:
                choice.refusal.add(fragment.refusal)
        if fragment.text:
            made += len(fragment.text)
            self.text_chars += len(fragment.text)
            channel, content = "text", True
            if self.keep_text:
                choice.text.add(fragment.text)
        if fragment.finish_reason:
            if choice.finish_reason is None:
                self._unfinished -= 1
                if self.finish_ns is None:
                    self.finish_ns = at_ns
                if self._unfinished == 0 and not self.terminal_seen:
                    self.terminal_ns, self.terminal_seq = at_ns, len(self.events)
            choice.finish_reason = fragment.finish_reason
        return made, content, channel

    def _add_tool(self, choice: Choice, piece: ToolFragment, at_ns: int | None) -> None:
        tool = choice.tools.get(piece.key)
        if tool is None:
            if not (piece.id or piece.name or piece.arguments or piece.joint):
                return
            self.tool_call_count += not piece.server
            if len(choice.tools) >= MAX_TOOL_CALLS:
                return
            tool = choice.tools[piece.key] = ToolCall()
            tool.server = piece.server
        tool.see(piece, at_ns)
        if self.keep_text:
            tool.add(piece)

    def _add_usage(self, usage: Usage, seq: int, at_ns: int | None, *, output: bool) -> int | None:
        """Keep the report. The tokens of this event, where the reports so far are continuous."""
        old = self.usage
        before = old.output_tokens if old is not None else None
        self.usage = usage if old is None else _overlaid(old, usage)
        if len(self.usage_reports) < MAX_REPORTS:
            self.usage_reports.append((seq, at_ns, usage))
        else:
            self.usage_reports[-1] = (seq, at_ns, usage)
        if not output or usage.output_tokens is None:
            return None
        self._outputs_with_usage += 1
        if self._outputs_with_usage != self.output_event_count:
            return None
        tokens = usage.output_tokens - (before or 0)
        return tokens if tokens >= 0 else None

    # -- what it amounts to ----------------------------------------------------------------------------------------

    @property
    def finish_reason(self) -> str | None:
        """Of choice 0, else the first that was seen."""
        zero = self.choices.get(0)
        if zero is not None and zero.finish_reason:
            return zero.finish_reason
        return next((c.finish_reason for c in self.choices.values() if c.finish_reason), None)

    @property
    def first_choice(self) -> Choice:
        """Choice 0, else the first seen, else an empty one."""
        return self.choices.get(0) or next(iter(self.choices.values()), None) or Choice()


def _overlaid(old: Usage, new: Usage) -> Usage:
    """The new report, with the old one's numbers where it says nothing."""
    given, made, reasoning, cached = (
        new.input_tokens, new.output_tokens, new.reasoning_tokens, new.cached_input_tokens
    )  # fmt: skip
    if (
        (given is not None or old.input_tokens is None)
        and (made is not None or old.output_tokens is None)
        and (reasoning is not None or old.reasoning_tokens is None)
        and (cached is not None or old.cached_input_tokens is None)
        and (new.raw is not None or old.raw is None)
    ):
        return new
    return Usage(
        old.input_tokens if given is None else given,
        old.output_tokens if made is None else made,
        old.reasoning_tokens if reasoning is None else reasoning,
        old.cached_input_tokens if cached is None else cached,
        old.raw if new.raw is None else new.raw,
    )

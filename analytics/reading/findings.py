"""What was found in a stream, under the names that measuring and reading use: a view on the `Tally` of the moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from analytics.dialects.shape import OUTPUT_KINDS, ErrorSeen, Usage
from analytics.reading.choice import ToolCall
from analytics.reading.tally import EventColumns, Tally


class Findings:
    """Times in ns from t0; None: not seen (yet)."""

    _tally: Tally

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
    def usage_reports(self) -> list[tuple[int, int | None, Usage]]:
        """(seq of the event, its time, the report)."""
        return self._tally.usage_reports

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
    def tool_times(self) -> list[ToolCall]:
        """Every tool call of every choice that a dated event began, by its beginning."""
        calls = [c for choice in self._tally.choices.values() for c in choice.tools.values()]
        return sorted((c for c in calls if c.began_ns is not None), key=lambda c: c.began_ns or 0)

    @property
    def finish_reasons(self) -> list[str]:
        """The finish reason of each choice that has one, by the choice's index."""
        choices = self._tally.choices
        return [reason for index in sorted(choices) if (reason := choices[index].finish_reason)]

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


def _tool_calls(calls: Iterable[ToolCall]) -> list[dict[str, str]]:
    return [
        {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls if not call.server
    ]

"""What was found in a stream, under the names that measuring and reading use: a view on the `Tally` of the moment."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from analytics.decoding.accumulator import EventColumns, Tally
from analytics.decoding.choice import ToolCall
from analytics.dialects.shape import ErrorSeen, Usage


def _told(name: str) -> Any:
    """What the tally says under this name."""
    return property(attrgetter(f"_tally.{name}"))


class Findings:
    """Times in ns from t0; None: not seen (yet)."""

    _tally: Tally

    events: EventColumns = _told("events")
    output_event_count: int = _told("output_event_count")
    content_event_count: int = _told("content_event_count")
    first_event_ns: int | None = _told("first_event_ns")
    first_output_ns: int | None = _told("first_output_ns")
    first_nonreasoning_output_ns: int | None = _told("first_nonreasoning_output_ns")
    last_output_ns: int | None = _told("last_output_ns")
    response_id: str | None = _told("response_id")
    response_model: str | None = _told("response_model")
    finish_reason: str | None = _told("finish_reason")
    finish_ns: int | None = _told("finish_ns")
    """When the first choice finished."""
    terminal_ns: int | None = _told("terminal_ns")
    """The semantic terminal: every choice seen has finished, or a terminal event came."""
    terminal_seq: int | None = _told("terminal_seq")
    done_seen: bool = _told("done_seen")
    error: ErrorSeen | None = _told("error")
    error_ns: int | None = _told("error_ns")
    error_seq: int | None = _told("error_seq")
    usage: Usage | None = _told("usage")
    usage_reports: list[tuple[int, int | None, Usage]] = _told("usage_reports")
    """(seq of the event, its time, the report)."""
    text_chars: int = _told("text_chars")
    reasoning_chars: int = _told("reasoning_chars")
    tool_call_count: int = _told("tool_call_count")
    tool_failure_count: int = _told("tool_failure_count")

    @property
    def event_count(self) -> int:
        return len(self._tally.events)

    @property
    def last_event_ns(self) -> int | None:
        at_ns = self._tally.events.at_ns
        return at_ns[-1] if at_ns else None

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
    def reasoning_seen(self) -> bool:
        return self._tally.reasoning_chars > 0


def _tool_calls(calls: Iterable[ToolCall]) -> list[dict[str, str]]:
    return [
        {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls if not call.server
    ]

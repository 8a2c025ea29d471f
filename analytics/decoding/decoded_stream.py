"""The results of decoding a stream, as `streamgauge.analytics.measures`, telemetry and `streamgauge read` use them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from streamgauge.analytics.decoded.event_columns import EventColumns
from streamgauge.analytics.decoded.reports import ErrorReport, Usage
from streamgauge.analytics.decoding.accumulator import StreamAccumulator
from streamgauge.analytics.decoding.output_start import OutputStart
from streamgauge.analytics.decoding.response_choice import ToolCall


def _from_accumulator(name: str) -> Any:
    """Read the attribute of this name from the accumulator."""
    return property(attrgetter(f"_accumulator.{name}"))


def _text_of_first_choice(channel: str) -> Any:
    return property(lambda stream: str(getattr(stream._accumulator.first_choice, channel)))


class DecodedStream:
    """A view of the current `StreamAccumulator`, which is replaced when another dialect is selected.

    Times in ns from t0; None = not seen so far.
    """

    _accumulator: StreamAccumulator

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
    text_chars: int = _from_accumulator("text_chars")
    reasoning_chars: int = _from_accumulator("reasoning_chars")
    tool_call_count: int = _from_accumulator("tool_call_count")
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
    def finish_reasons(self) -> list[str]:
        """The finish reasons of all choices, by index."""
        choices = self._accumulator.choices
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
                "tool_calls": _tool_calls(choice.tool_calls.values()),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in sorted(self._accumulator.choices.items())
        ]

    @property
    def choice_count(self) -> int:
        return len(self._accumulator.choices)

    @property
    def reasoning_seen(self) -> bool:
        return self._accumulator.reasoning_chars > 0


def _tool_calls(calls: Iterable[ToolCall]) -> list[dict[str, str]]:
    return [
        {"id": call.id, "name": call.name, "arguments": call.arguments}
        for call in calls
        if not call.server_side
    ]

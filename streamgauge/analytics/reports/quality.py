"""Measures of what a model answers: cut or short answers, refusals, empty answers and broken tool calls. SQL over `streams`.

Failures and client aborts are no answers: only streams that ended `ok` are known, except to `tool_failure`. Readers that compare
TTFT do so among streams of one `INPUT_CLASS`, because a longer prompt takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamgauge.analytics.schema.dimensions import GENERATES
from streamgauge.analytics.schema.finish_reasons import FILTER, FINISH, LENGTH
from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR, OK


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of a stream. The group's value is a share of streams, or a statistic of numbers above 0."""

    name: str
    label: str
    unit: Literal["share", "tokens", "characters"]
    known: str
    """SQL condition of the streams that have the measure."""
    value: str
    """SQL of the value: a condition if the unit is `share`."""
    direction: Literal[1, -1, 0]
    """1: larger values are worse, -1: smaller values are worse, 0: neither is."""


IS_ANSWER = f"outcome = '{OK}' AND {GENERATES}"
"""SQL condition of a complete answer of a model."""
INPUT_RATIO = 1.25
"""Input lengths of one class differ by at most this factor."""
UNCACHED_INPUT = (
    "CASE WHEN input_tokens IS NOT NULL THEN greatest(input_tokens - coalesce(cached_input_tokens, 0), 1) END"
)
INPUT_CLASS = f"floor(ln({UNCACHED_INPUT}) / ln({INPUT_RATIO}))::INTEGER"
"""SQL of the uncached input tokens of a stream, which prefill computes, and of their class. NULL: unknown."""
WITH_TOOLS = "tool_call_count > 0"

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            name="length", label="Cut at the token limit", unit="share", direction=1,
            known=f"{IS_ANSWER} AND finish_reason IS NOT NULL", value=f"{FINISH} = '{LENGTH}'",
        ),
        Measure(
            name="output_tokens", label="Output tokens", unit="tokens", direction=-1,
            known=f"{IS_ANSWER} AND output_tokens > 0", value="output_tokens",
        ),
        Measure(
            name="output_chars", label="Output characters", unit="characters", direction=-1,
            known=f"{IS_ANSWER} AND text_chars + reasoning_chars > 0", value="text_chars + reasoning_chars",
        ),
        Measure(
            name="refusal", label="Refusals", unit="share", direction=1,
            known=IS_ANSWER, value=f"coalesce(refusal_chars > 0, FALSE) OR coalesce({FINISH} = '{FILTER}', FALSE)",
        ),
        Measure(
            name="empty", label="Empty answers", unit="share", direction=1,
            known=f"{IS_ANSWER} AND output_event_count IS NOT NULL AND dialect <> 'unknown'",
            value="if(streamed, ttfo_ns IS NULL, output_event_count = 0)",
        ),
        Measure(
            name="tool_calls", label="Answers with a tool call", unit="share", direction=0,
            known=f"{IS_ANSWER} AND tool_call_count IS NOT NULL", value=WITH_TOOLS,
        ),
        Measure(
            name="tool_arguments", label="Malformed tool arguments", unit="share", direction=1,
            known=f"{WITH_TOOLS} AND malformed_tool_call_count IS NOT NULL", value="malformed_tool_call_count > 0",
        ),
        Measure(
            name="tool_failure", label="Failures with a tool call", unit="share", direction=1,
            known=f"{WITH_TOOLS} AND {IS_COUNTED}", value=f"{IS_ERROR} OR tool_failure_count > 0",
        ),
    )
}  # fmt: skip
"""By name, in the order in which they are shown. `output_chars` replaces `output_tokens` where no usage is reported."""
COLUMNS = (
    "outcome", "operation", "dialect", "streamed", "finish_reason", "output_tokens", "text_chars", "reasoning_chars", "refusal_chars",
    "output_event_count", "ttfo_ns", "tool_call_count", "malformed_tool_call_count", "tool_failure_count", "input_tokens",
    "cached_input_tokens",
)  # fmt: skip
"""Columns of `streams` that the SQL of this module reads."""


def is_affected(name: str) -> str:
    """SQL condition: the stream has a measure that is a condition, and it holds."""
    return f"({MEASURES[name].known}) AND ({MEASURES[name].value})"

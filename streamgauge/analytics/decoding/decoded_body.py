"""What the decoder found in one response body: a value, made when the body has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec

from streamgauge.analytics.decoding.dialect_selection import UNKNOWN
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.decoding.stream_output import Audio, EventColumns, OutputStart, ToolCall
from streamgauge.analytics.dialects.events import OUTPUT_KINDS, ErrorReport, ServerStat, Usage
from streamgauge.analytics.schema.stream_columns import DECODED, read_from


class DecodedBody(msgspec.Struct, frozen=True):
    """A decoded response body. Times in ns from t0; None means not seen.

    The fields have the names and meanings of the attributes of `StreamDecoder`, which holds all state of decoding and ends with it.
    """

    columns: Mapping[str, Any] = {}
    """The columns of `streams` with the hint `DECODED`."""
    violations: Mapping[bool, list[str] | None] = {}
    """By whether the stream ended by itself: see `StreamDecoder.violations`."""
    first_output_ns: int | None = None
    dialect: str = UNKNOWN
    provider: str | None = None
    operation: str | None = None
    streamed: bool = True
    open_ended: bool = False
    response_id: str | None = None
    response_model: str | None = None
    first_byte_ns: int | None = None
    terminal_ns: int | None = None
    terminal_seq: int | None = None
    """Number of the terminal event if known. It orders the terminal and an error of the same read."""
    error: ErrorReport | None = None
    error_ns: int | None = None
    error_seq: int | None = None
    output_after_finish: bool = False
    """`terminal_ns` is that of a finish reason, and output followed an earlier one."""
    stream_is_missing: bool = False
    malformed_events: int = 0
    events: EventColumns = msgspec.field(default_factory=EventColumns)
    audio: Audio = msgspec.field(default_factory=Audio)
    output_start: OutputStart = msgspec.field(default_factory=OutputStart)
    text: str = ""
    reasoning: str = ""
    choices: Sequence[Mapping[str, Any]] = ()
    tool_times: Sequence[ToolCall] = ()
    usage: Usage | None = None
    counted_usage: Usage | None = None
    usage_reports: Sequence[tuple[int, int | None, Usage]] = ()
    usage_denies_input: bool = False
    usage_denies_output: bool = False
    usage_is_final: bool = False
    billing: Mapping[str, Any] = {}
    server_stats: Sequence[tuple[int | None, ServerStat]] = ()


_DECODED, _columns_of = read_from(StreamDecoder, DECODED)
_fields_of = attrgetter(*DecodedBody.__struct_fields__[3:])


def body_of(decoder: StreamDecoder) -> DecodedBody:
    """What a decoder found so far."""
    at_end = decoder.violations(ended=True)
    # Most streams break no rule, and then none if they are cut.
    violations = {True: at_end, False: at_end and decoder.violations(ended=False)}
    columns = dict(zip(_DECODED, _columns_of(decoder), strict=True))
    return DecodedBody(columns, violations, first_output_ns(decoder.events), *_fields_of(decoder))


def first_output_ns(events: EventColumns) -> int | None:
    """Time of the first output event of any kind (ttft)."""
    # `map` and `compress` run in C: a stream has thousands of events, and this is called for each stream and each observation.
    return next(compress(events.at_ns, map(OUTPUT_KINDS.__contains__, events.kind)), None)

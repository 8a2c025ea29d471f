"""The types of the tables' columns as polars has them, in the order of schema.sql, and data frames made with them.

A frame made here goes into DuckDB column by column without a cast that could surprise: `stream_id` is text that DuckDB reads as
a UUID, instants are microseconds in UTC. A test holds these against schema.sql.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

Columns = dict[str, pl.DataType]

_TEXT, _INT, _INTEGER, _SMALL = pl.String(), pl.Int64(), pl.Int32(), pl.Int16()
_FLOAT, _DOUBLE = pl.Float32(), pl.Float64()
_FLAG, _INSTANT = pl.Boolean(), pl.Datetime("us", "UTC")


def _columns(*groups: tuple[pl.DataType, str]) -> Columns:
    return {name: kind for kind, names in groups for name in names.split()}


STREAMS = _columns(
    (_TEXT, "stream_id gateway tap client_id worker provider dialect operation method path"),
    (_TEXT, "request_model response_model response_id request_id trace_id span_id parent_span_id"),
    (_INSTANT, "started_at"),
    (_SMALL, "http_status"),
    (_FLAG, "streamed"),
    (_TEXT, "outcome error_type error_phase error_message finish_reason"),
    (_INT, "client_start_ns connected_ns request_sent_ns headers_ns"),
    (_INT, "ttfb_ns ttfc_ns ttft_ns ttfo_ns ttst_ns last_output_ns terminator_ns end_ns"),
    (_INT, "input_tokens output_tokens reasoning_tokens cached_input_tokens"),
    (_TEXT, "token_source"),
    (_DOUBLE, "itl_ns icl_p50_ns icl_p95_ns icl_p99_ns"),
    (_INT, "icl_max_ns"),
    (_INTEGER, "stall_count"),
    (_INT, "stalled_ns"),
    (_DOUBLE, "tps_user tps_e2e burstiness"),
    (_INT, "event_count output_event_count text_chars reasoning_chars"),
    (_INTEGER, "tool_call_count"),
    (_INT, "comment_count response_bytes malformed_events lost_bytes delivered_bytes client_drain_ns"),
    (_FLAG, "aborted_after_terminal"),
    (_TEXT, "server_address"),
    (_INTEGER, "server_port"),
    (_SMALL, "trace_flags"),
    (_INT, "request_bytes"),
    (_INTEGER, "choice_count"),
    (_FLAG, "unterminated_tail"),
    (_INTEGER, "tool_failure_count"),
    (_TEXT, "output_text reasoning_text request_headers response_headers"),
)

EVENTS = _columns(
    (_TEXT, "stream_id"),
    (_INTEGER, "seq read_seq"),
    (_INT, "at_ns"),
    (_TEXT, "kind event_name"),
    (_SMALL, "choice"),
    (_INTEGER, "chars tokens bytes"),
    (_TEXT, "finish_reason"),
)

OPEN_STREAMS = _columns(
    (_TEXT, "stream_id gateway tap client_id dialect operation path request_model response_model trace_id"),
    (_INSTANT, "started_at"),
    (_SMALL, "http_status"),
    (
        _INT,
        "ttft_ns last_event_ns last_output_ns event_count output_event_count output_tokens response_bytes",
    ),
    (_INSTANT, "updated_at"),
)

USAGE_REPORTS = _columns(
    (_TEXT, "stream_id"),
    (_INTEGER, "seq"),
    (_INT, "at_ns input_tokens output_tokens reasoning_tokens cached_input_tokens"),
    (_TEXT, "raw"),
)

SERVER_STATS = _columns(
    (_TEXT, "stream_id"),
    (_INTEGER, "seq"),
    (_TEXT, "source name"),
    (_DOUBLE, "value"),
    (_TEXT, "unit raw"),
)

LOSSES = _columns(
    (_TEXT, "stream_id tap partition"),
    (_INT, "first_seq last_seq"),
    (_TEXT, "cause"),
    (_INT, "bytes"),
    (_INSTANT, "lost_at"),
)

LOG_POSITIONS = _columns(
    (_TEXT, "log_id partition"),
    (_INT, "high low"),
    (pl.List(_TEXT), "open_stream_ids"),
    (_TEXT, "owner"),
    (_INT, "version"),
    (_INSTANT, "updated_at"),
)

TAPS = _columns(
    (_TEXT, "tap"),
    (_INTEGER, "tap_worker"),
    (_TEXT, "incarnation"),
    (_INSTANT, "started_at last_alive_at"),
    (_FLAG, "stopped"),
    (_TEXT, "counters"),
)

SPANS = _columns(
    (_TEXT, "trace_id span_id parent_span_id stream_id name kind"),
    (_INSTANT, "started_at"),
    (_INT, "start_ns duration_ns"),
    (_TEXT, "status status_message attributes events"),
)


STREAM_MINUTES = _columns(
    (_INSTANT, "minute"),
    (_TEXT, "gateway provider model dialect operation outcome error_phase error_type"),
    (_SMALL, "http_status"),
    (_FLAG, "settled"),
    (_INT, "streams streams_with_output streams_with_output_tokens aborted_after_terminal"),
    (_INT, "streams_with_stalls_known stalled_streams stalls stalled_ns output_ns icl_max_ns"),
    (_INT, "input_tokens cached_input_tokens input_tokens_with_cache_known"),
    (_INT, "output_tokens reasoning_tokens output_tokens_with_reasoning_known"),
    (_INT, "events output_events text_chars reasoning_chars tool_calls malformed_events"),
    (_INT, "request_bytes response_bytes delivered_bytes lost_bytes"),
    (_INSTANT, "first_at last_at"),
)

HISTOGRAM_MINUTES = _columns(
    (_INSTANT, "minute"),
    (_TEXT, "gateway provider model metric"),
    (_FLAG, "settled"),
    (_INT, "n"),
    (_FLOAT, "total p50 p95 p99"),
    (pl.List(_SMALL), "buckets"),
    (pl.List(_INTEGER), "counts"),
)

STALLS = _columns(
    (_TEXT, "stream_id"),
    (_INSTANT, "started_at"),
    (_TEXT, "gateway provider model worker"),
    (_INTEGER, "seq"),
    (_SMALL, "choice"),
    (_INT, "from_ns until_ns gap_ns"),
)


def frame(columns: Columns, values: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """A data frame of exactly those columns. Instants are given as microseconds since the epoch."""
    return pl.DataFrame(
        [
            pl.Series(name, values[name], pl.Int64, strict=False).cast(kind)
            if isinstance(kind, pl.Datetime)
            else pl.Series(name, values[name], kind, strict=True)
            for name, kind in columns.items()
        ]
    )


def frame_of_rows(columns: Columns, rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """As `frame`, of rows whose values are in the columns' order."""
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    return frame(columns, dict(zip(columns, values, strict=True)))

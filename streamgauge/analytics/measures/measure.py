"""Measure finished streams: rows of `streams`, `events`, `usage_reports` and `server_stats`. No I/O, no clock.

docs/explanation/measurement.md has the definitions. Rules of this file:

- Unknown values are NULL, never 0. A stream with missing records (`tap_lost`) is not measured: its row has its identity and the
  transport's counts, and only events before the first gap are stored. If part of the body is not recorded by rule, only the
  first times (ttfb, ttfc, ttft, ttfo, ttst) are kept, because later data cannot change them. A stream of a file without times
  (`Opened.times`) has no latencies.
- N, the token count of the rates, is `output_tokens`, minus reasoning tokens that were reported but never seen in the response.
  It is NULL if the last usage report is older than the last output and the stream did not end `ok`: the report is then partial.
- Non-numeric server statistics are reduced to known words (`streamgauge.ingest.redaction`) unless content is captured.
- token_source: `usage` as reported; `usage_delta`, a running count of output of a stream that never finished; `chunks`, every
  output event lists its tokens (logprobs, token_ids) and no usage counts them; `reported_zero`, a report of 0 that contradicts
  the output or the prompt, so that `output_tokens` or `input_tokens` is NULL; `usage_inconsistent`, a report that contradicts
  itself. Chunks themselves are never counted as tokens.
- Tier, speed and region: what the response states, else what the request asks for. The number of searches: what the usage
  report counts, else the searches in the response.
- Numbers that do not fit their column are NULL, and counted (`counters`).

Rows are built column by column over the whole batch, which is fast for one stream and for a million events.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, cast

import msgspec
import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.decoding.stream_output import EventColumns
from streamgauge.analytics.dialects.error_bodies import retry_delay_in
from streamgauge.analytics.dialects.events import ServerStat, Usage
from streamgauge.analytics.dialects.usage import details_in, faults_in, hidden_output, term
from streamgauge.analytics.measures import stream_latency
from streamgauge.analytics.measures.dead_letters import DeadLetters
from streamgauge.analytics.measures.fingerprints import fingerprints, malformed_tool_calls
from streamgauge.analytics.measures.headers import (
    client_app_of,
    request_id_of,
    server_instance_of,
    stored_headers,
)
from streamgauge.analytics.measures.operation import is_side_call, is_web, operation_of, transport_of
from streamgauge.analytics.measures.outcome import LOST, Verdict, verdict_of
from streamgauge.analytics.measures.rate_limits import columns_of, limits_in_headers, limits_in_stats
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.measures.waits import split_stream
from streamgauge.analytics.schema.dimensions import NO_REQUESTS, SIDE_CALL, WARM_UP, WEB, WEBSOCKET
from streamgauge.analytics.schema.finish_reasons import INTERRUPTED
from streamgauge.analytics.schema.frames import frame, frame_of_rows, polars_types, series
from streamgauge.analytics.schema.objectives import Objectives
from streamgauge.analytics.schema.outcomes import OK
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.schema.stream_columns import (
    CHUNKS,
    CLOSED,
    EXCHANGE,
    OPENED,
    READS,
    StreamRow,
    read_from,
    with_hint,
)
from streamgauge.analytics.schema.tables import (
    COUNTER_PARTS,
    EVENTS,
    OUTPUT_WAITS,
    SERVER_STATS,
    STREAMS,
    USAGE_REPORTS,
)
from streamgauge.ingest import identifiers
from streamgauge.ingest.labels import Label, labels_of
from streamgauge.ingest.records import Closed, Opened, Times
from streamgauge.ingest.redaction.body_redactor import numbers_only

_MAX_COUNT = 2**62
_ALWAYS_SEARCHES = re.compile(r"-search-(preview|api)\b")
"""Models of OpenAI's chat completions that search the web once for each answer, which no member of it counts."""
_DEFAULT_STALL = StallLimit()
_DEFAULT_OBJECTIVES = Objectives()
_encode_lines = msgspec.json.Encoder().encode_lines
_EMPTY_ROW = cast("StreamRow", dict.fromkeys(STREAMS.types))
_in_order = itemgetter(*STREAMS.types)
_OPENED, _of_opened = read_from(Opened, OPENED)
_CLOSED, _of_closed = read_from(Closed, CLOSED)
_CHUNKS, _of_chunks = read_from(stream_latency.ChunkLatencies, CHUNKS)
_UNKNOWN: dict[Times, tuple[str, ...]] = {
    "reads": (),
    "exchange": with_hint(READS, CHUNKS),
    "none": with_hint(READS, CHUNKS, EXCHANGE),
}
"""Columns without a value, by what is timed."""


def measure(
    finished: Sequence[FinishedStream],
    stall: StallLimit = _DEFAULT_STALL,
    fingerprint_key: bytes = b"",
    objectives: Objectives = _DEFAULT_OBJECTIVES,
    sessions: Sessions | None = None,
    labels: Sequence[Label] = (),
    prompts: SessionPrompts | None = None,
) -> dict[str, pl.DataFrame]:
    """The rows of finished streams by table, with the columns and types of schema.sql.

    Counters, if there are any: `usage_inconsistent.DIALECT.MEMBER` and `out_of_range.TABLE.COLUMN`.
    """
    counters = Counter[str]()
    if not finished:
        return {table: rows.clear() for table, rows in _EMPTY.items()}
    rows = [_row(stream, stall, fingerprint_key, counters) for stream in finished]
    (sessions or Sessions()).add_to(rows, finished)
    of_prompts = (prompts or SessionPrompts()).add_to(rows, finished, counters)
    if labels:
        for row, stream in zip(rows, finished, strict=True):
            row["labels"] = labels_of(labels, stream.opened, stream.conversation, row["client_app"])
    for row in rows:
        if row["operation"] not in NO_REQUESTS:
            _add_objective(row, objectives)
        assert len(row) == len(_EMPTY_ROW), f"unknown columns: {row.keys() - _EMPTY_ROW.keys()}"
    tables = {
        "streams": frame(
            STREAMS,
            dict(zip(STREAMS.types, zip(*map(_in_order, rows), strict=True), strict=True)),
            counters=counters,
        ),
        "events": event_frame(finished, counters),
        "usage_reports": _usage_reports(finished, counters),
        "server_stats": _server_stats(finished),
        "output_waits": _output_waits(finished),
        **of_prompts,
    }
    return tables | (
        {COUNTER_PARTS.name: frame_of_rows(COUNTER_PARTS, list(counters.items()))} if counters else {}
    )


def _row(
    stream: FinishedStream, stall: StallLimit, fingerprint_key: bytes, counters: Counter[str]
) -> StreamRow:
    verdict = verdict_of(stream)
    # Copying a dict with all columns and reading it with one `itemgetter` takes less time than a class with a field for each.
    row = _EMPTY_ROW.copy()
    row["stream_id"] = stream.stream_id
    row["started_at"] = stream.started_wall_ns // 1000
    row["lost_bytes"] = stream.lost_bytes
    row["request_model"] = stream.request.model
    _add_opened(row, stream)
    _add_transport(row, stream)
    _add_limits(row, stream)
    _add_verdict(row, verdict)
    body = stream.body
    if body is not None:
        events = body.events
        chunks = stream_latency.NO_OUTPUT
        if events:
            chunks = stream_latency.chunk_latencies(
                events, stall, stream_latency.output_waits(events, stream.closed)
            )
        row["dialect"] = body.dialect
        row["provider"] = body.provider
        row["operation"] = body.operation or row["operation"]
        row["response_id"] = body.response_id
        row["response_model"] = body.response_model
        if not verdict.is_lost:
            _add_body(row, stream, body, chunks)
            if not stream.uncaptured_bytes:
                row["output_fingerprint"], row["tool_fingerprint"] = fingerprints(body, fingerprint_key)
                add_tokens(row, body, chunks, ended_ok=verdict.outcome == "ok", counters=counters)
                _add_billing(row, body)
    asked_for = stream.request
    row["service_tier"] = row["service_tier"] or term(asked_for.service_tier)
    row["speed"] = row["speed"] or term(asked_for.speed)
    row["inference_region"] = row["inference_region"] or term(asked_for.inference_region)
    asked = stream.conversation
    # A request that continues a response may leave out the tools, which the server keeps.
    has_tools = asked.has_tools if asked is not None and asked.previous_response_id is None else None
    if is_side_call(row["operation"], row["client_app"], has_tools):
        row["operation"] = SIDE_CALL
    if stream.request.generate is False:
        row["operation"] = WARM_UP
    if stream.opened is not None and is_web(stream.opened, stream.response, row["dialect"]):
        row["operation"] = WEB
    if row["transport"] == WEBSOCKET and row["connection_id"] is None:
        row["operation"], row["dialect"] = WEBSOCKET, None
    if asked is not None and asked.anatomy is not None and asked.anatomy.repeats:
        row["tool_repeats"] = asked.anatomy.repeats
        row["repeated_tool"] = identifiers.name(asked.anatomy.repeated_tool or "")
    if asked is not None and asked.traceparent:
        _join_trace(row, asked.traceparent)
    if stream.opened is not None and not stream.opened.gateway:  # refused before it had an upstream
        row["gateway"] = row["provider"] = row["server_address"] = row["server_port"] = row["end_ns"] = None
        row["method"], row["path"] = row["method"] or None, row["path"] or None
    if stream.opened is not None and stream.opened.times != "reads":
        _set(row, dict.fromkeys(_UNKNOWN[stream.opened.times]))
    return row


def _set(row: StreamRow, values: Mapping[str, Any]) -> None:
    """Set columns with names that follow from the catalogue or from a report."""
    cast("dict[str, Any]", row).update(values)


def _join_trace(row: StreamRow, traceparent: str) -> None:
    """Join the trace that a message names.

    A header of the same trace stays: its parent is the request of the message. That of a WebSocket is not of its messages.
    """
    caller = identifiers.trace_parent(traceparent)
    if caller is None or not row["span_id"]:
        return
    if row["trace_id"] != caller[0] or row["connection_id"] is not None:
        row["trace_id"], row["parent_span_id"], row["trace_flags"] = caller


def _add_objective(row: StreamRow, objectives: Objectives) -> None:
    found = objectives.of(
        row["request_model"] or row["response_model"], row["gateway"], row["client_id"], row["labels"]
    )
    if found is not None:
        row["objective"] = found.name
        row["meets_objective"] = found.meets(row["outcome"], row["ttft_ns"], row["itl_ns"])


def _add_opened(row: StreamRow, stream: FinishedStream) -> None:
    opened = stream.opened
    response_headers = stream.response.headers if stream.response is not None else []
    row["server_instance"] = server_instance_of(response_headers)
    row["request_id"] = request_id_of(opened.headers if opened is not None else [], response_headers)
    row["response_headers"] = stored_headers(response_headers)
    if opened is None:
        return
    row["request_headers"] = stored_headers(opened.headers)
    row["client_app"] = client_app_of(opened.headers)
    row["operation"] = operation_of(opened.path)
    row["transport"] = transport_of(opened, stream.response)
    _set(row, dict(zip(_OPENED, _of_opened(opened), strict=True)))
    row["clock_id"] = opened.clock_id or opened.incarnation
    row["clock_ns"] = opened.mono_ns


def _add_transport(row: StreamRow, stream: FinishedStream) -> None:
    if stream.response is not None:
        row["http_status"] = stream.response.status
        if stream.opened is None or stream.opened.connection_id is None:
            row["headers_ns"] = stream.response.headers_ns
    if stream.closed is not None:
        _set(row, dict(zip(_CLOSED, _of_closed(stream.closed), strict=True)))
        if stream.closed.waits is not None:
            row["waited_upstream_ns"], row["waited_client_ns"], row["tap_delay_ns"] = split_stream(
                stream.closed.waits, stream.closed.end_ns
            )
        if stream.response is None:
            row["http_status"] = stream.closed.refused_status


def _add_limits(row: StreamRow, stream: FinishedStream) -> None:
    """The rate limits that the response reports: its headers, or an event of an answer on a WebSocket."""
    response, body = stream.response, stream.body
    if row["connection_id"] is None and response is not None:  # else they are those of the handshake
        at_s = (stream.started_wall_ns + response.headers_ns) / 1e9
        limits = limits_in_headers(response.headers, at_s)
        if limits.retry_after_s is None and body is not None and body.error is not None:
            limits = limits._replace(retry_after_s=retry_delay_in(body.error.raw))
        _set(row, columns_of(limits, response.headers_ns))
    elif body is not None and body.server_stats:
        seq, times = body.server_stats[-1][0], body.events.at_ns
        at_ns = times[seq] if seq is not None and seq < len(times) else None
        _set(row, columns_of(limits_in_stats(stat for _, stat in body.server_stats), at_ns))


def _add_verdict(row: StreamRow, verdict: Verdict) -> None:
    row["outcome"] = verdict.outcome
    row["error_type"] = verdict.error_type
    row["error_phase"] = verdict.error_phase
    row["error_message"] = _text(verdict.error_message)
    row["aborted_after_terminal"] = None if verdict.is_lost else verdict.aborted_after_terminal


def empty_row() -> StreamRow:
    """A row without values."""
    return _EMPTY_ROW.copy()


def add_first_times(row: StreamRow, events: EventColumns) -> None:
    row["ttfc_ns"] = stream_latency.first_event_ns(events)
    row["ttft_ns"] = stream_latency.first_output_ns(events)
    row["ttfo_ns"] = stream_latency.first_nonreasoning_output_ns(events)


def add_chunks(row: StreamRow, chunks: stream_latency.ChunkLatencies) -> None:
    """Set the columns of the times between output events."""
    row["ttst_ns"] = chunks.ttst_ns
    _set(row, dict(zip(_CHUNKS, _of_chunks(chunks), strict=True)))


def _add_body(
    row: StreamRow, stream: FinishedStream, body: DecodedBody, chunks: stream_latency.ChunkLatencies
) -> None:
    """Columns of the decoded body of a complete stream."""
    row["streamed"] = body.streamed if stream.response is not None else None
    events = body.events
    row["ttfb_ns"] = body.first_byte_ns
    if row["ttfb_ns"] is None and stream.closed is not None:
        row["ttfb_ns"] = stream.closed.first_byte_ns
    add_first_times(row, events)
    row["ttst_ns"] = chunks.ttst_ns
    if stream.uncaptured_bytes:
        return
    kinds = events.kind
    row["terminator_ns"] = events.at_ns[kinds.index("terminal")] if "terminal" in kinds else None
    row["last_output_ns"] = stream_latency.last_output_ns(events)
    _set(row, body.columns)
    add_chunks(row, chunks)
    if (
        row["method"] != "GET" or row["connection_id"] is not None
    ):  # a GET may continue a stream that its client has in part
        row["violations"] = body.violations[row["outcome"] == OK and not row["aborted_after_terminal"]]
    audio = body.audio
    row["first_audio_ns"], row["audio_ns"] = audio.first_ns, audio.length_ns or None
    row["silence_ns"] = audio.silence_ns if row["finish_reason"] in INTERRUPTED else None
    if row["outcome"] == OK:  # a stream that ended early may end within the arguments
        row["malformed_tool_call_count"] = malformed_tool_calls(body.output_start)
    if stream.capture_content:
        row["output_text"] = _text(body.text)
        row["reasoning_text"] = _text(body.reasoning)


def _add_billing(row: StreamRow, body: DecodedBody) -> None:
    """The price conditions and the reason of a cache miss, reported outside of the usage report."""
    known = cast("Mapping[str, Any]", row)
    _set(row, {column: known[column] or value for column, value in body.billing.items()})
    if row["dialect"] == "openai_chat" and row["web_searches"] is None and row["output_tokens"]:
        model = row["response_model"] or row["request_model"] or ""
        row["web_searches"] = 1 if _ALWAYS_SEARCHES.search(model) else None


def add_tokens(
    row: StreamRow,
    body: DecodedBody,
    chunks: stream_latency.ChunkLatencies,
    *,
    ended_ok: bool,
    counters: Counter[str] | None = None,
) -> None:
    """Set the columns of tokens and rates. `row` has `last_output_ns`, and None as `output_tokens`."""
    usage = body.usage
    n: int | None = None
    if usage is not None:
        output, reasoning = _count(usage.output_tokens), _count(usage.reasoning_tokens)
        row["input_tokens"] = None if body.usage_denies_input else _count(usage.input_tokens)
        row["cached_input_tokens"] = _count(usage.cached_input_tokens)
        counted = body.counted_usage or usage
        details = details_in(counted.raw)
        _set(row, details)
        if usage.raw is not counted.raw:  # the last report has no counts, but may name the tier
            _set(row, {name: value for name, value in details_in(usage.raw).items() if value is not None})
        faults = faults_in(counted, details)
        if "total_cost" in faults:
            row["reported_cost"] = None
        if faults and counters is not None:
            counters.update(f"usage_inconsistent.{body.dialect}.{member}" for member in faults)
        row["output_tokens"] = output = None if body.usage_denies_output else output
        row["reasoning_tokens"] = reasoning
        row["token_source"] = _token_source(body, row["input_tokens"], output, faults)
        row["unexplained_tokens"] = sum(faults.values()) or None
        if output is not None and (ended_ok or _usage_covers_output(body, chunks)):
            n = output if not reasoning or body.columns["reasoning_chars"] else output - reasoning
            n -= hidden_output(counted.raw)
    listed = _count(chunks.listed_tokens)
    if row["output_tokens"] is None and listed:
        row["output_tokens"] = n = listed
        row["token_source"] = "chunks"  # noqa: S105 (tokens of text)
    last_ns = row["last_output_ns"]
    if n is not None and n > 0 and last_ns is not None:
        rates = stream_latency.token_rates(n, last_ns, chunks.output_span_ns)
        row["itl_ns"], row["tps_user"], row["tps_e2e"] = rates


def _token_source(
    body: DecodedBody, input_tokens: int | None, output_tokens: int | None, faults: Collection[str]
) -> str | None:
    if body.usage_denies_output or body.usage_denies_input:
        return "reported_zero"
    if faults:
        return "usage_inconsistent"
    if output_tokens is not None and not body.usage_is_final:
        return "usage_delta"
    return None if output_tokens is None and input_tokens is None else "usage"


def _usage_covers_output(body: DecodedBody, chunks: stream_latency.ChunkLatencies) -> bool:
    """Whether the last report of output tokens arrived with or after the last output."""
    last = chunks.last_output_seq
    return last is None or any(
        seq >= last for seq, _, usage in reversed(body.usage_reports) if usage.output_tokens is not None
    )


def _output_waits(finished: Sequence[FinishedStream]) -> pl.DataFrame:
    return frame_of_rows(
        OUTPUT_WAITS,
        [
            (stream.stream_id, *wait)
            for stream in finished
            if stream.body is not None and stream.closed is not None and stream.closed.waits
            for wait in stream_latency.output_waits(stream.body.events, stream.closed)
        ],
    )


def _usage_reports(finished: Sequence[FinishedStream], counters: Counter[str]) -> pl.DataFrame:
    reports: list[tuple[int, int | None, Usage]] = []
    stream_ids: list[str] = []
    captured: list[bool] = []
    for stream in finished:
        if stream.body is not None:
            new = stream.body.usage_reports
            reports += new
            stream_ids += [stream.stream_id] * len(new)
            captured += [stream.capture_content] * len(new)
    usages = [usage for _, _, usage in reports]
    values: dict[str, Sequence[Any]] = {
        "stream_id": stream_ids,
        "seq": [seq for seq, _, _ in reports],
        "at_ns": [at_ns for _, at_ns, _ in reports],
        "raw": [
            raw if kept or raw is None else numbers_only(raw)
            for raw, kept in zip(_json_each([usage.raw for usage in usages]), captured, strict=True)
        ],
    }
    for name in ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens"):
        values[name] = list(map(_count, map(attrgetter(name), usages)))
    return frame(USAGE_REPORTS, values, counters=counters)


def _server_stats(finished: Sequence[FinishedStream]) -> pl.DataFrame:
    found = [
        (s.stream_id, seq, stat if s.capture_content or stat.value is not None else _known_words(stat))
        for s in finished
        if s.body
        for seq, stat in s.body.server_stats
    ]
    name = identifiers.name
    return frame_of_rows(
        SERVER_STATS,
        [
            (stream_id, seq, name(s.source), name(s.name), s.value, name(s.unit), _text(s.raw))
            for stream_id, seq, s in found
        ],
    )


def _known_words(stat: ServerStat) -> ServerStat:
    """A non-numeric statistic, reduced to what may be stored."""
    report = _json({stat.name: stat.raw})
    kept: dict[str, str] = {} if report is None else msgspec.json.decode(numbers_only(report))
    name, raw = next(iter(kept.items()), ("", ""))
    return ServerStat(stat.source, name, None, stat.unit, raw)


_EMPTY = {
    table.name: frame_of_rows(table, [])
    for table in (STREAMS, EVENTS, USAGE_REPORTS, SERVER_STATS, OUTPUT_WAITS)
}


def _count(value: int | None) -> int | None:
    """A reported count; None for impossible values."""
    return value if value is not None and 0 <= value < _MAX_COUNT else None


def _text(value: str | None) -> str | None:
    """Valid UTF-8: unpaired surrogates from JSON escapes are replaced."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "replace").decode("utf-8")


def _json_each(values: Sequence[Any]) -> list[str | None]:
    """The JSON text of each value. Batched, because some servers report usage with every chunk."""
    try:
        lines = _encode_lines(values).decode().split("\n")[:-1]  # JSON text contains no raw line feed
    except (TypeError, ValueError, UnicodeError, RecursionError):
        return [_json(value) for value in values]
    return [None if value is None else line for value, line in zip(values, lines, strict=True)]


def _json(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, UnicodeError, RecursionError):
        return None


_LISTS = [*EVENTS.types][2:]
"""Columns of `events` after the id and the number."""


def event_frame(finished: Sequence[FinishedStream], counters: Counter[str] | None = None) -> pl.DataFrame:
    """The events of finished streams, in order."""
    sources = [(s.stream_id, s.body.events) for s in finished if s.body is not None and s.body.events]
    owners = pl.DataFrame(
        {"stream_id": [stream_id for stream_id, _ in sources], "n": [len(columns) for _, columns in sources]},
        schema={"stream_id": pl.String, "n": pl.Int64},
    )
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    for _, columns in sources:
        for name in _LISTS:
            # One list and one series per column for all streams: a frame per stream would cost more than its rows.
            lists[name] += (
                _event_names(columns.event_name) if name == "event_name" else getattr(columns, name)
            )
    return owners.select(
        pl.col("stream_id").repeat_by("n"), pl.int_ranges("n", dtype=pl.Int32).alias("seq")
    ).select(pl.all().explode(), *(_series(name, values, counters) for name, values in lists.items()))


def _event_names(names: list[str]) -> list[str]:
    """SSE event names that may be stored. A stream has few distinct ones."""
    # Each distinct name is checked once, not each event's.
    replaced = {name: kept for name in set(names) if name and (kept := identifiers.name(name) or "") != name}
    return [replaced.get(name, name) for name in names] if replaced else names


def _series(name: str, values: list[Any], counters: Counter[str] | None) -> pl.Series:
    found = series(EVENTS, name, values, polars_types(EVENTS)[name], counters)
    return found.replace("", None) if found.dtype == pl.String and name != "kind" else found


log = logging.getLogger(__name__)


Measure = Callable[[Sequence[FinishedStream]], dict[str, pl.DataFrame]]


def measured_rows(
    finished: Sequence[FinishedStream], measure: Measure, dead_letters: DeadLetters
) -> dict[str, pl.DataFrame]:
    """Rows by table, whatever a stream contains.

    If measuring the batch raises, its streams are measured one by one. One that raises is stored as `tap_lost` without measures,
    and added to `dead_letters`, which adds its row of `losses`.
    """
    if not finished:
        return {}
    try:
        return dict(measure(finished))
    except Exception:
        log.exception(
            "measuring a batch of %d streams failed. Its streams are measured one by one.", len(finished)
        )
    parts: list[dict[str, pl.DataFrame]] = []
    for stream in sorted(finished, key=attrgetter("started_wall_ns")):
        try:
            parts.append(measure([stream]))
        except Exception as e:
            opened = stream.opened
            gateway, tap = (opened.gateway, opened.tap) if opened else (None, None)
            dead_letters.add_unmeasured(stream.partition, stream.stream_id, tap, e)
            parts.append({"streams": lost_row(stream.stream_id, stream.started_wall_ns, gateway, tap)})
    names = {name for part in parts for name in part}
    return {name: pl.concat([p[name] for p in parts if name in p], how="diagonal_relaxed") for name in names}


def lost_row(stream_id: str, started_wall_ns: int, gateway: str | None, tap: str | None) -> pl.DataFrame:
    """The row of a lost stream without further data."""
    row = (stream_id, started_wall_ns // 1000, gateway, tap, LOST.outcome, LOST.error_type)
    return frame_of_rows(STREAMS, [row], _LOST)


_LOST = ("stream_id", "started_at", "gateway", "tap", "outcome", "error_type")

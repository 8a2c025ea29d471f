"""The columns of table `streams`, each declared once: name, type, description, and what else follows from it.

From `StreamRow` follow CREATE TABLE with its comments, the columns that are attributes of records (`streamgauge.analytics.measures`), the
histograms by minute, the metrics and help texts of pages, the attributes of spans, and the reference pages. A new column is a line
here and the code that computes its value. An unknown name fails mypy, and an unknown hint the import.

The description of a column is the first paragraph of its docstring. The second one, if any, is the help of the metric on pages.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

Uuid = Annotated[str | None, "UUID"]
Text = Annotated[str | None, "VARCHAR"]
Texts = Annotated[Sequence[str] | None, "VARCHAR[]"]
TextMap = Annotated[Mapping[str, str] | None, "MAP(VARCHAR,VARCHAR)"]
Int16 = Annotated[int | None, "SMALLINT"]
Int32 = Annotated[int | None, "INTEGER"]
Integer = Annotated[int | None, "BIGINT"]
Number = Annotated[float | None, "DOUBLE"]
Flag = Annotated[bool | None, "BOOLEAN"]


class Hint:
    """What follows from a column, besides what the other classes of hints say."""


OPENED = Hint()
"""The value is the attribute of the record `Opened` with this name."""
CLOSED = Hint()
"""As `OPENED`, of the record `Closed`."""
DECODED = Hint()
"""As `OPENED`, of the decoded body."""
CHUNKS = Hint()
"""As `OPENED`, of the latencies between the output events. Unknown unless the reads of the body are timed."""
READS = Hint()
"""Unknown unless the reads of the body are timed."""
EXCHANGE = Hint()
"""Unknown unless the exchange is timed."""
ATTRIBUTE = Hint()
"""Spans have the attribute `streamgauge.` with this name, without `_ns`. Times are in seconds. `icl_p50_ns` is `icl.p50`."""
CONVENTION = Hint()
"""Spans have the attribute that the conventions name: a field of `streamgauge.analytics.telemetry.semconv.Names` with this name."""
LIVE = Hint()
"""Streams in flight have it, too, with its value so far: a column of `open_streams`."""


@dataclass(frozen=True)
class Histogram:
    """The roll-ups have its histogram by minute, and the view `latency_by_minute` these quantiles."""

    quantiles: str = ""


@dataclass(frozen=True)
class Metric:
    """Pages show its distribution, in this place of the list of metrics."""

    label: str
    place: int


@dataclass(frozen=True)
class Attribute:
    """As `ATTRIBUTE`, with this name."""

    name: str


class StreamRow(TypedDict):
    """One row per finished request. Columns *_ns are nanoseconds from t0, when the tap begins to connect to the upstream. Unknown
    values are NULL, never 0."""

    stream_id: Annotated[str, "UUID NOT NULL", LIVE]
    """Id of the request: a UUIDv7 created by the tap, so it sorts by time."""
    gateway: Annotated[Text, OPENED, ATTRIBUTE, LIVE]
    """Name of the upstream."""
    tap: Annotated[Text, OPENED, LIVE]
    """Name of the tap."""
    client_id: Annotated[Text, OPENED, ATTRIBUTE, LIVE]
    """Keyed hash of the client's API key. NULL without a key."""
    labels: Annotated[TextMap, LIVE]
    """Labels of the request by name (table labels). Values are hashed unless the label is plain. NULL without any."""
    client_app: Annotated[Text, LIVE]
    """Program of the client, name/version, from its header User-Agent (name: originator if sent). NULL if unknown."""
    server_instance: Annotated[Text, ATTRIBUTE]
    """Worker, replica or pod of the upstream that answered, from a response header (x-…-worker-id and similar)."""
    provider: Text
    """Vendor of the API, detected from host, headers or stream."""
    dialect: Annotated[Text, ATTRIBUTE, LIVE]
    """Format of the stream (docs/reference/dialects.md). An 'unknown' stream has byte and event measures only."""
    operation: Annotated[Text, LIVE]
    """Kind: chat, embeddings, count_tokens, warm_up …; side_call: of an agent without its tools; web: page, icon, HEAD; websocket:
    the connection; MCP: its method."""
    method: Annotated[Text, OPENED]
    """HTTP method."""
    transport: Text
    """http, or websocket: an answer on a WebSocket, and the WebSocket itself (operation websocket). NULL if unknown."""
    connection_id: Annotated[Uuid, OPENED, ATTRIBUTE]
    """Of an answer on a WebSocket: stream_id of the WebSocket. NULL for HTTP."""
    response_index: Annotated[Int32, OPENED, ATTRIBUTE]
    """Number of the answer on its WebSocket, from 0. NULL for HTTP."""
    speech_end: Annotated[Text, OPENED, ATTRIBUTE]
    """Source of the end of speech that is t0: server (its event), client (its signal), audio (loudness). NULL: t0 is another message."""
    path: Annotated[Text, OPENED, LIVE]
    """Path of the request to the upstream, without parameters, fragment and query except ?alt=sse. A segment that is no identifier is
    hashed."""
    request_model: Annotated[Text, CONVENTION, LIVE]
    """Requested model. Here and in other columns of names and ids, hashed:… replaces a value that is no identifier."""
    response_model: Annotated[Text, CONVENTION, LIVE]
    """Model named in the response."""
    response_id: Annotated[Text, CONVENTION]
    """Id in the response."""
    request_id: Annotated[Text, ATTRIBUTE]
    """The client's x-request-id header, else the server's request id."""
    trace_id: Annotated[Text, OPENED, LIVE]
    """W3C trace id: the caller's, else created by the tap."""
    span_id: Annotated[Text, OPENED]
    """Span id created by the tap and sent to the upstream as the parent."""
    parent_span_id: Annotated[Text, OPENED]
    """The caller's span id. NULL if the tap started the trace."""
    started_at: Annotated[int, "TIMESTAMPTZ NOT NULL", LIVE]
    """Time of t0."""
    http_status: Annotated[Int16, Attribute("http.response.status_code"), LIVE]
    """HTTP status of the upstream's response. NULL without a response."""
    streamed: Flag
    """Whether the response was a stream of events. NULL without a response."""
    outcome: Annotated[str, "VARCHAR NOT NULL", ATTRIBUTE]
    """ok, http_error, connect_error, inband_error, truncated, upstream_reset, idle_timeout, client_abort, malformed, tap_lost or
    refused."""
    error_type: Text
    """The provider's error type, else its code, else the HTTP status or the outcome. NULL if ok."""
    error_phase: Annotated[Text, ATTRIBUTE]
    """Phase of the error: pre_headers, pre_first_output, mid_stream, or post_finish after a complete response (then the outcome is
    ok)."""
    error_message: Text
    """Class of the tap's exception. The provider's message only with --capture-content."""
    finish_reason: Annotated[Text, DECODED]
    """Last reported finish reason of choice 0, also if more output followed it."""
    client_start_ns: Annotated[Integer, OPENED, EXCHANGE]
    """ns from t0 to the first byte of the request at the tap: 0 or negative."""
    connected_ns: Annotated[Integer, CLOSED, EXCHANGE, Histogram(), Metric("connect", 11)]
    """ns from t0 to an open connection to the upstream, about 0 for a reused one."""
    request_sent_ns: Annotated[Integer, CLOSED, EXCHANGE]
    """ns from t0 to the last byte of the request sent to the upstream."""
    headers_ns: Annotated[Integer, EXCHANGE]
    """ns from t0 to the complete headers of the response."""
    ttfb_ns: Annotated[Integer, READS, Histogram("p50"), Metric("first byte", 5)]
    """Time to first byte: ns from t0 to the first body byte. NULL without a body.

    Time to first byte: first byte of the response body − t0.
    """
    ttfc_ns: Annotated[Integer, READS, Histogram(), Metric("first chunk", 6)]
    """Time to first chunk: ns from t0 to the first event with data. NULL without an event.

    Time to first chunk: first dispatched event with data − t0, whether or not it contains output.
    """
    ttft_ns: Annotated[Integer, READS, Histogram("p50 p95 p99"), Metric("TTFT", 0), ATTRIBUTE, LIVE]
    """Time to first token: ns from t0 to the first output event (text, reasoning, refusal, tool call, audio or image). NULL without
    output.

    Time to first token: first output event − t0. t0 is when the tap starts to contact the upstream, before it reuses or opens a
    connection. Output is text, reasoning, refusal, tool call, audio or image. Role-only and empty chunks do not count. Quantiles are
    over streams.
    """
    ttfo_ns: Annotated[Integer, READS, Histogram("p50"), Metric("first answer token", 7), ATTRIBUTE]
    """ns from t0 to the first output event that is not reasoning. NULL without one.

    Time to first answer token: first non-reasoning output − t0.
    """
    ttst_ns: Annotated[Integer, READS, Histogram(), Metric("second token after the first", 8), ATTRIBUTE]
    """Time to second token: ns from the first to the second output event of the choice that began first. NULL with fewer than 2."""
    last_output_ns: Annotated[Integer, READS, Histogram(), LIVE]
    """Generation time: ns from t0 to the last output event. NULL without output."""
    first_audio_ns: Annotated[Integer, READS, Metric("first audio", 9), ATTRIBUTE]
    """ns from t0 to the first audio. For an answer to speech, t0 is the end of the speech (speech_end). NULL without audio.

    First audio − t0. For an answer to speech, t0 is the end of the speech.
    """
    audio_ns: Annotated[Integer, ATTRIBUTE]
    """Length of the generated audio in ns, from its size and format. NULL if unknown."""
    silence_ns: Annotated[Integer, READS, Metric("interruption to silence", 10), ATTRIBUTE]
    """ns from the interruption of an answer (speech of the user, or a cancellation) to its last audio: 0 if none came after it. NULL
    if it was not interrupted.

    From the interruption of an answer to the last audio after it. What the client plays is not known.
    """
    terminator_ns: Annotated[Integer, READS]
    """ns from t0 to the first terminal event ([DONE], message_stop, chat.end …). NULL without one; the stream may still be ok."""
    end_ns: Annotated[Integer, CLOSED, EXCHANGE, Histogram("p50 p95"), Metric("end to end", 12)]
    """End-to-end time: ns from t0 to the end of the body or of the failed attempt. NULL if the end was not recorded.

    End to end: end of the response body − t0.
    """
    input_tokens: Annotated[Integer, CONVENTION]
    """Reported input tokens, including cached ones. NULL if 0 was reported for a prompt."""
    output_tokens: Annotated[Integer, CONVENTION, LIVE]
    """Reported output tokens, including reasoning. NULL if 0 was reported despite output."""
    reasoning_tokens: Annotated[Integer, CONVENTION]
    """Reported reasoning tokens, part of output_tokens."""
    cached_input_tokens: Annotated[Integer, CONVENTION]
    """Reported input tokens read from a cache, part of input_tokens."""
    cached_audio_tokens: Annotated[Integer, CONVENTION]
    """Reported audio tokens among cached_input_tokens."""
    cached_image_tokens: Integer
    """Reported image tokens among cached_input_tokens."""
    cache_write_tokens: Annotated[Integer, CONVENTION]
    """Reported input tokens written to a cache, part of input_tokens."""
    cache_write_1h_tokens: Integer
    """Of them, those written for an hour. The others are kept for 5 minutes, or as long as the vendor keeps them."""
    cache_miss_reason: Annotated[Text, ATTRIBUTE]
    """Why the prompt cache missed: model_changed, settings_changed, tools_changed, system_changed, messages_changed, expired … NULL: a
    hit, or unknown.

    Why the prompt was not read from the cache although an earlier request of the session had written it.
    """
    cache_miss_segment: Text
    """First segment of the prompt that changed, by comparison: model, settings NAME, tool N NAME, order of tools, system N, message N
    (numbers from 0)."""
    cache_miss_source: Text
    """provider: the response has the reason, because the client requested it. compared: the reason follows from an earlier prompt."""
    cache_missed_tokens: Annotated[Integer, ATTRIBUTE]
    """Input tokens that the cache would have had without the miss, as the provider reports them, else estimated. NULL if unknown."""
    input_audio_tokens: Annotated[Integer, CONVENTION]
    """Reported audio tokens, part of input_tokens."""
    input_image_tokens: Annotated[Integer, CONVENTION]
    """Reported image tokens, part of input_tokens."""
    output_audio_tokens: Annotated[Integer, CONVENTION]
    """Reported audio tokens, part of output_tokens."""
    output_image_tokens: Annotated[Integer, CONVENTION]
    """Reported image tokens, part of output_tokens."""
    web_searches: Int32
    """Web searches of the server that are billed, as its usage report counts them, else as the response shows them. NULL if
    unknown."""
    billed_input_tokens: Integer
    """Input tokens that the provider bills, if it reports them beside input_tokens (Cohere's billed_units, Perplexity's citations).
    NULL: those of input_tokens."""
    billed_output_tokens: Integer
    """Output tokens that the provider bills, if it reports them beside output_tokens. NULL: those of output_tokens."""
    other_model: Text
    """Another model whose tokens are part of the counts (Anthropic's advisor, fallback). NULL: none, several, or unnamed (OpenAI's
    image tool)."""
    other_input_tokens: Integer
    """Input tokens of other models, part of input_tokens."""
    other_cached_input_tokens: Integer
    """Of them, those read from a cache."""
    other_cache_write_tokens: Integer
    """Of them, those written to a cache."""
    other_cache_write_1h_tokens: Integer
    """Of them, those written for an hour."""
    other_output_tokens: Integer
    """Output tokens of other models, part of output_tokens."""
    reported_cost: Number
    """Cost of the request in USD as the provider reports it. NULL if it reports none."""
    service_tier: Text
    """Service tier that served the request (default, flex, priority, batch …), else the requested one. NULL if unknown."""
    speed: Text
    """Speed that served the request (standard, fast), else the requested one. NULL if unknown."""
    inference_region: Text
    """Region of the inference as the provider reports it (inference_geo), else the requested one. NULL if unknown."""
    token_source: Annotated[Text, ATTRIBUTE]
    """Source of the counts: usage, usage_delta (running count, unfinished), chunks (listed by event), reported_zero,
    usage_inconsistent (it contradicts itself)."""
    unexplained_tokens: Integer
    """Tokens that the report's own total has beyond input_tokens and output_tokens; negative: that it lacks. NULL unless it
    contradicts them."""
    itl_ns: Annotated[Number, READS, Histogram("p50 p95 p99"), Metric("ITL", 1), ATTRIBUTE]
    """Inter-token latency: (last - first output - output_waits) / (N - 1) in ns. NULL if N < 2 or unknown, with fewer than 2 outputs
    or several choices.

    Inter-token latency of a stream: (last output − first output) / (output tokens − 1). Unknown without token counts, with fewer than
    two output events, or with several choices. Quantiles are over streams.
    """
    icl_p50_ns: Annotated[
        Number, CHUNKS, Histogram(), Metric("inter-chunk, median of the stream", 2), ATTRIBUTE
    ]
    """Inter-chunk latency: median gap between output events of one choice in ns, without output_waits. NULL with fewer than 2."""
    icl_p95_ns: Annotated[Number, CHUNKS, Histogram(), Metric("inter-chunk, p95 of the stream", 3), ATTRIBUTE]
    """95th percentile of the gaps between output events in ns."""
    icl_p99_ns: Annotated[Number, CHUNKS, ATTRIBUTE]
    """99th percentile of the gaps between output events in ns."""
    icl_max_ns: Annotated[Integer, CHUNKS, Histogram(), Metric("longest gap", 4)]
    """Longest gap between output events in ns."""
    stall_count: Annotated[Int32, CHUNKS, ATTRIBUTE]
    """Stalls caused by the upstream: gaps in which it took more than max(500 ms, 5 x the stream's median gap); both limits are
    settings. NULL without output."""
    stalled_ns: Annotated[Integer, CHUNKS, ATTRIBUTE]
    """Time in ns that the upstream took in these stalls."""
    tps_user: Annotated[Number, READS, Histogram("p50"), ATTRIBUTE]
    """Tokens per second seen by the reader: 1 / itl. NULL if itl is NULL or 0.

    Tokens per second of one stream: 1 / ITL. Quantiles are over streams.
    """
    tps_e2e: Annotated[Number, READS, Histogram("p50"), ATTRIBUTE]
    """Tokens per second of generation time: N / (last output - t0). NULL if N is unknown.

    Output tokens / (last output − t0), which includes the wait for the first token.
    """
    burstiness: Annotated[Number, CHUNKS, Histogram(), ATTRIBUTE]
    """Share of output bytes in the largest read, or in reads at most 1 ms apart. Near 1: not streamed. NULL with fewer than 2
    outputs.

    Share of output bytes that arrived in the largest read or in reads ≤ 1 ms apart. Near 1: the response arrived almost at once.
    """
    event_count: Annotated[Integer, DECODED, ATTRIBUTE, LIVE]
    """Events with data."""
    output_event_count: Annotated[Integer, DECODED, ATTRIBUTE, LIVE]
    """Events with generated output. One event may hold several tokens."""
    text_chars: Annotated[Integer, DECODED]
    """Characters of generated text in all choices."""
    reasoning_chars: Annotated[Integer, DECODED]
    """Characters of reasoning in the response."""
    tool_call_count: Annotated[Int32, DECODED, ATTRIBUTE]
    """Tool calls by the model."""
    tool_call_chars: Annotated[Integer, DECODED]
    """Characters of the arguments of tool calls by the model in all choices, also of calls that the provider runs."""
    comment_count: Annotated[Integer, DECODED]
    """SSE comments (heartbeats)."""
    response_bytes: Annotated[Integer, CLOSED, ATTRIBUTE, LIVE]
    """Body bytes received from the upstream."""
    malformed_events: Annotated[Integer, DECODED]
    """Events that could not be parsed."""
    lost_bytes: Annotated[Integer, ATTRIBUTE]
    """Body bytes that the tap forwarded and did not record: 0 unless the outcome is tap_lost, NULL if unknown."""
    delivered_bytes: Annotated[Integer, CLOSED]
    """Body bytes written to the client's socket and not known to be undelivered."""
    client_drain_ns: Annotated[Integer, CLOSED]
    """ns from t0 until the client's socket had accepted the last byte."""
    delivered_ns: Annotated[Integer, CLOSED]
    """ns from t0 until the client's kernel had acknowledged the last byte (SIOCOUTQ). The time of the write if it left at once. NULL:
    unknown."""
    aborted_after_terminal: Flag
    """Whether client or upstream closed the connection after a complete response, which is not an error."""
    waited_upstream_ns: Integer
    """Time in ns that the tap waited for the upstream. With waited_client_ns and tap_delay_ns it adds up to end_ns."""
    waited_client_ns: Integer
    """Time in ns that the tap waited for the client: for its request, or for it to read the response."""
    tap_delay_ns: Integer
    """Time in ns by which the tap delayed the stream because its event loop or relay thread was blocked."""
    session_id: Annotated[Text, CONVENTION]
    """Session of the request, hashed unless its header is declared safe. Else the id of the response that began its chain, which may
    be its own."""
    parent_session_id: Annotated[Text, ATTRIBUTE]
    """Session that the agent belongs to whose session is session_id. NULL unless it is a subagent."""
    turn: Int32
    """Number of the turn in the session, from 1. NULL if unknown, and for side calls."""
    objective: Text
    """Name of the stream's objective when it was stored: the first in objectives that matches."""
    meets_objective: Flag
    """Whether the stream meets it. False: failed or known to miss a limit. NULL: a limited metric is unknown, or the stream was ended
    by neither side."""
    clock_id: Text
    """Clock of clock_ns: streams with the same clock_id can be compared exactly."""
    clock_ns: Integer
    """t0 on the monotonic clock of the tap in ns."""
    output_fingerprint: Text
    """Keyed hash of the generated text. NULL without text."""
    tool_fingerprint: Text
    """Keyed hash of the arguments of the tool calls. NULL without them."""
    server_address: Annotated[Text, OPENED, Attribute("server.address")]
    """Host of the upstream."""
    server_port: Annotated[Int32, OPENED, Attribute("server.port")]
    """Port of the upstream."""
    trace_flags: Annotated[Int16, OPENED]
    """W3C trace flags."""
    request_bytes: Annotated[Integer, CLOSED]
    """Body bytes of the request."""
    choice_count: Annotated[Int32, DECODED]
    """Choices in the response."""
    unterminated_tail: Annotated[Flag, DECODED]
    """Whether the body ended in a last event that was complete except for its blank line."""
    tool_failure_count: Annotated[Int32, DECODED]
    """Tool calls that the server reported as failed. Not an error of the stream."""
    malformed_tool_call_count: Int32
    """Tool calls whose arguments begin as a JSON object and are not valid JSON. NULL unless ok, or if redacted or above 4,096
    characters."""
    tool_repeats: Annotated[Int32, ATTRIBUTE]
    """How often the turn has the tool call that it repeats most, with the same arguments and result. 1: no repetition. NULL: the request
    has no result with its call."""
    repeated_tool: Text
    """Name of that tool."""
    refusal_chars: Annotated[Integer, DECODED]
    """Characters of refusal in the response."""
    violations: Texts
    """Rules of strict clients that the stream breaks (view violations). NULL: not an event stream of a format with rules, or a GET."""
    output_text: Text
    """Generated text of choice 0; only with --capture-content."""
    reasoning_text: Text
    """Reasoning of choice 0; only with --capture-content."""
    requests_limit: Integer
    """Requests that the provider allows in a window of its rate limit, as the response reports it. Of several windows, the one with
    the smallest share left."""
    requests_remaining: Integer
    """Requests left of requests_limit when the response began."""
    requests_reset_ns: Integer
    """ns from t0 until requests_remaining is requests_limit again: the end of the window, or when a bucket is full."""
    tokens_limit: Integer
    """Tokens that the provider allows in a window of its rate limit, as requests_limit."""
    tokens_remaining: Integer
    """Tokens left of tokens_limit when the response began."""
    tokens_reset_ns: Integer
    """ns from t0 until tokens_remaining is tokens_limit again."""
    quota: Text
    """Window of a quota of which the response reports only the used share (unified-5h, unified-7d, codex-primary …): the one that is
    used most."""
    quota_used: Number
    """Used share of quota: 0.9 is 90 %, and above 1 is exceeded."""
    quota_reset_ns: Integer
    """ns from t0 until quota resets."""
    retry_after_ns: Integer
    """ns from the response to when the server asks to try again (Retry-After, Gemini's RetryInfo). NULL if it does not."""
    request_headers: Text
    """JSON object of allow-listed request header fields. A part of a value that is not in the grammar of its field is hashed."""
    response_headers: Text
    """JSON object of allow-listed response header fields. A part of a value that is not in the grammar of its field is hashed."""


class OpenStreamRow(TypedDict):
    """Streams in flight, at most half a second old. Columns of streams have their values so far."""

    last_event_ns: Integer
    """ns from t0 to the newest event."""
    waits_for_client: Flag
    """Whether the client does not read the response, has not received all of it, or still sends the request. At most 2 s old."""
    updated_at: Annotated[int, "TIMESTAMPTZ NOT NULL"]
    """Time of the newest record."""


_HINTS = (Hint, Histogram, Metric, Attribute)


@dataclass(frozen=True)
class Column:
    """A column of a table. `help` is that of its metric on pages, or empty."""

    sql_type: str
    """With NOT NULL, which says what this version writes."""
    text: str
    help: str
    hints: tuple[Any, ...]


def columns_of(row: type) -> dict[str, Column]:
    """The columns that a TypedDict declares, by name. Raises TypeError for an unknown hint."""
    found, texts = {}, field_texts(row)
    for name, declared in get_type_hints(row, include_extras=True).items():
        sql_type, *hints = declared.__metadata__
        if not all(isinstance(hint, _HINTS) for hint in hints):
            raise TypeError(f"column {name}: unknown hint among {hints}")
        text, _, metric_help = texts[name].partition("\n\n")
        found[name] = Column(sql_type, _one_line(text), _one_line(metric_help), tuple(hints))
    return found


def field_texts(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class, with an empty text for a field without one."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: inspect.cleandoc(str(after.value.value))
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        else ""
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def create_table(name: str, row: type, shared: Mapping[str, Column] | None = None) -> str:
    """SQL of a table with the descriptions, as in schema.sql: the shared columns, then those of the row."""
    columns = [(f"{n} {of.sql_type}", of.text) for n, of in {**(shared or {}), **columns_of(row)}.items()]
    return table_sql(name, row.__doc__ or "", columns)


def table_sql(name: str, text: str, columns: Sequence[tuple[str, str]]) -> str:
    """SQL of a table with its description, and declarations and descriptions of its columns."""
    lines = [f"    {declared}, -- {_one_line(about)}" for declared, about in columns[:-1]]
    lines += [f"    {declared} -- {_one_line(about)}" for declared, about in columns[-1:]]
    head = f"-- {_one_line(text)}\nCREATE TABLE IF NOT EXISTS {name} (\n"
    return head + "\n".join(lines) + "\n);"


def _one_line(text: str) -> str:
    return " ".join(text.split())


STREAM_COLUMNS = columns_of(StreamRow)
_Kind = TypeVar("_Kind")


def with_hint(*hints: Hint) -> tuple[str, ...]:
    """The names of the columns with one of these hints, in order."""
    return tuple(name for name, column in STREAM_COLUMNS.items() if any(h in column.hints for h in hints))


def read_from(record: type, hint: Hint) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The columns with a hint, and their getter. `record`: its class. Raises AttributeError if it lacks one of them."""
    names = with_hint(hint)
    read = attrgetter(*names)
    read(record)
    return names, read


def values_of(kind: type[_Kind]) -> dict[str, _Kind]:
    """The hint of this kind by column."""
    found = ((name, hint) for name, column in STREAM_COLUMNS.items() for hint in column.hints)
    return {name: hint for name, hint in found if isinstance(hint, kind)}

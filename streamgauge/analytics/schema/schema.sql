-- Tables. Columns *_ns are nanoseconds from t0, *_at are instants. Unknown is NULL, never 0.
-- docs/explanation/measurement.md defines every number. Tables of the schema `internal` are not for readers.
-- The line before a table describes it, and the end of a line its column: SQL clients and the dashboard show them as comments. A column
-- without a description has that of the column of the same name in the nearest table before. Table streams is in stream_columns.py.

CREATE SCHEMA IF NOT EXISTS internal;

$STREAMS

-- One row per event with data, kept for --retain-events.
CREATE TABLE IF NOT EXISTS events (
    stream_id UUID NOT NULL, -- The stream.
    seq INTEGER NOT NULL, -- Number of the event in its stream, from 0.
    read_seq INTEGER NOT NULL, -- Number of the read that completed the event. Events of one read have the same time.
    at_ns BIGINT NOT NULL, -- ns from t0 to the arrival of that read.
    kind VARCHAR NOT NULL, -- Output: text, reasoning, refusal, tool_call, audio, image. Other: start, finish, usage, terminal, error, ping, progress, annotation, malformed, other.
    event_name VARCHAR, -- SSE event field. NULL without one.
    choice SMALLINT, -- First choice that the event names.
    chars INTEGER, -- Generated characters in the event.
    tokens INTEGER, -- Tokens in the event, if the server lists them (logprobs, token_ids) or reports usage in every chunk.
    bytes INTEGER, -- Bytes of the data field.
    finish_reason VARCHAR -- Finish reason in the event.
);

-- Every usage report of every stream.
CREATE TABLE IF NOT EXISTS usage_reports (
    stream_id UUID NOT NULL,
    seq INTEGER, -- Event with the report.
    at_ns BIGINT, -- ns from t0. NULL if the response was not streamed.
    input_tokens BIGINT, -- Input tokens, including cached ones.
    output_tokens BIGINT, -- Output tokens, including reasoning. Cumulative.
    reasoning_tokens BIGINT, -- Reasoning tokens.
    cached_input_tokens BIGINT, -- Input tokens read from a cache.
    raw VARCHAR -- The report as sent, in JSON.
);

-- Timings and counts that the server reported.
CREATE TABLE IF NOT EXISTS server_stats (
    stream_id UUID NOT NULL,
    seq INTEGER, -- Event with the value. NULL: a response header.
    source VARCHAR NOT NULL, -- Field or header with the value: perf_metrics, stats, timings, x_groq …
    name VARCHAR NOT NULL, -- Name of the value.
    value DOUBLE, -- The value in `unit`.
    unit VARCHAR, -- ns, tok/s, tokens or 1.
    raw VARCHAR -- The value as sent.
);

-- Trace spans: created from streams, or received from other services (stream_id is NULL, attributes contain service.name).
CREATE TABLE IF NOT EXISTS spans (
    trace_id VARCHAR NOT NULL, -- W3C trace id.
    span_id VARCHAR NOT NULL, -- Span id.
    parent_span_id VARCHAR, -- Span id of the parent.
    stream_id UUID, -- The stream. NULL for a received span.
    name VARCHAR NOT NULL, -- Name of the span.
    kind VARCHAR NOT NULL, -- OpenTelemetry span kind.
    started_at TIMESTAMPTZ NOT NULL, -- Start of the span.
    start_ns BIGINT NOT NULL, -- ns from the stream's t0 to the start. 0 for a received span.
    duration_ns BIGINT NOT NULL, -- Duration in ns.
    status VARCHAR NOT NULL, -- OpenTelemetry status: unset, ok or error.
    status_message VARCHAR, -- Error type of a failed span.
    attributes VARCHAR, -- Attributes in JSON.
    events VARCHAR -- Span events in JSON.
);

-- Read position of each partition of the record log.
CREATE TABLE IF NOT EXISTS log_positions (
    log_id VARCHAR NOT NULL, -- Id of the log to which the offsets belong.
    partition VARCHAR NOT NULL, -- Partition of the log.
    high BIGINT NOT NULL, -- Offset of the next entry. All earlier entries are stored.
    low BIGINT NOT NULL, -- Offset from which a restart reads the open streams again.
    open_stream_ids VARCHAR[] NOT NULL, -- Open streams at the time of the commit.
    owner VARCHAR NOT NULL, -- Id of the analytics process that owns the partition.
    version BIGINT NOT NULL, -- Incremented by each commit. Rejects the commits of a former owner.
    updated_at TIMESTAMPTZ NOT NULL -- Time of the commit.
);

-- Last report of each run of each tap worker process.
CREATE TABLE IF NOT EXISTS taps (
    tap VARCHAR NOT NULL,
    tap_worker INTEGER NOT NULL, -- Number of the tap's worker process, from 0.
    incarnation VARCHAR NOT NULL, -- Id of the run.
    started_at TIMESTAMPTZ NOT NULL, -- Start of the run.
    last_alive_at TIMESTAMPTZ NOT NULL, -- Last heartbeat.
    stopped BOOLEAN NOT NULL, -- Whether the run ended cleanly.
    counters VARCHAR NOT NULL -- Counters since the start of the run, in JSON.
);

-- Parts of the view counters.
CREATE TABLE IF NOT EXISTS internal.counter_parts (
    name VARCHAR NOT NULL, -- Name of the counter.
    value BIGINT NOT NULL -- Part of the value. Sum by name.
);

-- Missing records of streams, by range and cause.
CREATE TABLE IF NOT EXISTS losses (
    stream_id UUID, -- The stream; a new id if the log has no record of it. NULL for log entries whose streams are unknown.
    tap VARCHAR, -- Name of the tap. NULL if the first record of the stream is missing.
    partition VARCHAR,
    first_seq BIGINT, -- First missing record of the stream. Without a stream: first log entry that could not be processed.
    last_seq BIGINT, -- Last missing record of the stream. Without a stream: last log entry that could not be processed.
    cause VARCHAR NOT NULL, -- queue_full, log_full, log_aged, log_error, log_damaged, log_gone, record_too_large, recording_failed, tap_died, not_measured, missing, a dead letter's reason …
    bytes BIGINT, -- Body bytes in the missing records. NULL if unknown.
    lost_at TIMESTAMPTZ NOT NULL, -- Time of the loss, as far as known.
    dead_letters BIGINT -- Dead letters without a stream that this row counts: those of one log entry, or all beyond 1,000 rows of a commit by partition and cause. NULL with a stream.
);

-- Log content that could not be processed: reason and hash, no text.
CREATE TABLE IF NOT EXISTS dead_letters (
    set_aside_at TIMESTAMPTZ NOT NULL, -- Time when analytics rejected the content.
    log_id VARCHAR, -- Id of the log.
    partition VARCHAR,
    log_offset BIGINT, -- Offset of the log entry.
    stream_id UUID, -- The stream, if known.
    reason VARCHAR NOT NULL, -- Reason of the rejection.
    size BIGINT NOT NULL, -- Bytes of the content. For unreadable log entries: their number.
    sha256 VARCHAR NOT NULL -- SHA-256 hash of the content.
);

-- Roll-ups by the minute, committed with the rows they are computed from (analytics/measures/minute_rows.py) and kept when those rows are
-- deleted. Until a minute is compacted (analytics/storage/rollup_compaction.py) several rows may share a key: sum them.

-- Counts and sums of streams per minute, kept for --retain-rollups. Rows may share a key until settled: sum them.
CREATE TABLE IF NOT EXISTS stream_minutes (
    minute TIMESTAMPTZ NOT NULL, -- Minute in which the streams started.
    gateway VARCHAR, provider VARCHAR,
    model VARCHAR, -- Requested model, else the one in the response. _other: not among the 100 busiest of the minute.
    dialect VARCHAR, operation VARCHAR, outcome VARCHAR NOT NULL, error_phase VARCHAR,
    error_type VARCHAR, -- Type of the error. _other: not among the 100 most frequent of the minute.
    http_status SMALLINT,
    settled BOOLEAN NOT NULL, -- Whether this is the only row of its key. A late stream may still add one.
    streams BIGINT NOT NULL, -- Finished streams.
    streams_with_output BIGINT NOT NULL, -- Streams with output.
    streams_with_output_tokens BIGINT NOT NULL, -- Streams with known output tokens.
    aborted_after_terminal BIGINT NOT NULL, -- Streams closed after a complete response.
    meeting_objective BIGINT NOT NULL, -- Streams known to meet their objective: goodput.
    streams_with_stalls_known BIGINT NOT NULL, -- Streams with a known stall_count.
    stalled_streams BIGINT NOT NULL, -- Streams with at least one stall.
    stalls BIGINT, -- Sum of stall_count.
    stalled_ns BIGINT, -- Sum of stalled_ns.
    output_ns BIGINT, -- ns from first to last output, summed over streams with a known stall_count.
    icl_max_ns BIGINT,
    waited_upstream_ns BIGINT, -- Sum of waited_upstream_ns.
    waited_client_ns BIGINT, -- Sum of waited_client_ns.
    tap_delay_ns BIGINT, -- Sum of tap_delay_ns.
    input_tokens BIGINT, -- Sum of input tokens. NULL if no stream reported them.
    cached_input_tokens BIGINT, -- Sum of cached input tokens.
    cache_missed_tokens BIGINT, -- Sum of cache_missed_tokens of streams.
    input_tokens_with_cache_known BIGINT, -- Input tokens of streams that reported cached ones: the denominator of the cached share.
    output_tokens BIGINT, -- Sum of output tokens.
    reasoning_tokens BIGINT, -- Sum of reasoning tokens.
    output_tokens_with_reasoning_known BIGINT, -- Output tokens of streams that reported reasoning ones: the denominator of the reasoning share.
    complete_answers BIGINT NOT NULL, -- Complete responses of a model: streams that ended ok.
    cut_answers BIGINT NOT NULL, -- Answers that ended at a limit of tokens.
    refusals BIGINT NOT NULL, -- Answers with refusal output, or ended by a refusal or a content filter.
    empty_answers BIGINT NOT NULL, -- Answers with neither text nor a tool call.
    answers_with_tools BIGINT NOT NULL, -- Answers with a tool call.
    streams_with_malformed_tools BIGINT NOT NULL, -- Answers with a tool call whose arguments are not valid JSON.
    streams_with_tools BIGINT NOT NULL, -- Counted streams with a tool call, also failed ones.
    failed_with_tools BIGINT NOT NULL, -- Of them, those with an error or a failed tool call.
    events BIGINT, -- Events with data.
    output_events BIGINT, -- Events with output.
    text_chars BIGINT, -- Characters of text.
    reasoning_chars BIGINT, -- Characters of reasoning.
    tool_calls BIGINT, -- Tool calls.
    malformed_events BIGINT,
    request_bytes BIGINT, -- Body bytes of the requests.
    response_bytes BIGINT,
    delivered_bytes BIGINT, -- Body bytes written to the clients' sockets.
    lost_bytes BIGINT, -- Body bytes that were not recorded.
    first_at TIMESTAMPTZ NOT NULL, -- Start of the first stream.
    last_at TIMESTAMPTZ NOT NULL -- Start of the last stream.
);

-- Histograms per minute, model and metric, kept for --retain-rollups. Sum counts by bucket to merge them. Quantiles are within 1 %.
CREATE TABLE IF NOT EXISTS histogram_minutes (
    minute TIMESTAMPTZ NOT NULL, gateway VARCHAR, provider VARCHAR, model VARCHAR,
    metric VARCHAR NOT NULL, -- Column of streams, or icl_ns: all gaps between output events.
    settled BOOLEAN NOT NULL, -- As in stream_minutes. p50, p95 and p99 are NULL until then.
    n BIGINT NOT NULL, -- Number of values.
    total FLOAT NOT NULL, -- Sum of the values, to seven digits.
    p50 FLOAT, -- Median, within 1 %.
    p95 FLOAT, -- 95th percentile, within 1 %.
    p99 FLOAT, -- 99th percentile, within 1 %.
    buckets SMALLINT[] NOT NULL, -- Bucket b holds values from 10^(b/$BUCKETS_PER_DECADE) up to 10^((b+1)/$BUCKETS_PER_DECADE); $ZERO_BUCKET holds 0.
    counts INTEGER[] NOT NULL -- Number of values in each bucket.
);

-- Counts of streams per minute, client and its program, kept for --retain-rollups. Rows may share a key until settled: sum them.
CREATE TABLE IF NOT EXISTS client_minutes (
    minute TIMESTAMPTZ NOT NULL,
    client_id VARCHAR, -- As in streams. _other: not among the 100 busiest of the minute.
    client_app VARCHAR, -- As in streams. _other: not among the 100 busiest of the minute.
    gateway VARCHAR, model VARCHAR, objective VARCHAR,
    settled BOOLEAN NOT NULL, -- As in stream_minutes.
    streams BIGINT NOT NULL,
    counted BIGINT NOT NULL, -- Streams without client_abort, tap_lost and refused: the denominator of the shares.
    errors BIGINT NOT NULL, -- Streams with an error outcome.
    meeting_objective BIGINT NOT NULL, -- Counted streams known to meet their objective: goodput.
    input_tokens BIGINT, cached_input_tokens BIGINT, output_tokens BIGINT
);

-- Counts of streams per minute and value of a label, kept for --retain-rollups. A stream counts once for each of its labels. Rows may share a key until settled: sum them.
CREATE TABLE IF NOT EXISTS label_minutes (
    minute TIMESTAMPTZ NOT NULL,
    label VARCHAR NOT NULL, -- Name of the label.
    value VARCHAR NOT NULL, -- Its value. _other: not among the 200 most frequent of the label in the minute.
    gateway VARCHAR, model VARCHAR,
    settled BOOLEAN NOT NULL,
    streams BIGINT NOT NULL,
    counted BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    meeting_objective BIGINT NOT NULL,
    input_tokens BIGINT, cached_input_tokens BIGINT, output_tokens BIGINT
);

$SETTINGS

-- Labels from the settings, replaced when analytics starts with other ones.
CREATE TABLE IF NOT EXISTS labels (
    name VARCHAR NOT NULL, -- Name, as in streams.labels. Unique.
    source VARCHAR NOT NULL, -- Where its value is: header:NAME, path:NUMBER, body:MEMBER or client_app.
    plain BOOLEAN NOT NULL, -- Whether values are stored as they are, if they are identifiers. Else they are keyed hashes.
    prometheus BOOLEAN NOT NULL -- Whether it has metrics of its own.
);

-- Events such as deployments, from `streamgauge mark` or POST /v1/markers. Charts show them.
CREATE TABLE IF NOT EXISTS markers (
    marked_at TIMESTAMPTZ NOT NULL, -- Time of the event.
    text VARCHAR NOT NULL, -- What happened, at most 200 characters.
    source VARCHAR NOT NULL -- Who reported it: mark, api, or the name that the sender gave.
);

-- Stalls as one tap measured them. The view stalls adds the cause gateway.
CREATE TABLE IF NOT EXISTS output_stalls (
    stream_id UUID NOT NULL, -- The stream.
    started_at TIMESTAMPTZ NOT NULL, -- Start of the stream.
    gateway VARCHAR, -- Name of the upstream.
    provider VARCHAR,
    model VARCHAR, -- Requested model, else the one in the response.
    server_instance VARCHAR,
    seq INTEGER NOT NULL, -- Event that ended the stall.
    choice SMALLINT, -- Index of the choice.
    at_ns BIGINT NOT NULL, -- ns from t0 to the output event before the stall.
    gap_ns BIGINT NOT NULL, -- Length in ns, with the parts of all parties.
    cause VARCHAR NOT NULL -- The longest part of the gap: upstream, client or tap.
);

-- Times between the first and the last output in which the tap waited for the client, or delayed the stream. The gaps do not count them.
CREATE TABLE IF NOT EXISTS output_waits (
    stream_id UUID NOT NULL,
    from_ns BIGINT NOT NULL, -- Start in ns from t0.
    until_ns BIGINT NOT NULL, -- End in ns from t0. The waits of a stream do not overlap.
    cause VARCHAR NOT NULL -- client or tap.
);

-- Stalls of outer streams that the gateway caused: the inner stream of the hop had no such gap.
CREATE TABLE IF NOT EXISTS gateway_stalls (
    stream_id UUID NOT NULL, -- The outer stream.
    seq INTEGER NOT NULL
);

$HOPS

-- Changes by the gateway: one row per difference between the outer and the inner stream of a hop.
CREATE TABLE IF NOT EXISTS hop_changes (
    outer_stream_id UUID NOT NULL, inner_stream_id UUID NOT NULL, outer_started_at TIMESTAMPTZ NOT NULL,
    what VARCHAR NOT NULL, -- What differs: model, finish_reason, output_tokens, text_chars, tool_arguments, status, error, heartbeats, done …
    outer_value VARCHAR, -- Value in the outer stream, as the client received it.
    inner_value VARCHAR -- Value in the inner stream, as the model server sent it.
);

-- One row when an alert fires, one each time it got worse, and one when it resolves.
CREATE TABLE IF NOT EXISTS alert_events (
    alert_id UUID NOT NULL, -- The alert.
    changed_at TIMESTAMPTZ NOT NULL, -- Time of the change.
    instance VARCHAR NOT NULL, -- Name of the analytics process that evaluated the rule.
    rule VARCHAR NOT NULL, -- Name of the rule.
    gateway VARCHAR, model VARCHAR,
    metric VARCHAR, -- What the rule measured, if it has several metrics.
    place VARCHAR, -- Further dimension values of an incident as JSON: client, app, tap or server.
    state VARCHAR NOT NULL, -- firing, worse or resolved.
    began_at TIMESTAMPTZ NOT NULL, -- When the condition began.
    value DOUBLE NOT NULL, -- The newest value that exceeded the limit: seconds, or a ratio.
    threshold DOUBLE NOT NULL, -- The limit of value. Of an incident: the value before it.
    message VARCHAR NOT NULL, -- What happens, as in the notification.
    stream_id UUID, -- An affected stream.
    client_id VARCHAR, -- Client of most of the affected streams, if there is one.
    severity VARCHAR NOT NULL, -- page or ticket.
    evidence VARCHAR[] NOT NULL, -- Facts about an incident, such as how streams end and what is not affected.
    not_sent VARCHAR -- Why no message was sent: a silence, or the alert whose message stands for it.
);

-- The rules of alerts that are on, as analytics evaluates them since its start.
CREATE TABLE IF NOT EXISTS alert_rules (
    rule VARCHAR NOT NULL,
    severity VARCHAR NOT NULL, -- Severity of its alerts.
    fires_when VARCHAR NOT NULL -- The condition, and the setting that changes it.
);

-- No messages about some alerts, from `streamgauge silence` or POST /v1/silences. The newest row with the same globs counts.
CREATE TABLE IF NOT EXISTS silences (
    created_at TIMESTAMPTZ NOT NULL, -- When it was stored.
    ends_at TIMESTAMPTZ NOT NULL, -- When it ends.
    rule VARCHAR NOT NULL, -- Glob of the rules.
    model VARCHAR NOT NULL, -- Glob of the models.
    gateway VARCHAR NOT NULL, -- Glob of the gateways.
    reason VARCHAR NOT NULL -- Why, at most 200 characters.
);

-- Prompts without text. One row per request: the segments that differ from those of an earlier request of its session.
CREATE TABLE IF NOT EXISTS prompt_segments (
    stream_id UUID NOT NULL,
    started_at TIMESTAMPTZ NOT NULL, -- Time of t0.
    session_id VARCHAR, -- Session of the request, as in streams.
    base_stream_id UUID, -- Earlier request whose segments are repeated. NULL: stored whole, as at least each 16th prompt of a conversation.
    differences INTEGER NOT NULL, -- Number of earlier prompts needed to read this one, back to one that is stored whole. 0: stored whole.
    kept_first INTEGER NOT NULL, -- Number of segments at its start that equal those at the start of the base.
    kept_last INTEGER NOT NULL, -- Number of segments at its end that equal those at the end of the base. Their message numbers differ by the difference of message_count.
    segments VARCHAR NOT NULL, -- JSON of each segment between them: kind, name (tool, parameter), message (-1: before them), bytes, keyed hash without cache mark, role, mark (ttl, else type).
    left_out INTEGER NOT NULL, -- Number of segments at the end that are not stored, because there are too many.
    incomplete BOOLEAN NOT NULL, -- Whether the server keeps an earlier part of the prompt that is unknown.
    segment_count INTEGER NOT NULL, -- Segments of the whole prompt.
    message_count INTEGER NOT NULL, -- Messages of the whole prompt.
    tool_set BIGINT, -- Set of its tools in prompt_tools. NULL without tools.
    calls VARCHAR[], -- Tool name of each call that it has and the earlier request has not. Empty if no model answered.
    settings_bytes BIGINT NOT NULL, -- Bytes of the model and of the parameters in the whole prompt.
    tools_bytes BIGINT NOT NULL, -- Bytes of tool definitions in the whole prompt.
    system_bytes BIGINT NOT NULL, -- Bytes of the system text in the whole prompt.
    text_bytes BIGINT NOT NULL, -- Bytes of message text in the whole prompt.
    image_bytes BIGINT NOT NULL, -- Bytes of images in the whole prompt.
    audio_bytes BIGINT NOT NULL, -- Bytes of audio in the whole prompt.
    file_bytes BIGINT NOT NULL, -- Bytes of files in the whole prompt.
    reasoning_bytes BIGINT NOT NULL, -- Bytes of reasoning in the whole prompt.
    tool_call_bytes BIGINT NOT NULL, -- Bytes of tool calls in the whole prompt.
    tool_result_bytes BIGINT NOT NULL, -- Bytes of tool results in the whole prompt.
    other_bytes BIGINT NOT NULL, -- Bytes of other segments in the whole prompt.
    seen_tokens BIGINT, -- Estimated tokens of its longest prefix that the same provider and model had read with the same key before the request began. NULL: unknown.
    kept_tokens BIGINT, -- Of seen_tokens, those of the longest prefix whose last request began within the lifetime of the cache before.
    available_tokens BIGINT, -- kept_tokens, or 0 if they are fewer than the minimum that the provider caches.
    instance_tokens BIGINT -- Of available_tokens, those that the answering server instance had read. NULL: the instance is unknown.
);

-- Tools of prompts. One row per tool of each distinct set of a session, repeated once a day.
CREATE TABLE IF NOT EXISTS prompt_tools (
    stream_id UUID NOT NULL, -- First request of the session with these tools, or the first after a day.
    tool_set BIGINT NOT NULL, -- Id of the set: the tools of a session in their order.
    position INTEGER NOT NULL, -- Position of the tool in the request, from 0.
    name VARCHAR, -- Name of the tool.
    mcp_server VARCHAR, -- MCP server of the tool, if the client writes it into the name (mcp__server__tool).
    size INTEGER NOT NULL -- Bytes of its definition.
);

-- What coding agents report themselves over OTLP: results and decisions of tools, requests with their cost, edits and compactions. No text.
CREATE TABLE IF NOT EXISTS agent_events (
    event_id VARCHAR NOT NULL, -- Hash of the report: one that is sent again is not stored again.
    occurred_at TIMESTAMPTZ NOT NULL, -- Time by the agent's clock. Of a tool or a request: its end.
    agent VARCHAR NOT NULL, -- Name of the agent, as it says: claude-code, codex_exec, gemini-cli …
    session_id VARCHAR, -- Keyed hash of the agent's session, as in streams. The view turn_events has the session of the streams.
    prompt_id VARCHAR, -- The agent's id of the prompt.
    kind VARCHAR NOT NULL, -- tool_result, tool_decision, api_request, api_error, compaction or edit.
    tool VARCHAR, -- Name of the tool.
    call_id VARCHAR, -- Id of the tool call, as in the answer of the model unless the agent made it.
    duration_ns BIGINT, -- Duration of the tool or of the request, in ns.
    success BOOLEAN, -- Whether the tool, or the compaction, succeeded.
    decision VARCHAR, -- Whether the tool may run: accept, reject, approved, denied …
    decision_source VARCHAR, -- Who decided: config, user …
    model VARCHAR, -- Model of the request.
    request_id VARCHAR, -- Request id in the response of the provider.
    response_id VARCHAR, -- Id of the response.
    input_tokens BIGINT, -- Input tokens as the agent counts them, including cached ones.
    output_tokens BIGINT, -- Output tokens as the agent counts them, including reasoning.
    cost DOUBLE, -- Cost in USD as the agent estimates it. NULL: it says none.
    lines_added BIGINT, -- Lines that edits added.
    lines_removed BIGINT, -- Lines that edits removed.
    tokens_before BIGINT, -- Tokens of the context before a compaction.
    tokens_after BIGINT, -- Tokens of the context after a compaction.
    error_type VARCHAR -- Type of the error, or the HTTP status.
);

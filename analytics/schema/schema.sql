-- Tables. Columns *_ns are nanoseconds from t0, *_at are instants. Unknown is NULL, never 0.
-- docs/explanation/measurement.md defines every number. Tables of the schema `internal` are not for readers.

CREATE SCHEMA IF NOT EXISTS internal;

CREATE TABLE IF NOT EXISTS streams (
    stream_id UUID NOT NULL,
    gateway VARCHAR, tap VARCHAR, client_id VARCHAR, server_instance VARCHAR, provider VARCHAR,
    dialect VARCHAR, operation VARCHAR, method VARCHAR, path VARCHAR,
    request_model VARCHAR, response_model VARCHAR, response_id VARCHAR, request_id VARCHAR,
    trace_id VARCHAR, span_id VARCHAR, parent_span_id VARCHAR,
    started_at TIMESTAMPTZ NOT NULL,
    http_status SMALLINT, streamed BOOLEAN,
    outcome VARCHAR NOT NULL, error_type VARCHAR, error_phase VARCHAR, error_message VARCHAR, finish_reason VARCHAR,
    client_start_ns BIGINT, connected_ns BIGINT, request_sent_ns BIGINT, headers_ns BIGINT,
    ttfb_ns BIGINT, ttfc_ns BIGINT, ttft_ns BIGINT, ttfo_ns BIGINT, ttst_ns BIGINT,
    last_output_ns BIGINT, terminator_ns BIGINT, end_ns BIGINT,
    input_tokens BIGINT, output_tokens BIGINT, reasoning_tokens BIGINT, cached_input_tokens BIGINT, token_source VARCHAR,
    itl_ns DOUBLE, icl_p50_ns DOUBLE, icl_p95_ns DOUBLE, icl_p99_ns DOUBLE, icl_max_ns BIGINT,
    stall_count INTEGER, stalled_ns BIGINT,
    tps_user DOUBLE, tps_e2e DOUBLE, burstiness DOUBLE,
    event_count BIGINT, output_event_count BIGINT, text_chars BIGINT, reasoning_chars BIGINT,
    tool_call_count INTEGER, comment_count BIGINT,
    response_bytes BIGINT, malformed_events BIGINT, lost_bytes BIGINT, delivered_bytes BIGINT,
    client_drain_ns BIGINT, delivered_ns BIGINT, aborted_after_terminal BOOLEAN,
    waited_upstream_ns BIGINT, waited_client_ns BIGINT, tap_delay_ns BIGINT,
    session_id VARCHAR, turn INTEGER,
    objective VARCHAR, meets_objective BOOLEAN,
    clock_id VARCHAR, clock_ns BIGINT, output_fingerprint VARCHAR, tool_fingerprint VARCHAR,
    server_address VARCHAR, server_port INTEGER, trace_flags SMALLINT, request_bytes BIGINT,
    choice_count INTEGER, unterminated_tail BOOLEAN, tool_failure_count INTEGER,
    malformed_tool_call_count INTEGER, refusal_chars BIGINT,
    output_text VARCHAR, reasoning_text VARCHAR,
    request_headers VARCHAR, response_headers VARCHAR
);

CREATE TABLE IF NOT EXISTS events (
    stream_id UUID NOT NULL,
    seq INTEGER NOT NULL,
    read_seq INTEGER NOT NULL,
    at_ns BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    event_name VARCHAR,
    choice SMALLINT,
    chars INTEGER,
    tokens INTEGER,
    bytes INTEGER,
    finish_reason VARCHAR
);

CREATE TABLE IF NOT EXISTS usage_reports (
    stream_id UUID NOT NULL, seq INTEGER, at_ns BIGINT,
    input_tokens BIGINT, output_tokens BIGINT, reasoning_tokens BIGINT, cached_input_tokens BIGINT,
    raw VARCHAR
);

CREATE TABLE IF NOT EXISTS server_stats (
    stream_id UUID NOT NULL, seq INTEGER, source VARCHAR NOT NULL, name VARCHAR NOT NULL,
    value DOUBLE, unit VARCHAR, raw VARCHAR
);

CREATE TABLE IF NOT EXISTS spans (
    trace_id VARCHAR NOT NULL, span_id VARCHAR NOT NULL, parent_span_id VARCHAR,
    stream_id UUID, name VARCHAR NOT NULL, kind VARCHAR NOT NULL,
    started_at TIMESTAMPTZ NOT NULL, start_ns BIGINT NOT NULL, duration_ns BIGINT NOT NULL,
    status VARCHAR NOT NULL, status_message VARCHAR, attributes VARCHAR, events VARCHAR
);

CREATE TABLE IF NOT EXISTS log_positions (
    log_id VARCHAR NOT NULL, partition VARCHAR NOT NULL,
    high BIGINT NOT NULL, low BIGINT NOT NULL, open_stream_ids VARCHAR[] NOT NULL,
    owner VARCHAR NOT NULL, version BIGINT NOT NULL, updated_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE IF NOT EXISTS taps (
    tap VARCHAR NOT NULL, tap_worker INTEGER NOT NULL, incarnation VARCHAR NOT NULL,
    started_at TIMESTAMPTZ NOT NULL, last_alive_at TIMESTAMPTZ NOT NULL, stopped BOOLEAN NOT NULL, counters VARCHAR NOT NULL
);

CREATE TABLE IF NOT EXISTS internal.counter_parts (name VARCHAR NOT NULL, value BIGINT NOT NULL);

CREATE TABLE IF NOT EXISTS losses (
    stream_id UUID, tap VARCHAR, partition VARCHAR, first_seq BIGINT, last_seq BIGINT,
    cause VARCHAR NOT NULL, bytes BIGINT, lost_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE IF NOT EXISTS dead_letters (
    set_aside_at TIMESTAMPTZ NOT NULL, log_id VARCHAR, partition VARCHAR, log_offset BIGINT, stream_id UUID,
    reason VARCHAR NOT NULL, size BIGINT NOT NULL, sha256 VARCHAR NOT NULL
);

-- Roll-ups by the minute, committed with the rows they are computed from (analytics/measures/minute_rows.py) and kept when those rows are
-- deleted. Until a minute is compacted (analytics/storage/rollup_compaction.py) several rows may share a key: sum them.

CREATE TABLE IF NOT EXISTS stream_minutes (
    minute TIMESTAMPTZ NOT NULL,
    gateway VARCHAR, provider VARCHAR, model VARCHAR, dialect VARCHAR, operation VARCHAR,
    outcome VARCHAR NOT NULL, error_phase VARCHAR, error_type VARCHAR, http_status SMALLINT,
    settled BOOLEAN NOT NULL,
    streams BIGINT NOT NULL, streams_with_output BIGINT NOT NULL, streams_with_output_tokens BIGINT NOT NULL,
    aborted_after_terminal BIGINT NOT NULL, meeting_objective BIGINT NOT NULL,
    streams_with_stalls_known BIGINT NOT NULL, stalled_streams BIGINT NOT NULL,
    stalls BIGINT, stalled_ns BIGINT, output_ns BIGINT, icl_max_ns BIGINT,
    waited_upstream_ns BIGINT, waited_client_ns BIGINT, tap_delay_ns BIGINT,
    input_tokens BIGINT, cached_input_tokens BIGINT, input_tokens_with_cache_known BIGINT,
    output_tokens BIGINT, reasoning_tokens BIGINT, output_tokens_with_reasoning_known BIGINT,
    complete_answers BIGINT NOT NULL, cut_answers BIGINT NOT NULL, refusals BIGINT NOT NULL, empty_answers BIGINT NOT NULL,
    answers_with_tools BIGINT NOT NULL, streams_with_malformed_tools BIGINT NOT NULL,
    streams_with_tools BIGINT NOT NULL, failed_with_tools BIGINT NOT NULL,
    events BIGINT, output_events BIGINT, text_chars BIGINT, reasoning_chars BIGINT, tool_calls BIGINT, malformed_events BIGINT,
    request_bytes BIGINT, response_bytes BIGINT, delivered_bytes BIGINT, lost_bytes BIGINT,
    first_at TIMESTAMPTZ NOT NULL, last_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE IF NOT EXISTS histogram_minutes (
    minute TIMESTAMPTZ NOT NULL,
    gateway VARCHAR, provider VARCHAR, model VARCHAR, metric VARCHAR NOT NULL,
    settled BOOLEAN NOT NULL,
    n BIGINT NOT NULL, total FLOAT NOT NULL, p50 FLOAT, p95 FLOAT, p99 FLOAT,
    buckets SMALLINT[] NOT NULL, counts INTEGER[] NOT NULL
);

CREATE TABLE IF NOT EXISTS client_minutes (
    minute TIMESTAMPTZ NOT NULL,
    client_id VARCHAR, gateway VARCHAR, model VARCHAR, objective VARCHAR,
    settled BOOLEAN NOT NULL,
    streams BIGINT NOT NULL, counted BIGINT NOT NULL, errors BIGINT NOT NULL, meeting_objective BIGINT NOT NULL,
    input_tokens BIGINT, cached_input_tokens BIGINT, output_tokens BIGINT
);

-- Written at the start of analytics from its settings. A stream has the first objective whose globs match it.
CREATE TABLE IF NOT EXISTS objectives (
    priority INTEGER NOT NULL, name VARCHAR NOT NULL,
    model VARCHAR NOT NULL, gateway VARCHAR NOT NULL, client VARCHAR NOT NULL,
    ttft_ns BIGINT, itl_ns BIGINT, error_rate DOUBLE, goodput DOUBLE, severity VARCHAR NOT NULL
);

-- Written at the start of analytics from the price file. The first row whose glob matches applies.
CREATE TABLE IF NOT EXISTS prices (
    priority INTEGER NOT NULL, model VARCHAR NOT NULL,
    input DOUBLE NOT NULL, cached_input DOUBLE NOT NULL, output DOUBLE NOT NULL, currency VARCHAR NOT NULL
);

-- Written at the start of analytics from its settings.
CREATE TABLE IF NOT EXISTS clients (client_id VARCHAR NOT NULL, name VARCHAR NOT NULL);

-- Events outside of the streams, such as deployments.
CREATE TABLE IF NOT EXISTS markers (marked_at TIMESTAMPTZ NOT NULL, text VARCHAR NOT NULL, source VARCHAR NOT NULL);

-- The view `stalls` has these rows, with the cause `gateway` for those in `gateway_stalls`.
CREATE TABLE IF NOT EXISTS output_stalls (
    stream_id UUID NOT NULL, started_at TIMESTAMPTZ NOT NULL,
    gateway VARCHAR, provider VARCHAR, model VARCHAR, server_instance VARCHAR,
    seq INTEGER NOT NULL, choice SMALLINT, at_ns BIGINT NOT NULL, gap_ns BIGINT NOT NULL,
    cause VARCHAR NOT NULL
);

CREATE TABLE IF NOT EXISTS output_waits (
    stream_id UUID NOT NULL, from_ns BIGINT NOT NULL, until_ns BIGINT NOT NULL, cause VARCHAR NOT NULL
);

CREATE TABLE IF NOT EXISTS gateway_stalls (stream_id UUID NOT NULL, seq INTEGER NOT NULL);

CREATE TABLE IF NOT EXISTS hops (
    outer_stream_id UUID NOT NULL, inner_stream_id UUID NOT NULL, outer_started_at TIMESTAMPTZ NOT NULL,
    outer_gateway VARCHAR, inner_gateway VARCHAR, model VARCHAR,
    matched_by VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    inner_outcome VARCHAR NOT NULL, inner_error_type VARCHAR, lost_ns BIGINT,
    gateway_before_ns BIGINT, added_ttft_ns BIGINT, added_tail_ns BIGINT,
    added_event_p50_ns BIGINT, added_event_p95_ns BIGINT, added_event_max_ns BIGINT,
    aligned_event_count BIGINT, merged_event_count BIGINT, split_event_count BIGINT, buffered_share DOUBLE,
    gateway_stall_count INTEGER,
    clock_offset_ns BIGINT, clock_error_ns BIGINT
);

CREATE TABLE IF NOT EXISTS hop_changes (
    outer_stream_id UUID NOT NULL, inner_stream_id UUID NOT NULL, outer_started_at TIMESTAMPTZ NOT NULL,
    what VARCHAR NOT NULL, outer_value VARCHAR, inner_value VARCHAR
);

-- Appended when an alert fires, gets worse or resolves. The view `alerts` has one row per alert.
CREATE TABLE IF NOT EXISTS alert_events (
    alert_id UUID NOT NULL, changed_at TIMESTAMPTZ NOT NULL, instance VARCHAR NOT NULL,
    rule VARCHAR NOT NULL, gateway VARCHAR, model VARCHAR, metric VARCHAR, place VARCHAR, state VARCHAR NOT NULL,
    began_at TIMESTAMPTZ NOT NULL, value DOUBLE NOT NULL, threshold DOUBLE NOT NULL, message VARCHAR NOT NULL,
    stream_id UUID, client_id VARCHAR, severity VARCHAR NOT NULL, evidence VARCHAR[] NOT NULL, not_sent VARCHAR
);

-- Written at the start of analytics: the rules of alerts with their limits.
CREATE TABLE IF NOT EXISTS alert_rules (rule VARCHAR NOT NULL, severity VARCHAR NOT NULL, fires_when VARCHAR NOT NULL);

-- Appended by `streamgauge silence`. The newest row with the same globs counts.
CREATE TABLE IF NOT EXISTS silences (
    created_at TIMESTAMPTZ NOT NULL, ends_at TIMESTAMPTZ NOT NULL,
    rule VARCHAR NOT NULL, model VARCHAR NOT NULL, gateway VARCHAR NOT NULL, reason VARCHAR NOT NULL
);

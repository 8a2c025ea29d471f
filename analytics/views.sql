-- The public views, made anew whenever the tables are opened. Quantiles are quantile_cont over requests; `icl` ones are
-- taken over the requests' own quantiles. `model` is what answered, else what was asked for. Minutes are of `started_at`.

CREATE OR REPLACE VIEW latency_by_minute AS
SELECT
    date_trunc('minute', started_at) AS minute,
    gateway, provider, coalesce(request_model, response_model) AS model,
    count(*) AS streams,
    count(ttft_ns) AS streams_with_output,
    quantile_cont(ttfb_ns, 0.5) AS ttfb_p50_ns,
    quantile_cont(ttft_ns, 0.5) AS ttft_p50_ns,
    quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns,
    quantile_cont(ttft_ns, 0.99) AS ttft_p99_ns,
    quantile_cont(ttfo_ns, 0.5) AS ttfo_p50_ns,
    quantile_cont(itl_ns, 0.5) AS itl_p50_ns,
    quantile_cont(itl_ns, 0.95) AS itl_p95_ns,
    quantile_cont(itl_ns, 0.99) AS itl_p99_ns,
    quantile_cont(icl_p50_ns, 0.5) AS icl_p50_ns,
    quantile_cont(icl_p95_ns, 0.95) AS icl_p95_ns,
    max(icl_max_ns) AS icl_max_ns,
    quantile_cont(end_ns, 0.5) AS end_p50_ns,
    quantile_cont(end_ns, 0.95) AS end_p95_ns,
    quantile_cont(tps_user, 0.5) AS tps_user_p50,
    quantile_cont(tps_e2e, 0.5) AS tps_e2e_p50
FROM streams AS stream
GROUP BY ALL;

CREATE OR REPLACE VIEW errors_by_minute AS
SELECT
    date_trunc('minute', started_at) AS minute,
    gateway, provider, coalesce(request_model, response_model) AS model,
    count(*) AS streams,
    count(*) FILTER (outcome = 'ok') AS ok,
    count(*) FILTER (outcome NOT IN ('ok', 'client_abort', 'tap_lost')) AS errors,
    count(*) FILTER (outcome = 'http_error') AS http_error,
    count(*) FILTER (outcome = 'connect_error') AS connect_error,
    count(*) FILTER (outcome = 'inband_error') AS inband_error,
    count(*) FILTER (outcome = 'truncated') AS truncated,
    count(*) FILTER (outcome = 'upstream_reset') AS upstream_reset,
    count(*) FILTER (outcome = 'idle_timeout') AS idle_timeout,
    count(*) FILTER (outcome = 'malformed') AS malformed,
    count(*) FILTER (outcome = 'client_abort') AS client_abort,
    count(*) FILTER (outcome = 'tap_lost') AS tap_lost,
    errors / nullif(streams - client_abort - tap_lost, 0) AS error_rate,
    count(*) FILTER (http_status = 429) AS rate_limited,
    count(*) FILTER (error_phase = 'pre_headers') AS errors_pre_headers,
    count(*) FILTER (error_phase = 'pre_first_output') AS errors_pre_first_output,
    count(*) FILTER (error_phase = 'mid_stream') AS errors_mid_stream
FROM streams AS stream
GROUP BY ALL;

CREATE OR REPLACE VIEW throughput_by_minute AS
SELECT
    date_trunc('minute', started_at) AS minute,
    gateway, provider, coalesce(request_model, response_model) AS model,
    count(*) AS streams,
    count(*) / 60.0 AS streams_per_s,
    sum(input_tokens)::BIGINT AS input_tokens,
    sum(output_tokens)::BIGINT AS output_tokens,
    sum(reasoning_tokens)::BIGINT AS reasoning_tokens,
    sum(cached_input_tokens)::BIGINT AS cached_input_tokens,
    sum(output_tokens) / 60.0 AS output_tokens_per_s,
    count(output_tokens) AS streams_with_output_tokens,
    sum(event_count)::BIGINT AS events,
    sum(output_event_count)::BIGINT AS output_events,
    sum(response_bytes)::BIGINT AS response_bytes,
    sum(delivered_bytes)::BIGINT AS delivered_bytes
FROM streams AS stream
GROUP BY ALL;

CREATE OR REPLACE VIEW slow_streams AS
WITH recent AS (
    SELECT *, coalesce(request_model, response_model) AS model
    FROM streams WHERE started_at > now() - INTERVAL 24 HOUR
), usual AS (
    SELECT gateway, model,
        quantile_cont(ttft_ns, 0.5) AS usual_ttft_ns, quantile_cont(ttft_ns, 0.95) AS ttft_limit_ns,
        quantile_cont(itl_ns, 0.5) AS usual_itl_ns, quantile_cont(itl_ns, 0.95) AS itl_limit_ns
    FROM recent GROUP BY ALL
)
SELECT
    recent.stream_id, recent.started_at, recent.gateway, recent.provider, recent.model, recent.client_id,
    recent.worker, recent.trace_id, recent.request_id, recent.outcome,
    recent.ttft_ns, usual.usual_ttft_ns, recent.itl_ns, usual.usual_itl_ns,
    recent.stall_count, recent.stalled_ns, recent.end_ns, recent.input_tokens, recent.output_tokens,
    coalesce(recent.ttft_ns > usual.ttft_limit_ns, false) AS slow_start,
    coalesce(recent.itl_ns > usual.itl_limit_ns, false) AS slow_flow
FROM recent
JOIN usual ON recent.gateway IS NOT DISTINCT FROM usual.gateway AND recent.model IS NOT DISTINCT FROM usual.model
WHERE recent.ttft_ns > usual.ttft_limit_ns OR recent.itl_ns > usual.itl_limit_ns;

CREATE OR REPLACE VIEW stalls AS
WITH stalled AS (
    SELECT stream_id, started_at, gateway, provider, coalesce(request_model, response_model) AS model, worker, icl_p50_ns
    FROM streams WHERE stall_count > 0
), gaps AS (
    SELECT events.stream_id, seq, choice, at_ns,
        lag(at_ns) OVER (PARTITION BY events.stream_id, choice ORDER BY seq) AS before_ns
    FROM events SEMI JOIN stalled ON events.stream_id = stalled.stream_id
    WHERE kind IN ('text', 'reasoning', 'refusal', 'tool_call', 'audio')
), limits AS (
    SELECT
        coalesce(max(value::DOUBLE) FILTER (key = 'stall_floor_ns'), 500e6) AS floor_ns,
        coalesce(max(value::DOUBLE) FILTER (key = 'stall_factor'), 5) AS factor
    FROM internal.meta
)
SELECT
    stalled.stream_id, stalled.started_at, stalled.gateway, stalled.provider, stalled.model, stalled.worker,
    gaps.seq, gaps.choice, gaps.before_ns AS from_ns, gaps.at_ns AS until_ns, gaps.at_ns - gaps.before_ns AS gap_ns
FROM gaps JOIN stalled ON gaps.stream_id = stalled.stream_id, limits
WHERE gaps.at_ns - gaps.before_ns > greatest(limits.floor_ns, limits.factor * stalled.icl_p50_ns);

CREATE OR REPLACE VIEW gateway_comparison AS
SELECT
    gateway, provider, coalesce(request_model, response_model) AS model,
    count(*) AS streams,
    count(*) FILTER (outcome NOT IN ('ok', 'client_abort', 'tap_lost')) AS errors,
    count(*) FILTER (outcome = 'client_abort') AS client_abort,
    count(*) FILTER (outcome = 'tap_lost') AS tap_lost,
    errors / nullif(streams - client_abort - tap_lost, 0) AS error_rate,
    quantile_cont(ttft_ns, 0.5) AS ttft_p50_ns,
    quantile_cont(ttft_ns, 0.95) AS ttft_p95_ns,
    quantile_cont(ttft_ns, 0.99) AS ttft_p99_ns,
    quantile_cont(itl_ns, 0.5) AS itl_p50_ns,
    quantile_cont(itl_ns, 0.95) AS itl_p95_ns,
    quantile_cont(end_ns, 0.5) AS end_p50_ns,
    quantile_cont(end_ns, 0.95) AS end_p95_ns,
    quantile_cont(tps_user, 0.5) AS tps_user_p50,
    quantile_cont(burstiness, 0.5) AS burstiness_p50,
    count(*) FILTER (stall_count > 0) AS stalled_streams,
    sum(output_tokens)::BIGINT AS output_tokens,
    min(started_at) AS first_at, max(started_at) AS last_at
FROM streams AS stream
WHERE started_at > now() - INTERVAL 24 HOUR
GROUP BY ALL;

COMMENT ON VIEW latency_by_minute IS
'Per minute, gateway, provider and model: quantiles of first byte, first token, inter-token latency, duration and tokens per second.';
COMMENT ON VIEW errors_by_minute IS
'Per minute, gateway, provider and model: streams by outcome; error_rate = errors / (streams - client_abort - tap_lost).';
COMMENT ON VIEW throughput_by_minute IS
'Per minute, gateway, provider and model: streams, tokens, events and bytes of the streams that started then; NULL where no stream reported.';
COMMENT ON VIEW slow_streams IS
'Streams of the last 24 hours above the 95th percentile of their gateway and model, by time to first token or by inter-token latency.';
COMMENT ON VIEW stalls IS
'One row per stall: an output gap above max(stall floor, factor x the stream''s median gap), as long as its events are kept.';
COMMENT ON VIEW gateway_comparison IS
'Gateways, providers and models side by side over the last 24 hours.';

CREATE OR REPLACE VIEW taps AS
SELECT tap, tap_worker, incarnation, started_at, last_alive_at, stopping AS stopped, counters FROM internal.taps;

CREATE OR REPLACE VIEW counters AS
SELECT name, value::BIGINT AS value FROM internal.totals;

COMMENT ON VIEW taps IS
'What each run of each tap worker last said of itself: its counters since its start, as JSON; stopped = it ended cleanly.';
COMMENT ON VIEW counters IS
'What analytics has counted since the file was made: entries, records, bytes and rows, by table; expired_* went by retention.';

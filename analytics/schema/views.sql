-- Public views. Views per minute read the roll-ups: quantiles are within 1 % of `quantile_cont` over the same streams, and those of `icl`
-- cover all gaps. `model` is the requested model, else the one in the response. Minutes are those of `started_at`.

CREATE OR REPLACE VIEW histogram_buckets AS
SELECT
    minute, gateway, provider, model, metric, bucket,
    $LOWER_BOUND AS low,
    $UPPER_BOUND AS high,
    $VALUE AS value,
    n
FROM (
    SELECT minute, gateway, provider, model, metric, unnest(buckets) AS bucket, unnest(counts) AS n FROM histogram_minutes
);

-- Minutes that are not settled: the merged histograms of each key. Quantiles are interpolated as in `quantile_cont`.
CREATE OR REPLACE VIEW internal.unsettled_histograms AS
WITH parts AS (
    SELECT minute, gateway, provider, model, metric, total,
        unnest(buckets) AS bucket, unnest(counts) AS n, generate_subscripts(buckets, 1) AS element
    FROM main.histogram_minutes WHERE minute IN (SELECT minute FROM main.histogram_minutes WHERE NOT settled)
), merged AS (
    SELECT minute, gateway, provider, model, metric, bucket, sum(n::DOUBLE) AS n, sum(CASE WHEN element = 1 THEN total END) AS total
    FROM parts GROUP BY ALL
), ranked AS (
    SELECT *, sum(n) OVER (same_key ORDER BY bucket) AS running_n, sum(n) OVER same_key AS key_n,
        $VALUE AS value
    FROM merged WINDOW same_key AS (PARTITION BY minute, gateway, provider, model, metric)
)
SELECT
    minute, gateway, provider, model, metric, n::BIGINT AS n, total,
    low50 + (high50 - low50) * (0.50::DOUBLE * (n - 1) % 1) AS p50,
    low95 + (high95 - low95) * (0.95::DOUBLE * (n - 1) % 1) AS p95,
    low99 + (high99 - low99) * (0.99::DOUBLE * (n - 1) % 1) AS p99,
    buckets, counts
FROM (
    SELECT
        minute, gateway, provider, model, metric, max(key_n) AS n, sum(total)::FLOAT AS total,
        min(value) FILTER (running_n > floor(0.50::DOUBLE * (key_n - 1))) AS low50,
        min(value) FILTER (running_n > ceil(0.50::DOUBLE * (key_n - 1))) AS high50,
        min(value) FILTER (running_n > floor(0.95::DOUBLE * (key_n - 1))) AS low95,
        min(value) FILTER (running_n > ceil(0.95::DOUBLE * (key_n - 1))) AS high95,
        min(value) FILTER (running_n > floor(0.99::DOUBLE * (key_n - 1))) AS low99,
        min(value) FILTER (running_n > ceil(0.99::DOUBLE * (key_n - 1))) AS high99,
        list(bucket ORDER BY bucket) AS buckets, list(ranked.n::INTEGER ORDER BY bucket) AS counts
    FROM ranked GROUP BY minute, gateway, provider, model, metric
);

-- Quantiles of every minute, one row per key.
CREATE OR REPLACE VIEW internal.histograms AS
SELECT minute, gateway, provider, model, metric, p50, p95, p99
FROM main.histogram_minutes WHERE settled AND minute NOT IN (SELECT minute FROM main.histogram_minutes WHERE NOT settled)
UNION ALL
SELECT minute, gateway, provider, model, metric, p50, p95, p99 FROM internal.unsettled_histograms;

CREATE OR REPLACE VIEW latency_by_minute AS
WITH parts AS (
    SELECT minute, gateway, provider, model, streams, streams_with_output, icl_max_ns,
        NULL AS metric, NULL AS p50, NULL AS p95, NULL AS p99
    FROM stream_minutes
    UNION ALL
    SELECT minute, gateway, provider, model, NULL, NULL, NULL, metric, p50, p95, p99 FROM internal.histograms
    WHERE metric IN ('ttfb_ns', 'ttft_ns', 'ttfo_ns', 'itl_ns', 'icl_ns', 'end_ns', 'tps_user', 'tps_e2e')
)
SELECT
    minute, gateway, provider, model,
    sum(streams)::BIGINT AS streams,
    sum(streams_with_output)::BIGINT AS streams_with_output,
    max(p50) FILTER (metric = 'ttfb_ns') AS ttfb_p50_ns,
    max(p50) FILTER (metric = 'ttft_ns') AS ttft_p50_ns,
    max(p95) FILTER (metric = 'ttft_ns') AS ttft_p95_ns,
    max(p99) FILTER (metric = 'ttft_ns') AS ttft_p99_ns,
    max(p50) FILTER (metric = 'ttfo_ns') AS ttfo_p50_ns,
    max(p50) FILTER (metric = 'itl_ns') AS itl_p50_ns,
    max(p95) FILTER (metric = 'itl_ns') AS itl_p95_ns,
    max(p99) FILTER (metric = 'itl_ns') AS itl_p99_ns,
    max(p50) FILTER (metric = 'icl_ns') AS icl_p50_ns,
    max(p95) FILTER (metric = 'icl_ns') AS icl_p95_ns,
    max(p99) FILTER (metric = 'icl_ns') AS icl_p99_ns,
    max(icl_max_ns) AS icl_max_ns,
    max(p50) FILTER (metric = 'end_ns') AS end_p50_ns,
    max(p95) FILTER (metric = 'end_ns') AS end_p95_ns,
    max(p50) FILTER (metric = 'tps_user') AS tps_user_p50,
    max(p50) FILTER (metric = 'tps_e2e') AS tps_e2e_p50
FROM parts GROUP BY minute, gateway, provider, model;

CREATE OR REPLACE VIEW errors_by_minute AS
SELECT
    minute, gateway, provider, model,
    sum(stream_minutes.streams)::BIGINT AS streams,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'ok'), 0)::BIGINT AS ok,
    coalesce(sum(stream_minutes.streams) FILTER ($IS_ERROR), 0)::BIGINT AS errors,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'http_error'), 0)::BIGINT AS http_error,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'connect_error'), 0)::BIGINT AS connect_error,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'inband_error'), 0)::BIGINT AS inband_error,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'truncated'), 0)::BIGINT AS truncated,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'upstream_reset'), 0)::BIGINT AS upstream_reset,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'idle_timeout'), 0)::BIGINT AS idle_timeout,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'malformed'), 0)::BIGINT AS malformed,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'client_abort'), 0)::BIGINT AS client_abort,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'tap_lost'), 0)::BIGINT AS tap_lost,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'refused'), 0)::BIGINT AS refused,
    coalesce(sum(stream_minutes.streams) FILTER ($IS_ERROR), 0)
        / sum(stream_minutes.streams) FILTER ($IS_COUNTED) AS error_rate,
    coalesce(sum(stream_minutes.streams) FILTER (http_status = 429), 0)::BIGINT AS rate_limited,
    coalesce(sum(stream_minutes.streams) FILTER (error_phase = 'pre_headers'), 0)::BIGINT AS errors_pre_headers,
    coalesce(sum(stream_minutes.streams) FILTER (error_phase = 'pre_first_output'), 0)::BIGINT AS errors_pre_first_output,
    coalesce(sum(stream_minutes.streams) FILTER (error_phase = 'mid_stream'), 0)::BIGINT AS errors_mid_stream
FROM stream_minutes GROUP BY minute, gateway, provider, model;

CREATE OR REPLACE VIEW throughput_by_minute AS
SELECT
    minute, gateway, provider, model,
    sum(parts.streams)::BIGINT AS streams,
    sum(parts.streams) / 60.0 AS streams_per_s,
    sum(parts.input_tokens)::BIGINT AS input_tokens,
    sum(parts.output_tokens)::BIGINT AS output_tokens,
    sum(parts.reasoning_tokens)::BIGINT AS reasoning_tokens,
    sum(parts.cached_input_tokens)::BIGINT AS cached_input_tokens,
    sum(parts.output_tokens) / 60.0 AS output_tokens_per_s,
    sum(parts.streams_with_output_tokens)::BIGINT AS streams_with_output_tokens,
    sum(parts.events)::BIGINT AS events,
    sum(parts.output_events)::BIGINT AS output_events,
    sum(parts.response_bytes)::BIGINT AS response_bytes,
    sum(parts.delivered_bytes)::BIGINT AS delivered_bytes
FROM stream_minutes AS parts GROUP BY minute, gateway, provider, model;

-- Not materialized: DuckDB would write all columns of all streams to read some columns of a twentieth.
CREATE OR REPLACE VIEW slow_streams AS
WITH recent AS NOT MATERIALIZED (
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
    recent.server_instance, recent.trace_id, recent.request_id, recent.outcome,
    recent.ttft_ns, usual.usual_ttft_ns, recent.itl_ns, usual.usual_itl_ns,
    recent.stall_count, recent.stalled_ns, recent.end_ns, recent.input_tokens, recent.output_tokens,
    coalesce(recent.ttft_ns > usual.ttft_limit_ns, false) AS slow_start,
    coalesce(recent.itl_ns > usual.itl_limit_ns, false) AS slow_flow
FROM recent
JOIN usual ON recent.gateway IS NOT DISTINCT FROM usual.gateway AND recent.model IS NOT DISTINCT FROM usual.model
WHERE recent.ttft_ns > usual.ttft_limit_ns OR recent.itl_ns > usual.itl_limit_ns;

CREATE OR REPLACE VIEW gateway_comparison AS
WITH merged AS (
    SELECT gateway, provider, model, metric, bucket, sum(n::DOUBLE) AS n
    FROM histogram_buckets
    WHERE minute > now() - INTERVAL 24 HOUR AND metric IN ('ttft_ns', 'itl_ns', 'end_ns', 'tps_user', 'burstiness')
    GROUP BY ALL
), ranked AS (
    SELECT gateway, provider, model, metric, $VALUE AS value,
        sum(n) OVER (same_key ORDER BY bucket) AS running_n, sum(n) OVER same_key AS key_n
    FROM merged WINDOW same_key AS (PARTITION BY gateway, provider, model, metric)
), quantiles AS (
    SELECT
        gateway, provider, model, metric,
        low50 + (high50 - low50) * (0.50::DOUBLE * (n - 1) % 1) AS p50,
        low95 + (high95 - low95) * (0.95::DOUBLE * (n - 1) % 1) AS p95,
        low99 + (high99 - low99) * (0.99::DOUBLE * (n - 1) % 1) AS p99
    FROM (
        SELECT
            gateway, provider, model, metric, max(key_n) AS n,
            min(value) FILTER (running_n > floor(0.50::DOUBLE * (key_n - 1))) AS low50,
            min(value) FILTER (running_n > ceil(0.50::DOUBLE * (key_n - 1))) AS high50,
            min(value) FILTER (running_n > floor(0.95::DOUBLE * (key_n - 1))) AS low95,
            min(value) FILTER (running_n > ceil(0.95::DOUBLE * (key_n - 1))) AS high95,
            min(value) FILTER (running_n > floor(0.99::DOUBLE * (key_n - 1))) AS low99,
            min(value) FILTER (running_n > ceil(0.99::DOUBLE * (key_n - 1))) AS high99
        FROM ranked GROUP BY gateway, provider, model, metric
    )
), parts AS (
    SELECT gateway, provider, model, streams, outcome, stalled_streams, output_tokens, first_at, last_at,
        NULL AS metric, NULL AS p50, NULL AS p95, NULL AS p99
    FROM stream_minutes WHERE minute > now() - INTERVAL 24 HOUR
    UNION ALL
    SELECT gateway, provider, model, NULL, NULL, NULL, NULL, NULL, NULL, metric, p50, p95, p99 FROM quantiles
)
SELECT
    gateway, provider, model,
    sum(parts.streams)::BIGINT AS streams,
    coalesce(sum(parts.streams) FILTER ($IS_ERROR), 0)::BIGINT AS errors,
    coalesce(sum(parts.streams) FILTER (outcome = 'client_abort'), 0)::BIGINT AS client_abort,
    coalesce(sum(parts.streams) FILTER (outcome = 'tap_lost'), 0)::BIGINT AS tap_lost,
    coalesce(sum(parts.streams) FILTER (outcome = 'refused'), 0)::BIGINT AS refused,
    coalesce(sum(parts.streams) FILTER ($IS_ERROR), 0)
        / sum(parts.streams) FILTER ($IS_COUNTED) AS error_rate,
    max(p50) FILTER (metric = 'ttft_ns') AS ttft_p50_ns,
    max(p95) FILTER (metric = 'ttft_ns') AS ttft_p95_ns,
    max(p99) FILTER (metric = 'ttft_ns') AS ttft_p99_ns,
    max(p50) FILTER (metric = 'itl_ns') AS itl_p50_ns,
    max(p95) FILTER (metric = 'itl_ns') AS itl_p95_ns,
    max(p50) FILTER (metric = 'end_ns') AS end_p50_ns,
    max(p95) FILTER (metric = 'end_ns') AS end_p95_ns,
    max(p50) FILTER (metric = 'tps_user') AS tps_user_p50,
    max(p50) FILTER (metric = 'burstiness') AS burstiness_p50,
    coalesce(sum(parts.stalled_streams), 0)::BIGINT AS stalled_streams,
    sum(parts.output_tokens)::BIGINT AS output_tokens,
    min(first_at) AS first_at, max(last_at) AS last_at
FROM parts GROUP BY gateway, provider, model;

COMMENT ON VIEW histogram_buckets IS
'Histograms per minute, one row per bucket. sum(n) by bucket merges them over any time and group; value is within 1 % of the values in the bucket.';
COMMENT ON VIEW latency_by_minute IS
'Per minute, gateway, provider and model: quantiles of TTFB, TTFT, inter-token latency, duration and tokens per second.';
COMMENT ON VIEW errors_by_minute IS
'Per minute, gateway, provider and model: streams by outcome; error_rate = errors / (streams - client_abort - tap_lost - refused).';
COMMENT ON VIEW throughput_by_minute IS
'Per minute, gateway, provider and model: streams, tokens, events and bytes of the streams that started. NULL if no stream reported a value.';
COMMENT ON VIEW slow_streams IS
'Streams of the last 24 hours above the 95th percentile of their gateway and model in time to first token or inter-token latency.';
COMMENT ON VIEW gateway_comparison IS
'Gateways, providers and models over the last 24 hours, in whole minutes.';

CREATE OR REPLACE VIEW counters AS
SELECT name, sum(value)::BIGINT AS value FROM internal.counter_parts GROUP BY name;

COMMENT ON VIEW counters IS
'Counters since the store was created: entries, records, bytes, rows by table. expired_* are rows deleted by retention.';

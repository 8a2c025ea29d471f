-- Recipes of the SQL page. docs/how-to/query.md is generated with those that it names (`make reference`).

-- name: latency_by_model
-- group: Latency
-- title: TTFT and ITL by model, last hour
-- answers: Which model starts or continues slowly?
SELECT request_model, count(*) AS streams,
       round(quantile_cont(ttft_ns, 0.5) / 1e6, 1) AS ttft_p50_ms,
       round(quantile_cont(ttft_ns, 0.95) / 1e6, 1) AS ttft_p95_ms,
       round(quantile_cont(itl_ns, 0.5) / 1e6, 2) AS itl_p50_ms
FROM streams
WHERE started_at > now() - INTERVAL 1 HOUR
GROUP BY ALL ORDER BY streams DESC;

-- name: latency_last_hour
-- group: Latency
-- title: Latency by minute, last hour
-- answers: Since when is a model slow?
SELECT minute, model, streams, ttft_p95_ns / 1e6 AS ttft_p95_ms, itl_p50_ns / 1e6 AS itl_p50_ms
FROM latency_by_minute WHERE minute > now() - INTERVAL 1 HOUR ORDER BY minute, model;

-- name: goodput_by_model
-- group: Latency
-- title: Goodput by model, last hour
-- answers: Which share of streams has TTFT ≤ 2 s and ITL ≤ 100 ms?
SELECT request_model, count(*) AS streams,
       count(*) FILTER (outcome = 'ok' AND ttft_ns <= 2e9 AND itl_ns <= 100e6) / count(*) AS met
FROM streams
WHERE started_at > now() - INTERVAL 1 HOUR AND outcome <> 'refused'
GROUP BY ALL ORDER BY met;

-- name: gaps_by_model
-- group: Latency
-- title: Gaps between chunks by model, last day
-- answers: How long are typical and rare pauses within an answer? Reads roll-ups.
WITH summed AS (
  SELECT model, bucket, value, sum(n) AS n FROM histogram_buckets
  WHERE metric = 'icl_ns' AND minute > now() - INTERVAL 1 DAY GROUP BY ALL),
ranked AS (
  SELECT *, sum(n) OVER (PARTITION BY model ORDER BY bucket) AS cumulated, sum(n) OVER (PARTITION BY model) AS gaps FROM summed)
SELECT model, max(gaps) AS gaps,
       round(min(value) FILTER (cumulated > 0.50 * (gaps - 1)) / 1e6, 2) AS p50_ms,
       round(min(value) FILTER (cumulated > 0.95 * (gaps - 1)) / 1e6, 2) AS p95_ms,
       round(min(value) FILTER (cumulated > 0.99 * (gaps - 1)) / 1e6, 2) AS p99_ms
FROM ranked GROUP BY model ORDER BY gaps DESC;

-- name: merged_quantile
-- group: Latency
-- title: TTFT percentiles by hour and model
-- answers: How do p50 and p99.9 develop over weeks? Reads roll-ups.
WITH added AS (
    SELECT date_trunc('hour', minute) AS hour, model, bucket, value, sum(n) AS n
    FROM histogram_buckets WHERE metric = 'ttft_ns' GROUP BY ALL
), ranked AS (
    SELECT *, sum(n) OVER (alike ORDER BY bucket) AS upto, sum(n) OVER alike AS many
    FROM added WINDOW alike AS (PARTITION BY hour, model)
)
SELECT hour, model, max(many) AS streams,
    min(value) FILTER (upto >= 0.50 * many) / 1e6 AS ttft_p50_ms,
    min(value) FILTER (upto >= 0.999 * many) / 1e6 AS ttft_p999_ms
FROM ranked GROUP BY ALL ORDER BY hour, model;

-- name: gap_heat_map
-- group: Latency
-- title: Distribution of gaps over time
-- answers: When did pauses become longer? Reads roll-ups.
SELECT time_bucket(INTERVAL 10 MINUTE, minute) AS ten_minutes, pow(10, floor(bucket / 12) / 10) / 1e6 AS from_ms, sum(n) AS gaps
FROM histogram_buckets WHERE metric = 'icl_ns' AND bucket > -32768 GROUP BY ALL ORDER BY ten_minutes, from_ms;

-- name: share_above_a_limit
-- group: Latency
-- title: Share of streams above a TTFT limit
-- answers: How many streams of each model wait more than 2 s?
SELECT model, sum(n) FILTER (low >= 2e9) / sum(n) AS share_above_2_s
FROM histogram_buckets WHERE metric = 'ttft_ns' GROUP BY model;

-- name: ttft_definitions
-- group: Latency
-- title: TTFT by the definitions of other tools
-- answers: How much do first chunk, first output and first answer token differ?
-- any output (ours) | first chunk, role-only included | answer only, reasoning not counted
SELECT request_model,
       round(quantile_cont(ttft_ns, 0.5) / 1e6, 1) AS ttft_p50_ms,
       round(quantile_cont(ttfc_ns, 0.5) / 1e6, 1) AS first_chunk_p50_ms,
       round(quantile_cont(ttfo_ns, 0.5) / 1e6, 1) AS first_answer_p50_ms
FROM streams GROUP BY ALL ORDER BY request_model;

-- name: error_rate_by_minute
-- group: Errors
-- title: Error rate per minute, last hour
-- answers: Since when do requests fail?
SELECT minute, sum(streams) AS streams,
       sum(errors) / nullif(sum(streams - client_abort - tap_lost - refused), 0) AS error_rate
FROM errors_by_minute WHERE minute > now() - INTERVAL 1 HOUR GROUP BY ALL ORDER BY minute;

-- name: error_types
-- group: Errors
-- title: Causes of unsuccessful streams
-- answers: Which outcomes, phases, types and HTTP statuses occur, and how often?
SELECT outcome, error_phase, error_type, http_status, sum(streams) AS streams, max(last_at) AS last_at
FROM stream_minutes WHERE outcome <> 'ok' GROUP BY ALL ORDER BY streams DESC;

-- name: aborts_by_model
-- group: Errors
-- title: Client aborts and undelivered tokens, last day
-- answers: How much output did clients not wait for?
SELECT request_model, count(*) AS streams, count(*) FILTER (outcome = 'client_abort') AS aborts,
       sum(output_tokens) FILTER (outcome = 'client_abort') AS tokens_generated,
       round(sum(output_tokens * (1 - least(delivered_bytes / nullif(response_bytes, 0), 1)))
         FILTER (outcome = 'client_abort')) AS tokens_undelivered
FROM streams
WHERE started_at > now() - INTERVAL 1 DAY
GROUP BY ALL ORDER BY aborts DESC;

-- name: tokens_by_client
-- group: Tokens and cost
-- title: Tokens by client, last day
-- answers: Who uses how many tokens?
SELECT client_id, count(*) AS requests, sum(input_tokens) AS input_tokens, sum(cached_input_tokens) AS cached,
       sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning
FROM streams
WHERE started_at > now() - INTERVAL 1 DAY
GROUP BY ALL ORDER BY output_tokens DESC NULLS LAST LIMIT 50;

-- name: tokens_by_day
-- group: Tokens and cost
-- title: Tokens by day and model
-- answers: How does the use of each model develop?
SELECT date_trunc('day', minute) AS day, model, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens
FROM throughput_by_minute GROUP BY ALL ORDER BY day, output_tokens DESC;

-- name: prompt_cache_by_hour
-- group: Tokens and cost
-- title: Prompt-cache hit rate by hour
-- answers: Does the prompt cache work, and since when not?
SELECT date_trunc('hour', minute) AS hour, gateway, model, sum(cached_input_tokens) / sum(input_tokens_with_cache_known) AS hit_share
FROM throughput_by_minute GROUP BY ALL HAVING hit_share IS NOT NULL ORDER BY hour, hit_share;

-- name: waste_by_day
-- group: Tokens and cost
-- title: Wasted tokens and their cost by day
-- answers: What do answers without use cost, and why?
SELECT date_trunc('day', started_at) AS day, model, reason, count(*) AS streams, sum(output_tokens) AS output_tokens,
    sum(input_tokens) AS input_tokens, sum(cost) AS cost, currency
FROM wasted_tokens GROUP BY ALL ORDER BY day, cost DESC NULLS LAST, output_tokens DESC NULLS LAST;

-- name: slowest_by_ttft
-- group: Single streams
-- title: Slowest streams by TTFT, last day
-- answers: Which requests waited longest?
SELECT stream_id, started_at, request_model, gateway, outcome,
       round(ttft_ns / 1e6) AS ttft_ms, round(icl_max_ns / 1e6) AS longest_gap_ms, stall_count, output_tokens
FROM streams
WHERE started_at > now() - INTERVAL 1 DAY
ORDER BY ttft_ns DESC NULLS LAST LIMIT 50;

-- name: slowest
-- group: Single streams
-- title: Streams slower than usual
-- answers: Which streams started later than usual for their model?
SELECT stream_id, started_at, model, ttft_ns / 1e6 AS ttft_ms, usual_ttft_ns / 1e6 AS usual_ms, trace_id
FROM slow_streams WHERE slow_start ORDER BY ttft_ns DESC LIMIT 20;

-- name: longest_stalls
-- group: Single streams
-- title: Longest stalls
-- answers: Which answers paused longest, and on which server?
SELECT stream_id, model, server_instance, at_ns / 1e9 AS at_s, gap_ns / 1e9 AS gap_s FROM stalls ORDER BY gap_ns DESC LIMIT 20;

-- name: longest_gaps
-- group: Single streams
-- title: Longest gaps between events
-- answers: Where in an answer are gaps above 500 ms?
WITH gaps AS (
  SELECT stream_id, seq, at_ns, at_ns - lag(at_ns) OVER (PARTITION BY stream_id, choice ORDER BY seq) AS gap_ns
  FROM events WHERE kind IN ('text', 'reasoning', 'refusal', 'tool_call', 'audio', 'image'))
SELECT stream_id, seq, round(at_ns / 1e6) AS at_ms, round(gap_ns / 1e6) AS gap_ms
FROM gaps WHERE gap_ns > 500e6
ORDER BY gap_ns DESC LIMIT 50;

-- name: timeline
-- group: Single streams
-- title: Time line of the newest stream
-- answers: Which events does the newest stream have, and when?
SELECT seq, at_ns / 1e6 AS at_ms, kind, chars, (at_ns - lag(at_ns) OVER (ORDER BY seq)) / 1e6 AS since_last_ms
FROM events WHERE stream_id = (SELECT stream_id FROM streams ORDER BY started_at DESC LIMIT 1) ORDER BY seq;

-- name: server_ttft
-- group: Servers
-- title: Server-reported and observed TTFT
-- answers: How much of the TTFT does the server itself report?
SELECT request_model, source, count(*) AS n,
       round(quantile_cont(server.queue_ns, 0.5) / 1e6, 1) AS queue_p50_ms,
       round(quantile_cont(server.ttft_ns, 0.5) / 1e6, 1) AS server_p50_ms,
       round(quantile_cont(streams.ttft_ns, 0.5) / 1e6, 1) AS observed_p50_ms
FROM streams JOIN server_timing AS server USING (stream_id)
WHERE server.ttft_ns IS NOT NULL
GROUP BY ALL ORDER BY request_model, source;

-- name: server_phases
-- group: Servers
-- title: Queue, prefill and decode by stream
-- answers: Where does the server spend the time?
SELECT stream_id, source, queue_ns / 1e6 AS queue_ms, prefill_ns / 1e6 AS prefill_ms, decode_ns / 1e6 AS decode_ms,
    (streams.ttft_ns - timing.ttft_ns) / 1e6 AS ttft_outside_server_ms, accepted_draft_tokens / draft_tokens AS drafts_accepted
FROM streams JOIN server_timing AS timing USING (stream_id) ORDER BY started_at DESC LIMIT 100;

-- name: server_statistics
-- group: Servers
-- title: Server-reported statistics
-- answers: Which measures do servers send, and how large are they?
SELECT source, name, unit, count(*) AS n, quantile_cont(value, 0.5) AS p50, quantile_cont(value, 0.95) AS p95
FROM server_stats GROUP BY ALL ORDER BY source, name LIMIT 200;

-- name: added_over_time
-- group: Gateways
-- title: Delay added by each gateway over time
-- answers: Since when does a gateway add time?
SELECT date_trunc('minute', outer_started_at) AS minute, outer_gateway, count(*) AS hops,
    quantile_cont(added_ttft_ns, 0.95) / 1e6 AS added_ttft_p95_ms, max(added_event_max_ns) / 1e6 AS longest_delay_ms
FROM hops GROUP BY ALL ORDER BY minute, outer_gateway;

-- name: share_of_the_gateway
-- group: Gateways
-- title: Share of the gateway in the TTFT
-- answers: For which models is the gateway the slow part?
SELECT model, median(added_ttft_ns / ttft_ns) AS share_of_ttft
FROM hops JOIN streams ON stream_id = outer_stream_id WHERE ttft_ns > 0 GROUP BY model ORDER BY share_of_ttft DESC;

-- name: lost_to_failed_attempts
-- group: Gateways
-- title: Time lost to failed attempts
-- answers: How much do retries of a gateway cost?
SELECT inner_gateway, inner_outcome, inner_error_type, count(*) AS attempts, sum(lost_ns) / 1e9 AS lost_s
FROM hops WHERE lost_ns IS NOT NULL GROUP BY ALL ORDER BY lost_s DESC;

-- name: changed_usage
-- group: Gateways
-- title: Usage that a gateway changed
-- answers: Which gateways report other token counts than the server?
SELECT outer_gateway, model, what, outer_value, inner_value, outer_stream_id
FROM hop_changes JOIN hops USING (outer_stream_id, inner_stream_id) WHERE what LIKE '%_tokens' ORDER BY outer_gateway, model, what;

-- name: tables
-- group: Tables
-- title: Tables and columns
-- answers: What can be queried?
SELECT table_name, column_name, data_type, comment
FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal
ORDER BY table_name, column_index;

-- name: comments
-- group: Tables
-- title: Columns of streams
-- answers: What does each column of streams mean?
SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = 'streams';

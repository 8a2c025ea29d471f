"""Example queries of the SQL page. docs/how-to/query.md has more."""

from __future__ import annotations

from analytics.schema.outcomes import IS_COUNTED, IS_ERROR

EXAMPLES: dict[str, str] = {
    "TTFT and ITL by model, last hour": """\
SELECT request_model, count(*) AS streams,
       round(quantile_cont(ttft_ns, 0.5) / 1e6, 1) AS ttft_p50_ms,
       round(quantile_cont(ttft_ns, 0.95) / 1e6, 1) AS ttft_p95_ms,
       round(quantile_cont(itl_ns, 0.5) / 1e6, 2) AS itl_p50_ms
FROM streams
WHERE started_at > now() - INTERVAL 1 HOUR
GROUP BY ALL ORDER BY streams DESC""",
    "Error rate per minute, last hour": f"""\
SELECT time_bucket(INTERVAL 1 MINUTE, started_at) AS minute, count(*) AS streams,
       count(*) FILTER ({IS_ERROR})
         / nullif(count(*) FILTER ({IS_COUNTED}), 0) AS error_rate
FROM streams
WHERE started_at > now() - INTERVAL 1 HOUR
GROUP BY ALL ORDER BY minute""",
    "Slowest streams by TTFT, last day": """\
SELECT stream_id, started_at, request_model, gateway, outcome,
       round(ttft_ns / 1e6) AS ttft_ms, round(icl_max_ns / 1e6) AS longest_gap_ms, stall_count, output_tokens
FROM streams
WHERE started_at > now() - INTERVAL 1 DAY
ORDER BY ttft_ns DESC NULLS LAST LIMIT 50""",
    "Tokens by client, last day": """\
SELECT client_id, count(*) AS requests, sum(input_tokens) AS input_tokens, sum(cached_input_tokens) AS cached,
       sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning
FROM streams
WHERE started_at > now() - INTERVAL 1 DAY
GROUP BY ALL ORDER BY output_tokens DESC NULLS LAST LIMIT 50""",
    "Longest gaps between events": """\
WITH gaps AS (
  SELECT stream_id, seq, at_ns, at_ns - lag(at_ns) OVER (PARTITION BY stream_id, choice ORDER BY seq) AS gap_ns
  FROM events WHERE kind IN ('text', 'reasoning', 'refusal', 'tool_call', 'audio'))
SELECT stream_id, seq, round(at_ns / 1e6) AS at_ms, round(gap_ns / 1e6) AS gap_ms
FROM gaps WHERE gap_ns > 500e6
ORDER BY gap_ns DESC LIMIT 50""",
    "TTFT by the definitions of other tools": """\
-- any output (ours) | first chunk, role-only included | answer only, reasoning not counted
SELECT request_model,
       round(quantile_cont(ttft_ns, 0.5) / 1e6, 1) AS ttft_p50_ms,
       round(quantile_cont(ttfc_ns, 0.5) / 1e6, 1) AS first_chunk_p50_ms,
       round(quantile_cont(ttfo_ns, 0.5) / 1e6, 1) AS first_answer_p50_ms
FROM streams GROUP BY ALL ORDER BY request_model""",
    "Server-reported statistics": """\
SELECT source, name, unit, count(*) AS n, quantile_cont(value, 0.5) AS p50, quantile_cont(value, 0.95) AS p95
FROM server_stats GROUP BY ALL ORDER BY source, name LIMIT 200""",
    "Goodput by model: TTFT ≤ 2 s and ITL ≤ 100 ms, last hour": """\
SELECT request_model, count(*) AS streams,
       count(*) FILTER (outcome = 'ok' AND ttft_ns <= 2e9 AND itl_ns <= 100e6) / count(*) AS met
FROM streams
WHERE started_at > now() - INTERVAL 1 HOUR AND outcome <> 'refused'
GROUP BY ALL ORDER BY met""",
    "Gaps between chunks by model, last day (roll-ups)": """\
WITH summed AS (
  SELECT model, bucket, value, sum(n) AS n FROM histogram_buckets
  WHERE metric = 'icl_ns' AND minute > now() - INTERVAL 1 DAY GROUP BY ALL),
ranked AS (
  SELECT *, sum(n) OVER (PARTITION BY model ORDER BY bucket) AS cumulated, sum(n) OVER (PARTITION BY model) AS gaps FROM summed)
SELECT model, max(gaps) AS gaps,
       round(min(value) FILTER (cumulated > 0.50 * (gaps - 1)) / 1e6, 2) AS p50_ms,
       round(min(value) FILTER (cumulated > 0.95 * (gaps - 1)) / 1e6, 2) AS p95_ms,
       round(min(value) FILTER (cumulated > 0.99 * (gaps - 1)) / 1e6, 2) AS p99_ms
FROM ranked GROUP BY model ORDER BY gaps DESC""",
    "Client aborts and wasted tokens, last day": """\
SELECT request_model, count(*) AS streams, count(*) FILTER (outcome = 'client_abort') AS aborts,
       sum(output_tokens) FILTER (outcome = 'client_abort') AS tokens_generated,
       round(sum(output_tokens * (1 - least(delivered_bytes / nullif(response_bytes, 0), 1)))
         FILTER (outcome = 'client_abort')) AS tokens_undelivered
FROM streams
WHERE started_at > now() - INTERVAL 1 DAY
GROUP BY ALL ORDER BY aborts DESC""",
    "Server-reported and observed TTFT": """\
SELECT request_model, source, name, count(*) AS n,
       round(quantile_cont(value, 0.5) / 1e6, 1) AS server_p50_ms,
       round(quantile_cont(ttft_ns, 0.5) / 1e6, 1) AS observed_p50_ms
FROM server_stats JOIN streams USING (stream_id)
WHERE unit = 'ns' AND (name LIKE '%first%token%' OR name LIKE '%ttft%')
GROUP BY ALL ORDER BY request_model, source""",
    "Tables and columns": """\
SELECT table_name, column_name, data_type, comment
FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal
ORDER BY table_name, column_index""",
}
"""Title → SQL."""

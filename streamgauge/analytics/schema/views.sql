-- Public views. Views per minute read the roll-ups: quantiles are within 1 % of `quantile_cont` over the same streams, and those of `icl`
-- cover all gaps. `model` is the requested model, else the one in the response. Minutes are those of `started_at`.
-- The line before a view describes it to readers: SQL clients show it as a comment.

-- Histograms per minute, one row per bucket. sum(n) by bucket merges them over any time and group; value is within 1 % of the values in the bucket.
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

-- Models beyond the busiest of a minute that is not settled. Compaction will sum them under the same name.
CREATE OR REPLACE VIEW internal.folded_models AS
SELECT minute, model FROM main.stream_minutes
WHERE minute IN (SELECT minute FROM main.stream_minutes WHERE NOT settled) AND model <> '$OTHER'
GROUP BY minute, model
QUALIFY row_number() OVER (PARTITION BY minute ORDER BY sum(streams) DESC, model) > $MOST_NAMES;

CREATE OR REPLACE VIEW internal.bounded_minutes AS
SELECT parts.* REPLACE (CASE WHEN folded.model IS NULL THEN parts.model ELSE '$OTHER' END AS model)
FROM main.stream_minutes AS parts LEFT JOIN internal.folded_models AS folded USING (minute, model);

-- Minutes that are not settled: the merged histograms of each key. Quantiles are interpolated as in `quantile_cont`.
CREATE OR REPLACE VIEW internal.unsettled_histograms AS
WITH parts AS (
    SELECT minute, gateway, provider, CASE WHEN folded.model IS NULL THEN parts.model ELSE '$OTHER' END AS model, metric, total,
        unnest(buckets) AS bucket, unnest(counts) AS n, generate_subscripts(buckets, 1) AS element
    FROM main.histogram_minutes AS parts LEFT JOIN internal.folded_models AS folded USING (minute, model)
    WHERE minute IN (SELECT minute FROM main.histogram_minutes WHERE NOT settled)
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

-- Per minute, gateway, provider and model: quantiles of TTFB, TTFT, inter-token latency, duration and tokens per second.
CREATE OR REPLACE VIEW latency_by_minute AS
WITH parts AS (
    SELECT minute, gateway, provider, model, streams, streams_with_output, icl_max_ns,
        NULL AS metric, NULL AS p50, NULL AS p95, NULL AS p99
    FROM internal.bounded_minutes
    UNION ALL
    SELECT minute, gateway, provider, model, NULL, NULL, NULL, metric, p50, p95, p99 FROM internal.histograms
    WHERE metric IN ($QUANTILE_METRICS)
)
SELECT
    minute, gateway, provider, model,
    sum(streams)::BIGINT AS streams,
    sum(streams_with_output)::BIGINT AS streams_with_output,
    max(icl_max_ns) AS icl_max_ns,
    $QUANTILES
FROM parts GROUP BY minute, gateway, provider, model;

-- Per minute, gateway, provider and model: streams by outcome; error_rate = errors / (streams - client_abort - tap_lost - refused).
CREATE OR REPLACE VIEW errors_by_minute AS
SELECT
    minute, gateway, provider, model,
    sum(stream_minutes.streams)::BIGINT AS streams,
    coalesce(sum(stream_minutes.streams) FILTER (outcome = 'ok'), 0)::BIGINT AS ok,
    coalesce(sum(stream_minutes.streams) FILTER ($IS_ERROR), 0)::BIGINT AS errors,
    $BY_OUTCOME,
    coalesce(sum(stream_minutes.streams) FILTER ($IS_ERROR), 0)
        / sum(stream_minutes.streams) FILTER ($IS_COUNTED) AS error_rate,
    coalesce(sum(stream_minutes.streams) FILTER (http_status = 429), 0)::BIGINT AS rate_limited,
    coalesce(sum(stream_minutes.streams) FILTER (error_phase = 'pre_headers'), 0)::BIGINT AS errors_pre_headers,
    coalesce(sum(stream_minutes.streams) FILTER (error_phase = 'pre_first_output'), 0)::BIGINT AS errors_pre_first_output,
    coalesce(sum(stream_minutes.streams) FILTER (error_phase = 'mid_stream'), 0)::BIGINT AS errors_mid_stream
FROM internal.bounded_minutes AS stream_minutes GROUP BY minute, gateway, provider, model;

-- Per minute, gateway, provider and model: streams, tokens, events and bytes of the streams that started. cache_hit_share: cached input / input of streams that report both.
CREATE OR REPLACE VIEW throughput_by_minute AS
SELECT
    minute, gateway, provider, model,
    sum(parts.streams)::BIGINT AS streams,
    sum(parts.streams) / 60.0 AS streams_per_s,
    sum(COLUMNS(['input_tokens', 'output_tokens', 'reasoning_tokens', 'cached_input_tokens', 'input_tokens_with_cache_known',
        'cache_missed_tokens']))::BIGINT,
    sum(parts.cached_input_tokens) / nullif(sum(parts.input_tokens_with_cache_known), 0) AS cache_hit_share,
    sum(parts.output_tokens) / 60.0 AS output_tokens_per_s,
    sum(COLUMNS(['streams_with_output_tokens', 'events', 'output_events', 'response_bytes', 'delivered_bytes']))::BIGINT
FROM internal.bounded_minutes AS parts GROUP BY minute, gateway, provider, model;

-- Per minute, gateway, provider and model: complete responses, their length, and shares that were cut, refused, empty, or had tool calls, malformed ones and failures.
CREATE OR REPLACE VIEW answers_by_minute AS
SELECT
    minute, gateway, provider, model,
    sum(parts.complete_answers)::BIGINT AS complete_answers,
    sum(parts.output_tokens) FILTER (outcome = 'ok')
        / nullif(sum(parts.streams_with_output_tokens) FILTER (outcome = 'ok'), 0) AS output_tokens_per_answer,
    sum(parts.cut_answers) / nullif(sum(parts.complete_answers), 0) AS cut_share,
    sum(parts.refusals) / nullif(sum(parts.complete_answers), 0) AS refusal_share,
    sum(parts.empty_answers) / nullif(sum(parts.complete_answers), 0) AS empty_share,
    sum(parts.answers_with_tools) / nullif(sum(parts.complete_answers), 0) AS tool_call_share,
    sum(parts.streams_with_malformed_tools) / nullif(sum(parts.answers_with_tools), 0) AS malformed_tool_share,
    sum(parts.failed_with_tools) / nullif(sum(parts.streams_with_tools), 0) AS tool_failure_share
FROM internal.bounded_minutes AS parts GROUP BY minute, gateway, provider, model;

-- Streams that clients with strict parsers reject or misread, by place and broken rule. streams / checked = share; clients: those that the rule breaks.
CREATE OR REPLACE VIEW violations AS
WITH rules(rule, dialect, clients, meaning) AS (VALUES $CLIENT_RULES),
checked AS (
    SELECT gateway, server_address AS upstream, coalesce(request_model, response_model) AS model, dialect, violations,
        started_at, stream_id
    FROM streams WHERE violations IS NOT NULL
), totals AS (SELECT gateway, upstream, model, dialect, count(*) AS checked FROM checked GROUP BY ALL),
broken AS (SELECT * EXCLUDE (violations), unnest(violations) AS rule FROM checked WHERE len(violations) > 0)
SELECT
    broken.gateway, broken.upstream, broken.model, dialect, rule, clients, meaning,
    min(started_at) AS first_seen_at, max(started_at) AS last_seen_at,
    count(*) AS streams, any_value(checked) AS checked, count(*) / any_value(checked) AS share,
    arg_max(stream_id, started_at) AS example_stream_id
FROM broken
JOIN rules USING (rule, dialect)
JOIN totals ON broken.gateway IS NOT DISTINCT FROM totals.gateway AND broken.upstream IS NOT DISTINCT FROM totals.upstream
    AND broken.model IS NOT DISTINCT FROM totals.model AND broken.dialect = totals.dialect
GROUP BY ALL;

-- Streams of the last 24 hours above the 95th percentile of their gateway and model in time to first token or inter-token latency.
CREATE OR REPLACE VIEW slow_streams AS
-- Not materialized: DuckDB would write all columns of all streams to read some columns of a twentieth.
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

-- Counters since the store was created: entries, records, bytes, rows by table. expired_* are rows deleted by retention, forgotten_* by streamgauge forget. usage_inconsistent.DIALECT.MEMBER are usage reports that contradict themselves, out_of_range.TABLE.COLUMN numbers too large for their column.
CREATE OR REPLACE VIEW counters AS
SELECT name, sum(value)::BIGINT AS value FROM internal.counter_parts GROUP BY name;

-- One row per stall, an output gap above max(stall floor, factor x the stream's median gap), with its cause: upstream, gateway, tap or client.
CREATE OR REPLACE VIEW stalls AS
SELECT
    stall.stream_id, started_at, gateway, provider, model, server_instance, stall.seq, choice, at_ns, gap_ns,
    if(by_gateway.stream_id IS NOT NULL AND cause = 'upstream', 'gateway', cause) AS cause
FROM output_stalls AS stall LEFT JOIN gateway_stalls AS by_gateway USING (stream_id, seq);

-- Bad streams by objective and minute, one row for each of its error budgets. A store may still have minutes of former objectives.
CREATE OR REPLACE VIEW internal.budget_minutes AS
SELECT objective, 'error_rate' AS indicator, error_rate AS budget, minute, client_id, gateway, model, counted, errors AS bad
FROM main.client_minutes JOIN (SELECT DISTINCT name AS objective, error_rate FROM main.objectives WHERE error_rate > 0) USING (objective)
UNION ALL
SELECT objective, 'goodput', 1 - goodput, minute, client_id, gateway, model, counted, counted - meeting_objective
FROM main.client_minutes JOIN (SELECT DISTINCT name AS objective, goodput FROM main.objectives WHERE goodput < 1) USING (objective);

-- Per objective, indicator, gateway and model: share of bad streams / error budget in the last 5 m to 3 d, and the severity if a short and a long window burn too fast.
CREATE OR REPLACE VIEW burn_rates AS
WITH windows AS (
    SELECT objective, indicator, budget, gateway, model,
        $BURN_SUMS
    FROM internal.budget_minutes WHERE minute > now() - INTERVAL 3 DAY GROUP BY ALL
), rates AS (
    SELECT *, $BURN_RATES
    FROM windows
)
SELECT
    objective, indicator, gateway, model, budget, $BURN_COLUMNS,
    CASE
        WHEN burn_1h > $FAST_BURN AND burn_5m > $FAST_BURN AND bad_1h >= $LEAST_BAD
            OR burn_6h > $SLOW_BURN AND burn_30m > $SLOW_BURN AND bad_6h >= $LEAST_BAD THEN 'page'
        -- A burn rate above 1 is likely by chance while there are few streams.
        WHEN burn_3d > $STEADY_BURN AND burn_6h > $STEADY_BURN AND bad_3d >= $LEAST_BAD
            AND bad_3d - counted_3d * budget > 3 * sqrt(counted_3d * budget) THEN 'ticket'
    END AS severity
FROM rates;

-- Per objective and indicator: the error budget and the share of it spent by the streams of the last $BUDGET_DAYS days. Above 1: the objective is missed.
CREATE OR REPLACE VIEW error_budgets AS
SELECT
    objective, indicator, any_value(budget) AS budget,
    sum(counted)::BIGINT AS counted, sum(bad)::BIGINT AS bad,
    sum(bad) / nullif(sum(counted), 0) / any_value(budget) AS spent
FROM internal.budget_minutes WHERE minute > now() - INTERVAL $BUDGET_DAYS DAY GROUP BY objective, indicator;

-- What the server reported about its processing, one row per stream, by the same names for all servers. TTFT and total start at the server.
CREATE OR REPLACE VIEW server_timing AS
-- The last report wins, and the body over the headers (seq NULL).
WITH names(source, name, meaning) AS (VALUES $SERVER_NAMES),
reported AS (
    SELECT
        stream_id, string_agg(DISTINCT source, ', ' ORDER BY source) AS source,
        $SERVER_VALUES
    FROM server_stats JOIN names USING (source, name) WHERE value BETWEEN 0 AND $MAX_VALUE GROUP BY stream_id
), phases AS (
    SELECT *,
        coalesce(own_prefill_ns, prefill_end_ns - prefill_start_ns, own_ttft_ns - queue_ns) AS prefill_ns,
        coalesce(own_ttft_ns, queue_ns + prefill_ns) AS ttft_ns
    FROM reported
)
SELECT
    stream_id, source, queue_ns,
    CASE WHEN prefill_ns >= 0 THEN prefill_ns END AS prefill_ns,
    CASE WHEN coalesce(own_decode_ns, own_total_ns - ttft_ns) >= 0 THEN coalesce(own_decode_ns, own_total_ns - ttft_ns) END AS decode_ns,
    CASE WHEN ttft_ns >= 0 THEN ttft_ns END AS ttft_ns,
    coalesce(own_total_ns, ttft_ns + own_decode_ns) AS total_ns,
    kv_cache_hit_tokens, kv_cache_hit_share, draft_tokens, accepted_draft_tokens, output_tokens
FROM phases;

-- Observed minus server-reported, last 24 hours, by minute, gateway and model: TTFT, and output tokens in the usage against those in the server statistics.
CREATE OR REPLACE VIEW server_drift AS
-- Only the last 24 hours, because these are streams and not roll-ups.
SELECT
    date_trunc('minute', started_at) AS minute, gateway, coalesce(request_model, response_model) AS model,
    count(streams.ttft_ns - timing.ttft_ns) AS streams,
    quantile_cont(streams.ttft_ns - timing.ttft_ns, 0.5) AS ttft_drift_p50_ns,
    quantile_cont(streams.ttft_ns - timing.ttft_ns, 0.95) AS ttft_drift_p95_ns,
    count(streams.output_tokens - timing.output_tokens) AS streams_with_output_tokens,
    sum(streams.output_tokens) FILTER (timing.output_tokens IS NOT NULL)::BIGINT AS observed_output_tokens,
    sum(timing.output_tokens) FILTER (streams.output_tokens IS NOT NULL)::BIGINT AS reported_output_tokens
FROM streams JOIN server_timing AS timing USING (stream_id)
WHERE started_at > now() - INTERVAL 24 HOUR
    AND (streams.ttft_ns - timing.ttft_ns IS NOT NULL OR streams.output_tokens - timing.output_tokens IS NOT NULL)
GROUP BY ALL;

-- One row per alert: the rule, where and since when it applies, its state (firing or resolved), its newest severity, the worst value, the limit, an affected stream, and why it has had no message.
CREATE OR REPLACE VIEW alerts AS
SELECT
    alert_id, any_value(rule) AS rule, any_value(gateway) AS gateway, any_value(model) AS model, any_value(metric) AS metric,
    any_value(place) AS place, arg_max(severity, changed_at) AS severity,
    if(bool_or(state = 'resolved'), 'resolved', 'firing') AS state,
    min(began_at) AS began_at,
    min(changed_at) FILTER (state = 'firing') AS fired_at,
    min(changed_at) FILTER (state = 'resolved') AS resolved_at,
    max(value) AS value, any_value(threshold) AS threshold,
    arg_min(message, changed_at) AS message, arg_min(stream_id, changed_at) AS stream_id, arg_min(client_id, changed_at) AS client_id,
    any_value(instance) AS instance, arg_max(evidence, changed_at) AS evidence,
    CASE WHEN count(*) FILTER (not_sent IS NULL AND state <> 'resolved') = 0
        THEN arg_max(not_sent, changed_at) FILTER (state <> 'resolved') END
        AS not_sent
FROM alert_events GROUP BY alert_id;

-- One row per request of a session except side calls, in order, with the pause before it (user or tool), the pause's part in which a subagent was active (subagent_ns), and the request's time that no earlier one covers (model_ns).
CREATE OR REPLACE VIEW session_turns AS
-- Requests of sessions in order, without the inner streams of hops, which repeat them. A pause is the time in which no request of the
-- session was in flight. Its kind follows from the turn, else from the tool calls of the response before it. A subagent is active
-- from the start to the end of each of its turns, whose time is counted in its own session. Their parts do not overlap.
WITH requests AS (
    SELECT session_id, parent_session_id, stream_id, client_id, client_app, gateway, coalesce(request_model, response_model) AS model,
        turn, started_at,
        $ENDED_AT AS ended_at,
        ttft_ns, end_ns, outcome, finish_reason, tool_call_count, tool_repeats, repeated_tool, input_tokens, output_tokens
    FROM streams WHERE session_id IS NOT NULL AND $IS_REQUEST AND stream_id NOT IN (SELECT inner_stream_id FROM hops)
        AND $CALLS_MODEL
    -- A response that no request continued is no session.
    QUALIFY session_id IS DISTINCT FROM response_id OR count(*) OVER (PARTITION BY session_id) > 1
), ordered AS (
    SELECT *, row_number() OVER (PARTITION BY session_id ORDER BY started_at, stream_id) AS request,
        max(ended_at) OVER earlier AS idle_since, max(turn) OVER earlier AS last_turn,
        arg_max(coalesce(tool_call_count, 0) > 0, ended_at) OVER earlier AS tools_called
    FROM requests WINDOW earlier AS (
        PARTITION BY session_id ORDER BY started_at, stream_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), paused AS (
    SELECT *, CASE WHEN started_at > idle_since THEN
        CASE WHEN turn > last_turn THEN 'user' WHEN turn = last_turn OR tools_called THEN 'tool' ELSE 'user' END END AS pause
    FROM ordered
), turns AS (
    SELECT parent_session_id, min(started_at) AS active_from, max($ENDED_AT) AS active_until
    FROM streams WHERE parent_session_id IS NOT NULL AND $IS_REQUEST AND $CALLS_MODEL GROUP BY parent_session_id, session_id, turn
), parts AS (
    SELECT parent_session_id, active_until, greatest(active_from, max(active_until) OVER (
        PARTITION BY parent_session_id ORDER BY active_from ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS active_from
    FROM turns
), subagents AS (
    SELECT parent_session_id AS session_id, list((active_from, active_until)) AS active FROM parts
    WHERE active_from < active_until GROUP BY parent_session_id
)
SELECT
    session_id, parent_session_id, request::INTEGER AS request, turn, stream_id, client_id, client_app, gateway, model, started_at,
    ended_at,
    CASE WHEN pause IS NOT NULL THEN 1000 * date_diff('microsecond', idle_since, started_at) END AS pause_ns, pause,
    CASE WHEN pause = 'tool' THEN 1000 * coalesce(list_sum(list_transform(active,
        lambda part: greatest(0, date_diff('microsecond', greatest(part[1], idle_since), least(part[2], started_at))))), 0)
    END::BIGINT AS subagent_ns,
    1000 * greatest(0, date_diff('microsecond', greatest(started_at, idle_since), ended_at)) AS model_ns,
    ttft_ns, end_ns, outcome, finish_reason, tool_call_count, tool_repeats, repeated_tool, input_tokens, output_tokens
FROM paused LEFT JOIN subagents USING (session_id);

-- One row per session. user_wait_ns + model_ns + tool_ns + subagent_ns (waits for subagents) is the time from first_at to last_at; loop: the tool that a turn called most often with the same arguments and result, from $LEAST_LOOP times on; unfinished_output_tokens are those of requests that did not end ok (see wasted_tokens for tokens without use).
CREATE OR REPLACE VIEW sessions AS
SELECT
    -- The last request has seen most of what tells the parent of an agent without a session header.
    session_id, arg_max_null(parent_session_id, started_at) AS parent_session_id, arg_min(client_id, started_at) AS client_id,
    arg_min(client_app, started_at) AS client_app,
    min(started_at) AS first_at, max(ended_at) AS last_at,
    coalesce(max(turn), 1 + count(*) FILTER (pause = 'user'))::INTEGER AS turns,
    count(*) AS requests,
    list(DISTINCT model ORDER BY model) FILTER (model IS NOT NULL) AS models,
    sum(part.input_tokens)::BIGINT AS input_tokens, sum(part.output_tokens)::BIGINT AS output_tokens,
    coalesce(sum(pause_ns) FILTER (pause = 'user'), 0)::BIGINT AS user_wait_ns,
    sum(part.model_ns)::BIGINT AS model_ns,
    coalesce(sum(pause_ns - subagent_ns), 0)::BIGINT AS tool_ns,
    coalesce(sum(subagent_ns), 0)::BIGINT AS subagent_ns,
    count(*) FILTER ($IS_ERROR) AS errors,
    CASE WHEN max(tool_repeats) >= $LEAST_LOOP THEN arg_max(repeated_tool, tool_repeats) || ' × ' || max(tool_repeats) END AS loop,
    sum(part.output_tokens) FILTER (outcome <> 'ok')::BIGINT AS unfinished_output_tokens
FROM session_turns AS part GROUP BY session_id;

-- Events of agents with the request that they belong to, its session and its turn. Of a tool: the request whose answer called it, if its id is known, else the last one of the session, or of the prompt, before the event.
CREATE OR REPLACE VIEW turn_events AS
WITH requests AS (
    SELECT stream_id, session_id, turn, request_id, response_id, started_at FROM streams
    WHERE session_id IS NOT NULL AND $IS_REQUEST AND $CALLS_MODEL AND stream_id NOT IN (SELECT inner_stream_id FROM hops)
), calls AS (
    SELECT stream_id, attributes ->> '$$."gen_ai.tool.call.id"' AS call_id FROM spans
    WHERE stream_id IS NOT NULL AND starts_with(name, 'tool call ')
), exact AS (
    -- Ids are unique in a session only, so the last one before the event counts.
    SELECT event_id, arg_max(stream_id, requests.started_at) AS stream_id FROM (
        SELECT event_id, occurred_at, stream_id FROM agent_events JOIN calls USING (call_id)
        UNION ALL SELECT event_id, occurred_at, stream_id FROM agent_events JOIN requests USING (request_id)
        UNION ALL SELECT event_id, occurred_at, stream_id FROM agent_events JOIN requests USING (response_id)
    ) JOIN requests USING (stream_id)
    WHERE requests.started_at BETWEEN occurred_at - INTERVAL 1 DAY AND occurred_at GROUP BY event_id
), known AS (
    SELECT events.session_id, prompt_id, occurred_at AS at, stream_id FROM agent_events AS events JOIN exact USING (event_id)
), found AS (
    SELECT events.*, coalesce(exact.stream_id, of_prompt.stream_id, of_session.stream_id, of_agent.stream_id) AS found_id
    FROM agent_events AS events LEFT JOIN exact USING (event_id)
    ASOF LEFT JOIN known AS of_prompt
        ON of_prompt.session_id = events.session_id AND of_prompt.prompt_id = events.prompt_id AND events.occurred_at >= of_prompt.at
    ASOF LEFT JOIN requests AS of_session ON of_session.session_id = events.session_id AND events.occurred_at >= of_session.started_at
    ASOF LEFT JOIN known AS of_agent ON of_agent.session_id = events.session_id AND events.occurred_at >= of_agent.at
)
SELECT found.* EXCLUDE (found_id) REPLACE (coalesce(requests.session_id, found.session_id) AS session_id),
    requests.stream_id, requests.turn
FROM found LEFT JOIN requests ON requests.stream_id = found_id;

-- Requests with the tokens of their cost. guessed_*: low end, estimate and high end of a count that was not reported.
CREATE OR REPLACE VIEW internal.billed_streams AS
-- Of a hop, only the inner stream counts, because the outer one has the same tokens. The caller is that of the outer one. The
-- estimates follow from requests to the same model with reported tokens.
WITH ratios AS (
    SELECT model,
        CASE WHEN count(per_byte) >= $LEAST_RATIOS THEN quantile_cont(per_byte, [0.05, 0.5, 0.95]) END AS per_byte,
        CASE WHEN count(per_char) >= $LEAST_RATIOS THEN quantile_cont(per_char, [0.05, 0.5, 0.95]) END AS per_char,
        CASE WHEN count(per_event) >= $LEAST_RATIOS THEN least(1, quantile_cont(per_event, 0.05)) END AS least_per_event
    FROM (
        SELECT coalesce(request_model, response_model) AS model, input_tokens / nullif(request_bytes, 0) AS per_byte,
            output_tokens / nullif($OUTPUT_CHARS, 0) AS per_char, output_tokens / nullif(output_event_count, 0) AS per_event
        FROM streams WHERE outcome = 'ok' AND token_source = 'usage'
    ) GROUP BY model
), callers AS (
    SELECT inner_stream_id, client.stream_id, client.client_id, client.client_app, client.session_id, client.labels
    FROM hops JOIN streams AS client ON client.stream_id = outer_stream_id
), reports AS (
    SELECT response_id, arg_min(stream_id, {'is_running': coalesce(token_source = 'usage_delta', false), 'at': started_at}) AS first_final
    FROM streams
    WHERE response_id IN (SELECT response_id FROM streams WHERE $BRINGS_AGAIN) AND $HAS_REPORT
        AND stream_id NOT IN (SELECT outer_stream_id FROM hops)
    GROUP BY response_id
), counted AS (
    SELECT streams.*, callers.stream_id AS outer_stream_id, callers.client_id AS outer_client_id, callers.client_app AS outer_client_app,
        callers.session_id AS outer_session_id, callers.labels AS outer_labels, coalesce(request_model, response_model) AS model,
        CASE WHEN $IS_FREE_REFUSAL THEN false WHEN first_final IS NOT NULL THEN streams.stream_id = first_final WHEN $BRINGS_AGAIN THEN false
            WHEN $HAS_REPORT THEN output_tokens IS NOT NULL OR NOT $IS_MEDIA ELSE $CAN_ESTIMATE END AS is_billed
    FROM streams LEFT JOIN callers ON inner_stream_id = streams.stream_id LEFT JOIN reports USING (response_id)
    WHERE $IS_REQUEST AND $TO_MODEL AND operation IS DISTINCT FROM '$COUNT_TOKENS'
        AND streams.stream_id NOT IN (SELECT outer_stream_id FROM hops)
)
SELECT counted.*,
    CASE WHEN is_billed AND coalesce(billed_input_tokens, input_tokens) IS NULL AND request_bytes > 0 THEN
        list_transform(coalesce(per_byte, $TOKENS_PER_BYTE), lambda ratio: ceil(ratio * request_bytes)) END AS guessed_input,
    CASE WHEN NOT is_billed OR coalesce(output_event_count, 0) = 0
            OR coalesce(billed_output_tokens, output_tokens) IS NOT NULL AND coalesce(NOT ($IS_STALE), true) THEN NULL
        -- An event has at least a token, unless reports of the model show less. A running count is the least, too.
        WHEN $OUTPUT_CHARS > 0 THEN list_transform(coalesce(per_char, $TOKENS_PER_CHAR), lambda ratio: ceil(greatest(
            ratio * ($OUTPUT_CHARS), coalesce(least_per_event, 1) * output_event_count, output_tokens)))
        ELSE list_transform($TOKENS_PER_EVENT, lambda tokens: greatest(tokens * output_event_count, output_tokens)) END AS guessed_output
FROM counted LEFT JOIN ratios USING (model);

-- The prices, and that of OpenRouter's free models, which applies unless a price names them.
CREATE OR REPLACE VIEW internal.price_list AS
SELECT * FROM prices
UNION ALL BY NAME SELECT $FREE_PRIORITY AS priority, '*:free' AS model, $FREE_RATES, currency FROM prices WHERE priority = 0;

CREATE OR REPLACE VIEW internal.price_rules AS
SELECT model AS model_glob, contains(model, '*') OR contains(model, '?') AS is_glob, source, {
    'priority': priority, 'above': above, 'valid_from': valid_from, 'valid_until': valid_until,
    'service_tier': service_tier, 'speed': speed, 'inference_region': inference_region} AS rule
FROM internal.price_list;

-- Estimated cost of each request by the price list: amounts by kind of token, and their sum `total` in `currency`. source: of the token counts; estimate: not all were reported; usage_inconsistent: the report contradicts itself. Then total lies between low and high. NULL: no price, or not billed as far as known. cache_missed: how much more cache_missed_tokens cost than cached input. reported_cost: in USD as the provider reports it. reported_difference: reported_cost less total.
CREATE OR REPLACE VIEW spend AS
WITH candidates AS (
    SELECT *, (
        -- Names of the requested model come before those of the response. The name of a deployment may be that of another model, so
        -- prices of a catalog need the response there. A free variant that another model answers has the price of that model.
        WITH spelled AS (SELECT $REQUEST_SPELLINGS AS asked, $RESPONSE_SPELLINGS AS answered, $OTHER_SPELLINGS AS other,
            ends_with(request_model, ':free') AS asks_free, ends_with(response_model, ':free') AS answers_free
        ), names AS (
            SELECT name, is_other, min(place) AS place FROM (
                SELECT unnest(asked) || if(asks_free, ':free', '') AS name, generate_subscripts(asked, 1) AS place, false AS is_other
                FROM spelled WHERE NOT asks_free OR answered[1] IS NULL OR list_has_any(asked, answered)
                UNION ALL
                SELECT unnest(answered) || if(answers_free, ':free', ''), 100 + generate_subscripts(answered, 1), false FROM spelled
                UNION ALL
                SELECT unnest(other), generate_subscripts(other, 1), true FROM spelled
            ) GROUP BY ALL
        ), found AS (
            SELECT names.*, rules.* FROM names JOIN internal.price_rules AS rules ON name = model_glob WHERE NOT is_glob
            UNION ALL
            SELECT names.*, rules.* FROM names JOIN internal.price_rules AS rules ON name GLOB model_glob
            WHERE is_glob AND (NOT ends_with(name, ':free') OR ends_with(model_glob, ':free'))
        )
        SELECT {'own': list(rule ORDER BY place + CASE WHEN rule.priority = $FREE_PRIORITY THEN 50
                WHEN place < 100 AND source IS NOT NULL AND billed.provider = 'azure.ai.openai' THEN 200 ELSE 0 END, rule.priority)
                FILTER (NOT is_other),
            'other': list(rule ORDER BY place, rule.priority) FILTER (is_other)}
        FROM found) AS rules
    FROM internal.billed_streams AS billed
), parts AS (
    SELECT * REPLACE (
            coalesce(input_tokens, billed_input_tokens, guessed_input[2]::BIGINT) AS input_tokens,
            coalesce(guessed_output[2]::BIGINT, output_tokens, billed_output_tokens) AS output_tokens),
        coalesce(other_input_tokens, other_output_tokens, 0) > 0 AS has_other,
        coalesce(other_cached_input_tokens, 0) AS other_cached,
        coalesce(other_cache_write_tokens, 0) AS other_written,
        coalesce(other_cache_write_1h_tokens, 0) AS other_written_1h,
        coalesce(other_input_tokens, 0) - other_cached - other_written AS other_text_in,
        coalesce(other_output_tokens, 0) AS other_out,
        -- Parts are those of the reported tokens, not of billed ones.
        coalesce(billed_input_tokens, input_tokens, guessed_input[2], 0) - coalesce(other_input_tokens, 0) AS all_input,
        billed_input_tokens IS NULL AND input_tokens IS NOT NULL AS has_parts,
        if(has_parts, coalesce(cached_input_tokens, 0), 0) - other_cached AS cached,
        if(has_parts, coalesce(cached_audio_tokens, 0), 0) AS cached_audio,
        if(has_parts, coalesce(cached_image_tokens, 0), 0) AS cached_image,
        if(has_parts, coalesce(cache_write_tokens, 0), 0) - other_written AS written,
        if(has_parts, coalesce(cache_write_1h_tokens, 0), 0) - other_written_1h AS written_1h,
        if(has_parts, coalesce(input_audio_tokens, cached_audio), 0) AS audio,
        if(has_parts, coalesce(input_image_tokens, cached_image), 0) AS image,
        cached + written <= all_input AND audio + image <= all_input AND written_1h <= written AND cached_audio + cached_image <= cached
            AND cached_audio <= audio AND cached_image <= image AS input_fits,
        all_input - if(input_fits, cached + written, 0) AS fresh,
        -- What is in the cache, or goes there, may be audio or an image that is not reported as such.
        if(input_fits, least(audio - cached_audio, fresh), greatest(audio - cached_audio, 0)) AS audio_in,
        if(input_fits, least(image - cached_image, fresh - audio_in), greatest(image - cached_image, 0)) AS image_in,
        if(input_fits, fresh - audio_in - image_in, all_input) AS text_in,
        coalesce(guessed_output[2], billed_output_tokens, output_tokens, 0) - other_out AS all_output,
        billed_output_tokens IS NULL AND guessed_output IS NULL AND output_tokens IS NOT NULL AS has_output_parts,
        if(has_output_parts AND NOT has_other, coalesce(reasoning_tokens, 0), 0) AS reasoned,
        if(has_output_parts, coalesce(output_audio_tokens, 0), 0) AS audio_out,
        if(has_output_parts, coalesce(output_image_tokens, 0), 0) AS image_out,
        reasoned + audio_out + image_out <= all_output AS output_fits,
        all_output - if(output_fits, reasoned + audio_out + image_out, 0) AS text_out,
        token_source IS NOT DISTINCT FROM 'usage_inconsistent' AS contradicts,
        CASE WHEN is_billed THEN list_filter(rules.own, lambda rule: coalesce(all_input > rule.above, true) AND $APPLIES)[1].priority
        END AS price_priority,
        CASE WHEN NOT has_other THEN price_priority
            ELSE list_filter(rules.other, lambda rule: coalesce(other_input_tokens > rule.above, true) AND $APPLIES)[1].priority
        END AS other_priority
    FROM candidates
), amounts AS (
    SELECT parts.*, price, other.currency,
        (text_in * price.input + other_text_in * other.input) / 1e6 AS input,
        (greatest(cached - cached_audio, 0) * price.cached_input + cached_audio * price.cached_audio
            + other_cached * other.cached_input) / 1e6
            AS cached_input,
        (greatest(written - written_1h, 0) * price.cache_write_5m
            + greatest(other_written - other_written_1h, 0) * other.cache_write_5m) / 1e6
            AS cache_write_5m,
        (written_1h * price.cache_write_1h + other_written_1h * other.cache_write_1h) / 1e6 AS cache_write_1h,
        audio_in * price.input_audio / 1e6 AS input_audio,
        image_in * price.input_image / 1e6 AS input_image,
        (text_out * price.output + other_out * other.output) / 1e6 AS output,
        reasoned * price.reasoning / 1e6 AS reasoning,
        audio_out * price.output_audio / 1e6 AS output_audio,
        image_out * price.output_image / 1e6 AS output_image,
        coalesce(web_searches, 0) * price.web_search / 1e3 AS web_searches_cost,
        $INPUT_AMOUNT AS input_total,
        $OUTPUT_AMOUNT AS output_total,
        input_total + output_total AS total,
        -- Guessed input may be read from a cache, or written to it. Parts of a report that contradicts itself may be in the whole, or beside it.
        -- What its total has beyond its parts may be input or output.
        total - coalesce(guessed_input[2] * price.input - guessed_input[1] * least(price.input, price.cached_input), 0) / 1e6
            - coalesce((guessed_output[2] - guessed_output[1]) * price.output, 0) / 1e6
            - if(input_fits, 0, least(all_input, cached + written + audio_in + image_in) * price.input) / 1e6
            - if(output_fits, 0, least(all_output, reasoned + audio_out + image_out) * price.output) / 1e6
            - least(total, coalesce(greatest(-unexplained_tokens, 0) * greatest(price.input, price.output), 0) / 1e6) AS low,
        total + coalesce(guessed_input[3] * greatest(price.input, price.cache_write_5m) - guessed_input[2] * price.input, 0) / 1e6
            + coalesce((guessed_output[3] - guessed_output[2]) * greatest(price.output, price.reasoning), 0) / 1e6
            + if(contradicts, (all_input - text_in) * price.input + (all_output - text_out) * price.output, 0) / 1e6
            + coalesce(greatest(unexplained_tokens, 0) * greatest(price.input, price.output, price.reasoning), 0) / 1e6 AS high,
        (cached * price.input + other_cached * other.input) / 1e6 - cached_input AS cache_saved,
        cache_write_5m + cache_write_1h - (written * price.input + other_written * other.input) / 1e6 AS cache_premium,
        -- If the report counts cache writes, the missed tokens are written to the cache again.
        cache_missed_tokens * (if(written > 0, if(written_1h > 0, price.cache_write_1h, price.cache_write_5m), price.input)
            - price.cached_input) / 1e6 AS cache_missed
    -- As a struct, because the amounts have the names of the prices.
    FROM parts LEFT JOIN (SELECT price_list AS price FROM internal.price_list) ON price.priority = price_priority
        LEFT JOIN (SELECT price_list AS other FROM internal.price_list) ON other.priority = other_priority
            AND other.currency = price.currency
)
SELECT
    stream_id, coalesce(outer_stream_id, stream_id) AS client_stream_id, started_at, gateway, provider, model, request_model,
    response_model,
    if(outer_stream_id IS NULL, client_id, outer_client_id) AS client_id,
    if(outer_stream_id IS NULL, client_app, outer_client_app) AS client_app,
    if(outer_stream_id IS NULL, session_id, outer_session_id) AS session_id, if(outer_stream_id IS NULL, labels, outer_labels) AS labels,
    operation, outcome,
    input_tokens, cached_input_tokens, cache_write_tokens, cache_write_1h_tokens, output_tokens, reasoning_tokens,
    input, cached_input, cache_write_5m, cache_write_1h, input_audio, input_image, output, reasoning, output_audio, output_image,
    web_searches_cost AS web_searches, input_total, output_total, total, low, high, currency,
    CASE WHEN NOT is_billed THEN NULL WHEN contradicts OR NOT input_fits OR NOT output_fits THEN 'usage_inconsistent'
        WHEN coalesce(guessed_input, guessed_output) IS NOT NULL THEN 'estimate' ELSE token_source END AS source,
    cache_saved, cache_premium, cache_missed, cache_missed_tokens, cache_miss_reason, cache_miss_segment,
    CASE WHEN is_billed THEN amounts.reported_cost END AS reported_cost,
    CASE WHEN currency = 'USD' AND is_billed THEN amounts.reported_cost - total END AS reported_difference,
    CASE WHEN is_billed AND currency IS NULL THEN coalesce(if(price IS NULL, model, other_model), '(no model)') END AS unpriced_model
FROM amounts;

-- Per hour, gateway, model, client, its program and currency: requests, tokens and amounts of the view spend.
CREATE OR REPLACE VIEW spend_by_hour AS
SELECT
    date_trunc('hour', started_at) AS hour, gateway, provider, model, client_id, client_app, currency,
    count(*) AS requests, count(*) FILTER (outcome = 'ok') AS ok, count(*) FILTER (source = 'estimate') AS estimated,
    sum(COLUMNS(['input_tokens', 'cached_input_tokens', 'cache_write_tokens', 'cache_write_1h_tokens', 'output_tokens',
        'reasoning_tokens']))::BIGINT,
    sum(COLUMNS(['input', 'cached_input', 'cache_write_5m', 'cache_write_1h', 'input_audio', 'input_image', 'output', 'reasoning',
        'output_audio', 'output_image', 'web_searches', 'total', 'low', 'high', 'cache_saved', 'cache_premium', 'cache_missed',
        'reported_cost', 'reported_difference']))
FROM spend GROUP BY ALL;

-- Budgets in their current period: spend so far with its range, burn rates (spend in the last 5 m to 6 h / the budget's mean rate), and the forecast of the whole period with its range for 90 %. Amounts are in the budget's currency. reasons (spent, burn, forecast) and severity: if it needs attention.
CREATE OR REPLACE VIEW budget_spend AS
-- Days are counted back from now, so that their first hours are those that come next. A quarter of an hour is the longest time that
-- divides the offsets of all time zones.
WITH periods AS (
    SELECT *, date_trunc(period, timezone(time_zone, now())) AS local_begin, timezone(time_zone, local_begin) AS began_at,
        timezone(time_zone, local_begin + ('1 ' || period)::INTERVAL) AS ends_at,
        (epoch(ends_at) - epoch(now()))::BIGINT AS rest_s, rest_s // 86400 AS rest_days, rest_s % 86400 AS rest_of_day_s
    FROM budgets
), labelled AS (
    -- Which of the budgets' labels a request has: labels themselves may have too many values for groups.
    SELECT spend.*, list_filter(wanted, lambda text: labels[split_part(text, '=', 1)] GLOB substr(text, strpos(text, '=') + 1))
        AS met_labels
    FROM spend, (SELECT list(DISTINCT label) AS wanted FROM budgets WHERE label IS NOT NULL)
), quarters AS (
    SELECT time_bucket(INTERVAL 15 MINUTE, started_at) AS quarter,
        (epoch(time_bucket(INTERVAL 15 MINUTE, now())) - epoch(quarter))::BIGINT AS age_s,
        model, gateway, client_id, met_labels, currency, sum(total) AS total, sum(low) AS low, sum(high) AS high,
        sum(total) FILTER (source = 'estimate') AS estimated, count(*) FILTER (source IS NOT NULL) AS requests,
        sum(total) FILTER (started_at > now() - INTERVAL 5 MINUTE) AS last_5m,
        sum(total) FILTER (started_at > now() - INTERVAL 30 MINUTE) AS last_30m,
        sum(total) FILTER (started_at > now() - INTERVAL 1 HOUR) AS last_1h,
        sum(total) FILTER (started_at > now() - INTERVAL 6 HOUR) AS last_6h
    FROM labelled WHERE started_at > now() - INTERVAL $SPENT_DAYS DAY GROUP BY ALL
), matched AS (
    SELECT quarters.* EXCLUDE (model, gateway, currency), priority, quarter >= began_at AS is_now, rest_of_day_s,
        quarters.currency IS NOT DISTINCT FROM periods.currency AS counts, (age_s - 1) // 86400 AS day
    FROM quarters LEFT JOIN clients USING (client_id) JOIN periods
        ON coalesce(quarters.model, '') GLOB periods.model AND coalesce(quarters.gateway, '') GLOB periods.gateway
        AND (coalesce(client_id, '') GLOB periods.client OR clients.name GLOB periods.client)
        AND (periods.label IS NULL OR list_contains(met_labels, periods.label))
), sums AS (
    SELECT priority, sum(COLUMNS(['total', 'low', 'high', 'estimated'])) FILTER (is_now AND counts),
        sum(COLUMNS(['last_5m', 'last_30m', 'last_1h', 'last_6h'])) FILTER (counts),
        sum(requests) FILTER (is_now AND NOT counts) AS not_counted
    FROM matched GROUP BY priority
), history AS (
    SELECT if(days < 7, days, days - days % 7) AS days
    FROM (SELECT least($HISTORY_DAYS, max(age_s) // 86400) AS days FROM quarters)
), daily AS (
    SELECT priority, day, sum(total) AS spent_in_day, sum(total) FILTER ((day + 1) * 86400 - age_s < rest_of_day_s) AS spent_in_rest
    FROM matched WHERE counts AND age_s > 0 AND day < (SELECT days FROM history) GROUP BY ALL
), usual AS (
    -- Days without spend have no row.
    SELECT priority, any_value(days) AS days, sum(spent_in_day) / any_value(days) AS mean_day,
        coalesce(sum(spent_in_rest), 0) / any_value(days) AS mean_rest,
        greatest(0, sum(spent_in_day ** 2) - any_value(days) * mean_day ** 2) / (any_value(days) - 1) AS variance_day,
        greatest(0, coalesce(sum(spent_in_rest ** 2), 0) - any_value(days) * mean_rest ** 2) / (any_value(days) - 1) AS variance_rest
    FROM daily, history WHERE days >= $LEAST_DAYS GROUP BY priority
), results AS (
    SELECT periods.*, coalesce(total, 0) AS spent, coalesce(low, 0) AS spent_low, coalesce(high, 0) AS spent_high,
        coalesce(estimated, 0) / nullif(spent, 0) AS estimated_share, coalesce(not_counted, 0)::BIGINT AS not_counted,
        amount / (epoch(ends_at) - epoch(began_at)) AS rate,
        coalesce(last_5m, 0) / 300 / rate AS burn_5m, coalesce(last_30m, 0) / 1800 / rate AS burn_30m,
        coalesce(last_1h, 0) / 3600 / rate AS burn_1h, coalesce(last_6h, 0) / 21600 / rate AS burn_6h,
        CASE WHEN (SELECT days FROM history) >= $LEAST_DAYS THEN coalesce(mean_rest + rest_days * mean_day, 0) END AS rest,
        -- The 95 % quantile of Student's t distribution, to the second order: few days are no good measure of how days differ.
        (1.645 + 1.524 / (days - 1) + 1.42 / (days - 1) ** 2)
            * sqrt(variance_rest * (1 + 1 / days) + variance_day * (rest_days + rest_days ** 2 / days)) AS margin
    FROM periods LEFT JOIN sums USING (priority) LEFT JOIN usual USING (priority)
), forecasts AS (
    SELECT *, spent + rest AS forecast, if(rest >= 0, spent_low + greatest(0, rest - coalesce(margin, 0)), NULL) AS forecast_low,
        spent_high + rest + coalesce(margin, 0) AS forecast_high,
        CASE WHEN spent >= amount THEN ['spent'] ELSE list_filter([
            CASE WHEN burn_1h > $FAST_BURN AND burn_5m > $FAST_BURN OR burn_6h > $SLOW_BURN AND burn_30m > $SLOW_BURN THEN 'burn' END,
            CASE WHEN forecast_low > amount THEN 'forecast' END], lambda reason: reason IS NOT NULL) END AS reasons
    FROM results
)
SELECT name, model, gateway, client, label, period, time_zone, began_at, ends_at, amount, currency, spent, spent_low, spent_high,
    estimated_share,
    not_counted, burn_5m, burn_30m, burn_1h, burn_6h, forecast, forecast_low, forecast_high, reasons,
    CASE WHEN reasons = [] OR severity = 'none' THEN NULL WHEN reasons = ['forecast'] THEN 'ticket' ELSE severity END AS severity
FROM forecasts ORDER BY priority;

-- Requests that wrote to the prompt cache, and whether a later request of the same session (else client) and model read from a cache in time. NULL: it still may.
CREATE OR REPLACE VIEW cache_writes AS
WITH uses AS (
    SELECT stream_id, started_at, cache_write_tokens, cache_write_1h_tokens,
        started_at + if(cache_write_1h_tokens > 0, INTERVAL 1 HOUR, INTERVAL 5 MINUTE) AS kept_until,
        min(CASE WHEN cached_input_tokens > 0 THEN started_at END) OVER (
            PARTITION BY coalesce(session_id, client_id), coalesce(request_model, response_model)
            ORDER BY started_at, stream_id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS read_at
    FROM streams WHERE cached_input_tokens > 0 OR cache_write_tokens > 0
)
SELECT stream_id, started_at, cache_write_tokens, cache_write_1h_tokens, read_at,
    CASE WHEN read_at < kept_until THEN true WHEN kept_until < now() THEN false END AS read_again
FROM uses WHERE cache_write_tokens > 0;

-- Sizes of prompts without side calls and inner streams of hops, and their tokens per byte of text: reported, else the median of the model.
CREATE OR REPLACE VIEW internal.prompt_sizes AS
WITH sizes AS (
    SELECT stream_id, started_at, streams.session_id, turn, gateway, coalesce(request_model, response_model) AS model, input_tokens,
        tool_set, COLUMNS('.*_bytes'), $WEIGHTED_BYTES AS weighted_bytes,
        input_tokens / nullif(weighted_bytes, 0) AS ratio
    FROM (SELECT stream_id, started_at, tool_set, COLUMNS('.*_bytes') FROM prompt_segments)
    JOIN (
        SELECT stream_id, started_at, session_id, turn, gateway, request_model, response_model, input_tokens FROM streams WHERE $CALLS_MODEL
    ) AS streams USING (stream_id, started_at)
    WHERE stream_id NOT IN (SELECT inner_stream_id FROM hops)
)
SELECT sizes.*, coalesce(ratio, usual, $TOKENS_PER_PROMPT_BYTE) AS tokens_per_byte
FROM sizes LEFT JOIN (SELECT model, median(ratio) AS usual FROM sizes GROUP BY model) USING (model);

-- What fills the context. One row per request (side calls omitted) and part of its prompt: tools, system, history, tool results, images, files. Reported input tokens are divided among the parts by bytes; images and files weigh less than text. Without reported tokens: bytes times the median tokens per byte of the model.
CREATE OR REPLACE VIEW context_parts AS
SELECT stream_id, started_at, session_id, turn, gateway, model, part.part, part.bytes::BIGINT AS bytes,
    round(part.weight * part.bytes * tokens_per_byte)::BIGINT AS tokens
FROM (SELECT *, unnest([$PARTS_OF_PROMPT]) AS part FROM internal.prompt_sizes) WHERE part.bytes > 0;

-- Tools in the prompts. One row per session, model and tool: its MCP server, how many requests carry it, the sum of its bytes and estimated tokens over them, and how often the session called it.
CREATE OR REPLACE VIEW context_tools AS
WITH calls AS (
    SELECT session_id, name, count(*) AS calls FROM (SELECT session_id, unnest(calls) AS name FROM prompt_segments) GROUP BY ALL
), carried AS (
    SELECT session_id, model, tools.name, mcp_server, count(*) AS requests, sum(size)::BIGINT AS bytes,
        round(sum(size * tokens_per_byte))::BIGINT AS tokens, min(started_at) AS first_at, max(started_at) AS last_at
    FROM internal.prompt_sizes JOIN (SELECT DISTINCT tool_set, position, name, mcp_server, size FROM prompt_tools) AS tools
        USING (tool_set)
    GROUP BY ALL
)
SELECT carried.*, coalesce(calls, 0) AS calls
FROM carried LEFT JOIN calls ON carried.session_id IS NOT DISTINCT FROM calls.session_id AND carried.name = calls.name;

-- Reuse of prompts. One row per request with reported tokens and a known prompt: tokens that a prompt cache could have had (available_tokens), tokens read from it (delivered_tokens), and tokens lost because they expired, are too few, were read by another instance, follow a change, or for another reason.
CREATE OR REPLACE VIEW prompt_reuse AS
-- The parts do not overlap. Of a hop, only the inner stream counts: the outer one has the same prompt.
WITH prompts AS (
    SELECT streams.*, coalesce(request_model, response_model) AS model, seen_tokens, kept_tokens, available_tokens, instance_tokens,
        cached_input_tokens AS delivered_tokens, delivered_tokens IS NOT NULL AS is_known,
        cache_miss_reason LIKE '%_changed' AND cache_miss_reason <> 'marker_changed' AS has_changed
    FROM prompt_segments JOIN streams USING (stream_id, started_at)
    WHERE seen_tokens IS NOT NULL AND stream_id NOT IN (SELECT outer_stream_id FROM hops)
)
SELECT
    stream_id, started_at, gateway, provider, model, client_id, session_id, server_instance,
    input_tokens, seen_tokens, available_tokens, delivered_tokens,
    if(is_known, greatest(0, seen_tokens - greatest(kept_tokens, delivered_tokens)), NULL) AS lost_expired_tokens,
    if(is_known, greatest(0, kept_tokens - greatest(available_tokens, delivered_tokens)), NULL) AS lost_short_tokens,
    if(is_known AND instance_tokens IS NOT NULL, greatest(0, available_tokens - greatest(instance_tokens, delivered_tokens)), NULL)
        AS lost_instance_tokens,
    if(is_known, if(has_changed, greatest(0, least(delivered_tokens + coalesce(cache_missed_tokens, 0), input_tokens)
        - greatest(seen_tokens, delivered_tokens)), 0), NULL) AS lost_changed_tokens,
    if(is_known, greatest(0, coalesce(instance_tokens, available_tokens) - delivered_tokens), NULL) AS lost_other_tokens
FROM prompts;

-- Tokens without use, one row per stream: failed attempts, repeated requests, clients that disconnected, errors after output.
CREATE OR REPLACE VIEW wasted_tokens AS
-- Each stream has one reason, the first that applies, so that a token counts once. Of a hop, only the inner stream counts: the outer
-- one has the same tokens. `client` is the stream at the client: the outer one of a hop, else the stream itself. A request is
-- repeated if the same client sends one with the same path, model and size within 60 s of the end.
WITH attempts AS (
    SELECT inner_stream_id, outer_stream_id, attempt < max(attempt) OVER (PARTITION BY outer_stream_id) AS was_replaced FROM hops
), suspects AS (
    SELECT stream_id, started_at, gateway, coalesce(request_model, response_model) AS model, $IS_ERROR AS failed, ttft_ns,
        input_tokens, output_tokens, text_chars + reasoning_chars AS chars,
        coalesce(outer_stream_id, stream_id) AS client_stream_id, coalesce(was_replaced, false) AS was_replaced
    FROM streams LEFT JOIN attempts ON inner_stream_id = stream_id
    WHERE (outer_stream_id IS NOT NULL OR $IS_ERROR OR outcome = 'client_abort') AND $IS_REQUEST
        AND stream_id NOT IN (SELECT outer_stream_id FROM hops)
), at_client AS (
    SELECT suspects.stream_id, $IS_ERROR AS client_failed, outcome = 'client_abort' AS client_left, client.client_id AS final_client_id,
        client.ttft_ns IS NOT NULL AS client_had_output,
        client.path, client.request_bytes, coalesce(client.gateway, '') AS client_gateway,
        coalesce(client.request_model, '') AS client_model,
        client.started_at + to_microseconds(client.end_ns // 1000) AS client_ended_at,
        least(coalesce(client.delivered_bytes / nullif(client.response_bytes, 0), 0), 1)
            * least(coalesce((client.text_chars + client.reasoning_chars) / nullif(suspects.chars, 0), 1), 1) AS delivered_share
    FROM suspects JOIN streams AS client ON client.stream_id = suspects.client_stream_id
), repeated AS (
    SELECT at_client.stream_id
    FROM at_client ASOF JOIN (
        SELECT client_id, path, request_bytes, coalesce(gateway, '') AS gateway, coalesce(request_model, '') AS model, started_at
        FROM streams
    ) AS again
        ON again.client_id = final_client_id AND again.path = at_client.path AND again.request_bytes = at_client.request_bytes
        AND again.gateway = client_gateway AND again.model = client_model AND client_ended_at < again.started_at
    WHERE (client_failed OR client_left) AND again.started_at < client_ended_at + INTERVAL 60 SECOND
), reasons AS (
    SELECT suspects.*, final_client_id, client_had_output, delivered_share,
        CASE
            WHEN was_replaced THEN 'failed_attempt'
            WHEN stream_id IN (FROM repeated) THEN 'retried'
            WHEN client_left THEN 'client_left'
            WHEN failed AND ttft_ns IS NOT NULL THEN 'error_after_output'
        END AS reason
    FROM suspects JOIN at_client USING (stream_id)
), unused AS (
    SELECT reasons.*,
        CASE WHEN reason = 'client_left' THEN round(output_tokens * (1 - delivered_share))::BIGINT ELSE output_tokens END
            AS unused_output_tokens,
        CASE WHEN reason = 'client_left' THEN coalesce(unused_output_tokens / nullif(output_tokens, 0), 1 - delivered_share) ELSE 1 END
            AS output_share,
        if(reason = 'client_left' AND client_had_output, 0, 1) AS input_share
    FROM reasons
    WHERE reason = 'client_left'
        OR reason IS NOT NULL AND (ttft_ns IS NOT NULL OR input_tokens IS NOT NULL OR output_tokens IS NOT NULL)
)
SELECT
    stream_id, started_at, unused.gateway, unused.model, final_client_id AS client_id, reason,
    unused_output_tokens AS output_tokens, unused.input_tokens * input_share AS input_tokens,
    spend.output_total * output_share + spend.input_total * input_share AS cost, spend.currency
-- The time, too: a filter on it then applies to both.
FROM unused LEFT JOIN spend USING (stream_id, started_at);

-- Version of the tables, and a digest of the text of tables and views. Readers compare them with their own (analytics/query/reader.py).
CREATE OR REPLACE VIEW internal.tables_version AS SELECT $TABLES_VERSION AS number, '$SCHEMA_DIGEST' AS digest;

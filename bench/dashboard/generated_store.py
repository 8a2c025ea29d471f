"""A store filled by SQL like a busy day: streams with events, usage, spans and server statistics.

The last 6 % of the time have an incident: one model at one gateway answers most requests with HTTP 429.

Deterministic except for the end of the day, which is now. Ids are UUIDv7, which begin with the time as in the tap, so the rows
of a stream are stored together.
"""

from __future__ import annotations

from pathlib import Path

from bench._stored import maintain, roll_up
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store

MODELS, GATEWAYS, CLIENTS = 20, 5, 60
EVENTS_OF_STREAM = 50
WARM_UP = "SELECT setseed(0.42)"
MEMORY_BYTES = 4 * 2**30

STREAMS = """
INSERT INTO streams BY NAME
WITH samples AS (
    SELECT i, random() AS a, random() AS b, random() AS c, random() AS d, random() AS e, random() AS f, random() AS g,
        sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()) AS n1,
        sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()) AS n2
    FROM range({streams}) AS t(i)),
chosen AS (
    SELECT *, now() - to_microseconds(((1 - i / {streams}) * {hours} * 3600e6)::BIGINT) AS started_at,
        floor(pow(a, 2) * {models})::INTEGER AS m, floor(pow(b, 1.5) * {gateways})::INTEGER AS gw,
        floor(pow(c, 2) * {clients})::INTEGER AS cl,
        CASE WHEN d < 0.03 OR (m = 1 AND gw = 1 AND i > 0.94 * {streams} AND f < 0.7) THEN 'http_error'
            WHEN d < 0.035 THEN 'truncated' WHEN d < 0.04 THEN 'inband_error'
            WHEN d < 0.06 THEN 'client_abort' ELSE 'ok' END AS outcome
    FROM samples),
timed AS (
    SELECT *, (exp(ln(0.25e9 * (1 + m % 5)) + 0.45 * n1))::BIGINT AS first,
        exp(ln(12e6 * (1 + m % 4)) + 0.3 * n2) AS itl, outcome <> 'http_error' AS flows
    FROM chosen)
SELECT (printf('%012x', epoch_ms(started_at)) || '7' || substr(md5(i::VARCHAR), 1, 3)
        || '8' || substr(md5(i::VARCHAR), 4, 15))::UUID AS stream_id,
    'gateway-' || gw AS gateway, 'tap-1' AS tap, md5('client' || cl) AS client_id, 'worker-' || (i % 12) AS server_instance,
    'provider-' || (m % 4) AS provider, 'openai_chat' AS dialect, 'chat' AS operation, 'POST' AS method,
    '/v1/chat/completions' AS path, 'model-' || m AS request_model, 'model-' || m || '-2026-01-05' AS response_model,
    'chatcmpl-' || i AS response_id, 'req-' || i AS request_id, md5('trace' || i) AS trace_id,
    substr(md5('span' || i), 1, 16) AS span_id, started_at, CASE WHEN flows THEN 200 ELSE 429 END AS http_status,
    flows AS streamed, outcome, CASE WHEN outcome <> 'ok' THEN outcome END AS error_type,
    CASE outcome WHEN 'ok' THEN NULL WHEN 'http_error' THEN 'pre_headers' ELSE 'mid_stream' END AS error_phase,
    CASE WHEN outcome = 'ok' THEN 'stop' END AS finish_reason,
    -200000 AS client_start_ns, 400000 AS connected_ns, 500000 AS request_sent_ns, (first * 0.8)::BIGINT AS headers_ns,
    CASE WHEN flows THEN (first * 0.81)::BIGINT END AS ttfb_ns, CASE WHEN flows THEN (first * 0.82)::BIGINT END AS ttfc_ns,
    CASE WHEN flows THEN first END AS ttft_ns, CASE WHEN flows THEN first END AS ttfo_ns,
    CASE WHEN flows THEN itl::BIGINT END AS ttst_ns,
    CASE WHEN flows THEN (first + itl * {events})::BIGINT END AS last_output_ns,
    (first + CASE WHEN flows THEN itl * {events} + 900000 ELSE 0 END)::BIGINT AS end_ns,
    (exp(6.5 + n1))::BIGINT AS input_tokens, CASE WHEN flows THEN {events} + i % 40 END AS output_tokens,
    CASE WHEN flows THEN 0 END AS reasoning_tokens, (exp(5 + n1))::BIGINT AS cached_input_tokens,
    CASE WHEN flows THEN 'usage' END AS token_source,
    'default' AS objective,
    CASE WHEN outcome = 'ok' THEN first <= 2e9 AND itl <= 1e8 WHEN outcome <> 'client_abort' THEN FALSE END AS meets_objective,
    CASE WHEN flows THEN itl END AS itl_ns, CASE WHEN flows THEN itl * 0.9 END AS icl_p50_ns,
    CASE WHEN flows THEN itl * 2 END AS icl_p95_ns, CASE WHEN flows THEN itl * 3 END AS icl_p99_ns,
    CASE WHEN flows THEN (itl * CASE WHEN e < 0.02 THEN 60 ELSE 4 END)::BIGINT END AS icl_max_ns,
    CASE WHEN flows THEN (e < 0.02)::INTEGER END AS stall_count,
    CASE WHEN flows THEN CASE WHEN e < 0.02 THEN (itl * 60)::BIGINT ELSE 0 END END AS stalled_ns,
    CASE WHEN flows THEN 1e9 / itl END AS tps_user,
    CASE WHEN flows THEN {events} / (first + itl * {events}) * 1e9 END AS tps_e2e, CASE WHEN flows THEN f / 5 END AS burstiness,
    CASE WHEN flows THEN {events} ELSE 0 END AS event_count,
    CASE WHEN flows THEN {events} - 3 ELSE 0 END AS output_event_count,
    {events} * 5 AS text_chars, 0 AS tool_call_count, 0 AS comment_count, {events} * 220 AS response_bytes,
    0 AS malformed_events,
    0 AS lost_bytes, {events} * (CASE WHEN outcome = 'client_abort' THEN 180 ELSE 220 END) AS delivered_bytes,
    FALSE AS aborted_after_terminal, '10.0.0.1' AS server_address, 443 AS server_port, 900 AS request_bytes, 1 AS choice_count
FROM timed ORDER BY started_at
"""

EVENTS = """
INSERT INTO events BY NAME
SELECT stream_id, k::INTEGER AS seq, k::INTEGER AS read_seq,
    (coalesce(ttft_ns, headers_ns) + coalesce(itl_ns, 1e6) * (k + hash(stream_id, k) % 1000 / 1500))::BIGINT AS at_ns,
    CASE WHEN k = 0 THEN 'start' WHEN k = {events} - 2 THEN 'finish' WHEN k = {events} - 1 THEN 'terminal'
        ELSE 'text' END AS kind,
    CASE WHEN k BETWEEN 1 AND {events} - 3 THEN 0 END AS choice, CASE WHEN k BETWEEN 1 AND {events} - 3 THEN 5 END AS chars,
    220 AS bytes, CASE WHEN k = {events} - 2 THEN 'stop' END AS finish_reason
FROM (SELECT stream_id, ttft_ns, headers_ns, itl_ns, started_at FROM streams), range({events}) AS t(k)
ORDER BY stream_id, k
"""

SPLITS = """
UPDATE streams SET tap_delay_ns = 200000, waited_client_ns = 100000, waited_upstream_ns = end_ns - 300000,
    session_id = CASE WHEN hash(stream_id) % 2 = 0 THEN md5('session' || (epoch(started_at)::BIGINT // 600) || client_id) END,
    turn = 1
"""
"""Who took the time, and sessions of ten minutes for half of the streams."""

LABELS = (
    "INSERT INTO labels VALUES ('team', 'header:x-team', true, false), ('user', 'body:user', false, false)",
    """
    UPDATE streams SET labels = MAP {{
        'team': 'team-' || hash(stream_id) % 8,
        'user': md5('user' || (epoch(started_at)::BIGINT // 3600) || '-' || hash(stream_id, 1) % {values}) }}""",
)
"""Of each hour, other users."""

REST = (
    """
    INSERT INTO hops BY NAME
    SELECT outer_stream_id, inner_stream_id, outer_started_at, outer_gateway, inner_gateway, model, 'span' AS matched_by,
        1 AS attempt, 'ok' AS inner_outcome, (5e6 + r * 1e6)::BIGINT AS gateway_before_ns,
        (2e7 + r * 3e7)::BIGINT AS added_ttft_ns,
        (1e6 + r * 1e6)::BIGINT AS added_tail_ns, (1e6 + r * 1e6)::BIGINT AS added_event_p50_ns,
        (2e6 + r * 4e6)::BIGINT AS added_event_p95_ns, (1e7 + r * 9e7)::BIGINT AS added_event_max_ns, 45 AS aligned_event_count,
        1 AS merged_event_count, 0 AS split_event_count, r / 10 AS buffered_share, 0 AS gateway_stall_count,
        0 AS clock_offset_ns, 0 AS clock_error_ns
    FROM (
        SELECT stream_id AS outer_stream_id, lead(stream_id) OVER by_time AS inner_stream_id, started_at AS outer_started_at,
            gateway AS outer_gateway, lead(gateway) OVER by_time AS inner_gateway, request_model AS model,
            row_number() OVER by_time AS n, hash(stream_id) % 1000 / 1000 AS r
        FROM streams WHERE outcome = 'ok' WINDOW by_time AS (ORDER BY started_at, stream_id))
    WHERE n % 2 = 1 AND inner_stream_id IS NOT NULL ORDER BY outer_started_at""",
    """
    INSERT INTO hop_changes BY NAME
    SELECT outer_stream_id, inner_stream_id, outer_started_at, 'model' AS what, model AS outer_value, model || '-2026' AS inner_value
    FROM hops WHERE hash(outer_stream_id) % 2 = 0 ORDER BY outer_started_at""",
    """
    INSERT INTO usage_reports BY NAME
    SELECT stream_id, 48 AS seq, last_output_ns AS at_ns, input_tokens, output_tokens, '{"completion_tokens": 50}' AS raw
    FROM streams WHERE output_tokens IS NOT NULL ORDER BY started_at""",
    """
    INSERT INTO server_stats BY NAME
    SELECT stream_id, 48 AS seq, 'timings' AS source, name, value, unit, value::VARCHAR AS raw
    FROM streams, (VALUES ('prompt_ms', 2e8, 'ns'), ('predicted_per_second', 50, 'tok/s')) AS v(name, value, unit)
    WHERE hash(stream_id) % 4 = 0 ORDER BY started_at""",
    """
    INSERT INTO spans BY NAME
    SELECT trace_id, substr(md5(span_id || part), 1, 16) AS span_id, span_id AS parent_span_id, stream_id,
        part AS name,
        'internal' AS kind, started_at + to_microseconds(from_ns // 1000) AS started_at, from_ns AS start_ns,
        for_ns AS duration_ns,
        'unset' AS status, '{"service.name":"streamgauge"}' AS attributes, '[]' AS events
    FROM (
        SELECT *, unnest(['connect', 'wait for headers', 'wait for first output', 'output']) AS part,
            unnest([0, connected_ns, headers_ns, ttft_ns]) AS from_ns,
            unnest([connected_ns, headers_ns - connected_ns, ttft_ns - headers_ns, last_output_ns - ttft_ns]) AS for_ns
        FROM streams)
    WHERE for_ns IS NOT NULL
    UNION ALL
    SELECT trace_id, span_id, NULL, stream_id, 'chat ' || request_model, 'client', started_at, 0, end_ns,
        CASE WHEN error_type IS NULL THEN 'unset' ELSE 'error' END, '{"service.name":"streamgauge"}', '[]'
    FROM streams ORDER BY started_at""",
)


def fill(
    data: Path, *, streams: int, hours: float, events: int = EVENTS_OF_STREAM, label_values: int = 0
) -> None:
    """Create the store of a data folder with streams of the last hours, each with `events` events.

    `label_values`: possible values of the label `user` in an hour, besides the 8 of `team`. 0: no labels.
    """
    store = Store(locate("sqlite", data), memory_limit_bytes=MEMORY_BYTES)
    try:
        with store.cursor() as connection:
            # With several threads, random() would differ between machines.
            connection.execute("SET threads = 1")
            connection.execute(WARM_UP)
            sizes = {
                "streams": streams, "hours": hours, "events": events,
                "models": MODELS, "gateways": GATEWAYS, "clients": CLIENTS,
            }  # fmt: skip
            connection.execute(STREAMS.format(**sizes))
            connection.execute("RESET threads")
            connection.execute(SPLITS)
            for statement in LABELS if label_values else ():
                connection.execute(statement.format(values=label_values))
            connection.execute(EVENTS.format(**sizes))
            for statement in REST:
                connection.execute(statement)
            roll_up(store, connection)
        maintain(store)
    finally:
        store.close()


def row_counts(data: Path) -> dict[str, int]:
    """Number of rows by table."""
    tables = ("streams", "events", "spans", "usage_reports")
    reader = Reader(locate("sqlite", data), lock_down=False)
    try:
        counts = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in tables)
        return reader.query(f"SELECT {counts}", 1, 60.0).row(0, named=True)
    finally:
        reader.close()

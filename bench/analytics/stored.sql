-- Streams and events of bench/analytics/stored.py: {names in braces} are filled in; a blank line separates statements.
CREATE OR REPLACE TEMP TABLE s AS
    SELECT i, ({now_ms} - 86400000 + i*86400000//{streams})::BIGINT AS ms, random() r1, random() r2, random() r3, random() r4, (i*7919)%12 AS k
    FROM range({first},{end}) t(i);

CREATE OR REPLACE TEMP TABLE st AS SELECT
      (substr(printf('%012x',ms),1,8)||'-'||substr(printf('%012x',ms),9,4)||'-7'||printf('%03x',i%4096)||'-8'||printf('%03x',(r1*4095)::INT)||'-'||printf('%012x',i))::UUID AS stream_id,
      'gw-'||(k%2) AS gateway,'tap' AS tap, printf('%016x', (r2*500)::INT) AS client_id, 'openai' AS provider, 'openai_chat' AS dialect,'chat' AS operation,'POST' AS method,'/v1/chat/completions' AS path,
      'model-'||k AS request_model, 'model-'||k AS response_model, 'chatcmpl-'||printf('%x',i) AS response_id, 'req-'||i AS request_id, md5(i::VARCHAR) AS trace_id, substr(md5(i::VARCHAR||'x'),1,16) AS span_id,
      make_timestamptz(ms*1000) AS started_at, 200 AS http_status, true AS streamed,
      CASE WHEN r3<.97 THEN 'ok' WHEN r3<.98 THEN 'client_abort' WHEN r3<.99 THEN 'truncated' ELSE 'inband_error' END AS outcome,
      CASE WHEN r3>=.98 THEN 'server_error' END AS error_type, CASE WHEN r3>=.98 THEN 'mid_stream' END AS error_phase, 'stop' AS finish_reason,
      -90000 AS client_start_ns, (r1*1e6)::BIGINT AS connected_ns, (r2*2e6)::BIGINT AS request_sent_ns, (2e8+r1*1e8)::BIGINT AS headers_ns,
      (exp(18.5+r1*2+r2))::BIGINT AS ttfb_ns, (exp(18.5+r1*2+r2))::BIGINT + 100000 AS ttfc_ns, (exp(18.5+r1*2+r2))::BIGINT+200000 AS ttft_ns, (exp(18.5+r1*2+r2))::BIGINT+200000 AS ttfo_ns, (2e7+r3*1e6)::BIGINT AS ttst_ns,
      ttft_ns + 95*(15000000+k*1000000) AS last_output_ns, last_output_ns + 300000 AS terminator_ns, last_output_ns+500000 AS end_ns,
      (r4*2000)::BIGINT AS input_tokens, (90+r3*20)::BIGINT AS output_tokens, 'usage' AS token_source,
      15000000+k*1000000+r1*1e6 AS itl_ns, 15000000+k*1000000+r2*1e6 AS icl_p50_ns, 20000000.0+r3*1e6 AS icl_p95_ns, 25000000.0+r4*1e7 AS icl_p99_ns, (3e7 + CASE WHEN r4<.01 THEN 8e8 ELSE 0 END + r1*1e6)::BIGINT AS icl_max_ns,
      CASE WHEN r4<.01 THEN 1 ELSE 0 END AS stall_count, CASE WHEN r4<.01 THEN 800000000 ELSE 0 END AS stalled_ns,
      1e9/itl_ns AS tps_user, 50.0+r3 AS tps_e2e, r4*0.1 AS burstiness, 100 AS event_count, 96 AS output_event_count, (400+r2*100)::BIGINT AS text_chars, 0 AS reasoning_chars, 0 AS tool_call_count, 0 AS comment_count,
      22000+(r1*100)::BIGINT AS response_bytes, 0 AS malformed_events, 0 AS lost_bytes, 22000+(r1*100)::BIGINT AS delivered_bytes, last_output_ns+600000 AS client_drain_ns, false AS aborted_after_terminal,
      'upstream.example' AS server_address, 443 AS server_port, 1 AS trace_flags, 700 AS request_bytes, 1 AS choice_count, false AS unterminated_tail, 0 AS tool_failure_count, k, r4
      FROM s ORDER BY i;

INSERT INTO streams BY NAME SELECT * EXCLUDE (k, r4) FROM st;

INSERT INTO events BY NAME SELECT stream_id, seq::INTEGER AS seq, seq::INTEGER AS read_seq,
      (ttft_ns + (seq-1)*(15000000+k*1000000) + random()*9000000 + CASE WHEN r4<.01 AND seq>50 THEN 800000000 ELSE 0 END)::BIGINT AS at_ns,
      CASE WHEN seq=0 THEN 'start' WHEN seq=97 THEN 'finish' WHEN seq=98 THEN 'usage' WHEN seq=99 THEN 'terminal' ELSE 'text' END AS kind,
      0 AS choice, CASE WHEN seq BETWEEN 1 AND 96 THEN (1+random()*11)::INT END AS chars, (190+random()*30)::INT AS bytes, CASE WHEN seq=97 THEN 'stop' END AS finish_reason
      FROM st, range(100) t(seq) ORDER BY st.stream_id, seq

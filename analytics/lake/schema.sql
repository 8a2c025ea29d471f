-- What a lake has beside the public tables of schema.sql. Rows here are only ever appended by consumers, so that their commits
-- never conflict; the newest version counts. Upkeep takes away what is superseded. `analytics.lake.store` has the rules.

CREATE SCHEMA IF NOT EXISTS internal;
CREATE TABLE IF NOT EXISTS internal.meta (key VARCHAR NOT NULL, value VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS internal.claims (number BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS internal.positions (
    log_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, version BIGINT NOT NULL, owner VARCHAR NOT NULL,
    high BIGINT NOT NULL, low BIGINT NOT NULL, open_stream_ids VARCHAR[] NOT NULL,
    shown BIGINT, updated_at TIMESTAMPTZ NOT NULL
);
CREATE TABLE IF NOT EXISTS internal.shown_streams (
    owner VARCHAR NOT NULL, number BIGINT NOT NULL,
    stream_id UUID NOT NULL,
    gateway VARCHAR, tap VARCHAR, client_id VARCHAR, dialect VARCHAR, operation VARCHAR, path VARCHAR,
    request_model VARCHAR, response_model VARCHAR, trace_id VARCHAR,
    started_at TIMESTAMPTZ NOT NULL,
    http_status SMALLINT, ttft_ns BIGINT, last_event_ns BIGINT, last_output_ns BIGINT,
    event_count BIGINT, output_event_count BIGINT, output_tokens BIGINT, response_bytes BIGINT,
    updated_at TIMESTAMPTZ NOT NULL
);
CREATE TABLE IF NOT EXISTS internal.open_stream_records (
    log_id VARCHAR NOT NULL, partition VARCHAR NOT NULL, stream_id UUID NOT NULL, number BIGINT NOT NULL,
    payload BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS internal.tap_news (
    tap VARCHAR NOT NULL, tap_worker INTEGER NOT NULL, incarnation VARCHAR NOT NULL, started_at TIMESTAMPTZ NOT NULL,
    last_alive_at TIMESTAMPTZ NOT NULL, stopping BOOLEAN NOT NULL, counters VARCHAR NOT NULL
);
CREATE TABLE IF NOT EXISTS internal.counted (name VARCHAR NOT NULL, value BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS internal.upkeep (task VARCHAR NOT NULL, done_at TIMESTAMPTZ NOT NULL, owner VARCHAR NOT NULL);

CREATE OR REPLACE VIEW internal.taps AS
SELECT * FROM internal.tap_news
QUALIFY row_number() OVER (PARTITION BY tap, tap_worker, incarnation ORDER BY last_alive_at DESC) = 1;

CREATE OR REPLACE VIEW internal.totals AS
SELECT name, sum(value)::BIGINT AS value FROM internal.counted GROUP BY name;

CREATE OR REPLACE VIEW log_positions AS
SELECT log_id, partition, high, low, open_stream_ids, owner, version, updated_at
FROM internal.positions
QUALIFY row_number() OVER (PARTITION BY log_id, partition ORDER BY version DESC) = 1;

CREATE OR REPLACE VIEW open_streams AS
WITH newest AS (
    SELECT owner, max(shown) AS number FROM (
        SELECT owner, shown FROM internal.positions
        QUALIFY row_number() OVER (PARTITION BY log_id, partition ORDER BY version DESC) = 1
    ) GROUP BY owner
)
SELECT shown.* EXCLUDE (owner, number)
FROM internal.shown_streams AS shown
SEMI JOIN newest ON shown.owner = newest.owner AND shown.number = newest.number
QUALIFY row_number() OVER (PARTITION BY stream_id ORDER BY updated_at DESC) = 1;

-- Not a table of the store: analytics writes files (analytics/storage/open_streams_file.py), and readers have a view of this name.

CREATE TABLE IF NOT EXISTS open_streams (
    stream_id UUID NOT NULL,
    gateway VARCHAR, tap VARCHAR, client_id VARCHAR, dialect VARCHAR, operation VARCHAR, path VARCHAR,
    request_model VARCHAR, response_model VARCHAR, trace_id VARCHAR,
    started_at TIMESTAMPTZ NOT NULL,
    http_status SMALLINT, ttft_ns BIGINT, last_event_ns BIGINT, last_output_ns BIGINT,
    event_count BIGINT, output_event_count BIGINT, output_tokens BIGINT, response_bytes BIGINT,
    waits_for_client BOOLEAN,
    updated_at TIMESTAMPTZ NOT NULL
);

COMMENT ON TABLE open_streams IS 'Streams in flight. At most half a second old.';
COMMENT ON COLUMN open_streams.stream_id IS 'Id of the request.';
COMMENT ON COLUMN open_streams.gateway IS 'Name of the upstream.';
COMMENT ON COLUMN open_streams.tap IS 'Name of the tap.';
COMMENT ON COLUMN open_streams.client_id IS 'Keyed hash of the client''s API key.';
COMMENT ON COLUMN open_streams.dialect IS 'Format of the stream. NULL until it is detected.';
COMMENT ON COLUMN open_streams.operation IS 'Kind of request.';
COMMENT ON COLUMN open_streams.path IS 'Path of the request to the upstream, without the query.';
COMMENT ON COLUMN open_streams.request_model IS 'Requested model.';
COMMENT ON COLUMN open_streams.response_model IS 'Model named in the response.';
COMMENT ON COLUMN open_streams.trace_id IS 'W3C trace id.';
COMMENT ON COLUMN open_streams.started_at IS 'Time of t0.';
COMMENT ON COLUMN open_streams.http_status IS 'HTTP status of the response. NULL until its headers are complete.';
COMMENT ON COLUMN open_streams.ttft_ns IS 'Time to first token: ns from t0. NULL until there is output.';
COMMENT ON COLUMN open_streams.last_event_ns IS 'ns from t0 to the newest event.';
COMMENT ON COLUMN open_streams.last_output_ns IS 'ns from t0 to the newest output event.';
COMMENT ON COLUMN open_streams.event_count IS 'Events so far.';
COMMENT ON COLUMN open_streams.output_event_count IS 'Output events so far.';
COMMENT ON COLUMN open_streams.output_tokens IS 'Output tokens reported so far.';
COMMENT ON COLUMN open_streams.response_bytes IS 'Body bytes so far.';
COMMENT ON COLUMN open_streams.waits_for_client IS 'Whether the client does not read the response, has not received all of it, or still sends the request. At most 2 s old.';
COMMENT ON COLUMN open_streams.updated_at IS 'Time of the newest record.';

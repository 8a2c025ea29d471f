-- Not a table of the store: analytics writes files (analytics/storage/open_streams_file.py), and readers have a view of this name.

-- Streams in flight. At most half a second old.
CREATE TABLE IF NOT EXISTS open_streams (
    stream_id UUID NOT NULL, -- Id of the request.
    gateway VARCHAR, -- Name of the upstream.
    tap VARCHAR, -- Name of the tap.
    client_id VARCHAR, -- Keyed hash of the client's API key.
    client_app VARCHAR, -- Program of the client, as in streams.
    labels MAP(VARCHAR,VARCHAR), -- Labels of the request, as in streams.
    dialect VARCHAR, -- Format of the stream. NULL until it is detected.
    operation VARCHAR, -- Kind of request.
    path VARCHAR, -- Path of the request to the upstream, without the query.
    request_model VARCHAR, -- Requested model.
    response_model VARCHAR, -- Model named in the response.
    trace_id VARCHAR, -- W3C trace id.
    started_at TIMESTAMPTZ NOT NULL, -- Time of t0.
    http_status SMALLINT, -- HTTP status of the response. NULL until its headers are complete.
    ttft_ns BIGINT, -- Time to first token: ns from t0. NULL until there is output.
    last_event_ns BIGINT, -- ns from t0 to the newest event.
    last_output_ns BIGINT, -- ns from t0 to the newest output event.
    event_count BIGINT, -- Events so far.
    output_event_count BIGINT, -- Output events so far.
    output_tokens BIGINT, -- Output tokens reported so far.
    response_bytes BIGINT, -- Body bytes so far.
    waits_for_client BOOLEAN, -- Whether the client does not read the response, has not received all of it, or still sends the request. At most 2 s old.
    updated_at TIMESTAMPTZ NOT NULL -- Time of the newest record.
);

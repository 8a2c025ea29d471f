-- How a file keeps `events` (analytics/storage/packed.py), behind a view of the public columns.
-- string_split, since it is done once for each label of a row group, where split_part is done for each row.

CREATE TABLE IF NOT EXISTS internal.packed_events (
    stream_id UUID NOT NULL,
    number INTEGER NOT NULL, first_number INTEGER NOT NULL, read_number INTEGER NOT NULL,
    at_ns BIGINT NOT NULL,
    label VARCHAR NOT NULL,
    chars INTEGER, tokens INTEGER, bytes INTEGER
);

CREATE OR REPLACE VIEW events AS
SELECT
    stream_id,
    number - first_number AS seq,
    read_number - first_number AS read_seq,
    at_ns,
    string_split(label, chr(31))[1] AS kind,
    nullif(string_split(label, chr(31))[2], '') AS event_name,
    nullif(string_split(label, chr(31))[3], '')::SMALLINT AS choice,
    chars, tokens, bytes,
    nullif(string_split(label, chr(31))[4], '') AS finish_reason
FROM internal.packed_events;

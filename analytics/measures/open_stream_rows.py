"""Rows of table `open_streams`: the current state of streams in flight."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from streamgauge.analytics.assembly.open_stream import OpenStream
from streamgauge.analytics.measures.latency import first_output_ns, last_output_ns
from streamgauge.analytics.schema.tables import OPEN_STREAMS, frame


def open_stream_frame(streams: Sequence[OpenStream]) -> pl.DataFrame:
    """One row per stream. Their pending frames must be decoded first."""
    rows = [_row(stream) for stream in streams]
    return frame(OPEN_STREAMS, {name: [row[name] for row in rows] for name in OPEN_STREAMS})


def _row(stream: OpenStream) -> dict[str, object]:
    opened, decoder = stream.opened, stream.decoder
    usage = decoder.usage if decoder is not None and not decoder.usage_denies_output else None
    return {
        "stream_id": stream.stream_id,
        "gateway": opened.gateway if opened else None,
        "tap": opened.tap if opened else None,
        "client_id": opened.client_id if opened else None,
        "dialect": decoder.dialect if decoder else None,
        "operation": decoder.operation if decoder else None,
        "path": opened.path if opened else None,
        "request_model": stream.request.model,
        "response_model": decoder.response_model if decoder else None,
        "trace_id": opened.trace_id if opened else None,
        "started_at": stream.started_wall_ns // 1000,
        "http_status": stream.response.status if stream.response else None,
        "ttft_ns": first_output_ns(decoder.events) if decoder else None,
        "last_event_ns": decoder.last_event_ns if decoder else None,
        "last_output_ns": last_output_ns(decoder.events) if decoder else None,
        "event_count": decoder.event_count if decoder else 0,
        "output_event_count": decoder.output_event_count if decoder else 0,
        "output_tokens": usage.output_tokens if usage is not None else None,
        "response_bytes": stream.body_bytes + stream.uncaptured_bytes,
        "updated_at": (stream.started_wall_ns + stream.last_ns) // 1000,
    }

"""Tables of single streams, finished or in flight. Each row links to the page of its stream."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import streamlit as st

from dashboard import filters
from dashboard.tables.columns import (
    count,
    instant,
    link,
    local_time,
    ms,
    number,
    seconds,
    show,
    text,
    tokens_per_s,
)

OUTCOME_SIGNS = {"ok": "✓ ok", "client_abort": "◌ client_abort", "tap_lost": "? tap_lost"}
"""Outcomes with a sign, so they can be told apart without colour. All others are errors and get ✕."""
LINK_TO_STREAM = ("stream?id=" + pl.col("stream_id").cast(pl.String)).alias("link")

SHARED_COLUMNS: dict[str, Any] = {
    "link": link(
        "Stream",
        display_text=r"id=(?:.*)([0-9a-f]{8})$",
        width=90,
        help="Opens the page of the stream. Shown are the last digits of its id.",
    ),
    "model": text("Model", width=170),
    "gateway": text("Gateway", width=110),
    "client": text("Client", width=110, help="Keyed hash of the API key."),
    "ttft_ms": ms("TTFT", width=90),
}


def show_streams(frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto") -> None:
    """Finished streams (`queries.streams.COLUMNS`)."""
    zone = filters.time_zone()
    signed = pl.col("outcome").map_elements(lambda o: OUTCOME_SIGNS.get(o, f"✕ {o}"), return_dtype=pl.String)
    shown = frame.select(
        LINK_TO_STREAM,
        local_time("started_at", zone).alias("started"),
        "model",
        signed,
        pl.coalesce("error_type", "finish_reason").alias("reason"),
        (pl.col("ttft_ns") / 1e6).alias("ttft_ms"),
        (pl.col("itl_ns") / 1e6).alias("itl_ms"),
        (pl.col("icl_max_ns") / 1e6).alias("gap_ms"),
        "tps_user",
        (pl.col("end_ns") / 1e9).alias("end_s"),
        "input_tokens",
        "output_tokens",
        "stall_count",
        "gateway",
        "client",
    )
    columns = {
        **SHARED_COLUMNS,
        "started": instant("Started", format="MM-DD HH:mm:ss.SSS", width=150),
        "outcome": text("Outcome", width=120),
        "reason": text("Reason", width=150, help="The error type, or the finish reason."),
        "itl_ms": number("ITL", format="%.1f ms", width=90),
        "gap_ms": ms("Longest gap", width=100),
        "tps_user": tokens_per_s("Speed", width=100),
        "end_s": number("Duration", format="%.2f s", width=90),
        "input_tokens": count("Tokens in", width=80, help="Reported input tokens."),
        "output_tokens": count("Tokens out", width=85, help="Reported output tokens."),
        "stall_count": count("Stalls", width=65),
    }
    show(shown, column_config=columns, key=key, alt="Streams", height=height)
    st.caption(f"Started: time zone {zone.key}.")


def show_open_streams(frame: pl.DataFrame) -> None:
    """Streams in flight (`queries.live.open_streams`)."""
    waiting = pl.when(pl.col("ttft_ns").is_null()).then(pl.lit("waiting")).otherwise(pl.lit("streaming"))
    shown = frame.select(
        LINK_TO_STREAM,
        waiting.alias("state"),
        "model",
        (pl.col("age_ns") / 1e9).alias("age_s"),
        (pl.col("silent_ns") / 1e9).alias("silent_s"),
        (pl.col("ttft_ns") / 1e6).alias("ttft_ms"),
        "tps",
        "events_per_s",
        "output_tokens",
        "output_event_count",
        "event_count",
        "gateway",
        "client",
        "http_status",
    )
    columns = {
        **SHARED_COLUMNS,
        "state": text("State", width=90),
        "age_s": seconds("Open for", width=90),
        "silent_s": number("Last event", format="%.1f s ago", width=110),
        "events_per_s": number("Output events", format="%.1f /s", width=110, help="A chunk is not a token."),
        "tps": tokens_per_s("Speed", width=100, help="Output tokens / time from first to last output."),
        "output_tokens": count("Tokens out", width=85, help="Output tokens reported so far."),
        "output_event_count": count("Output events", width=110),
        "event_count": count("Events", width=80),
        "http_status": count("HTTP", width=70),
    }
    height: int | Literal["auto"] = 560 if frame.height > 9 else "auto"
    show(shown, key="live", height=height, alt="Streams in flight", column_config=columns)

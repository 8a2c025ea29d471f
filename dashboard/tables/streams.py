"""Tables of single streams, finished or in flight. Each row links to the page of its stream."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import streamlit as st

from dashboard import filters
from dashboard.tables import columns

OUTCOME_SIGNS = {
    "ok": "✓ ok",
    "client_abort": "◌ client_abort",
    "tap_lost": "? tap_lost",
    "refused": "⊘ refused",
}
"""Signs that distinguish outcomes without colour. All other outcomes are errors and have the sign ✕."""
LINK_TO_STREAM = ("stream?id=" + pl.col("stream_id").cast(pl.String)).alias("link")

SHARED_COLUMNS: dict[str, Any] = {
    "link": columns.link(
        "Stream",
        display_text=r"id=(?:.*)([0-9a-f]{8})$",
        width=90,
        help="Opens the page of the stream. Shown are the last digits of its id.",
    ),
    "model": columns.text("Model", width=170),
    "gateway": columns.text("Gateway", width=110),
    "client": columns.text("Client", width=110, help="Keyed hash of the API key."),
    "ttft_ns": columns.ms("TTFT", width=90),
}


def show_streams(frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto") -> None:
    """Finished streams (`queries.streams.COLUMNS`)."""
    zone = filters.time_zone()
    signed = pl.col("outcome").map_elements(lambda o: OUTCOME_SIGNS.get(o, f"✕ {o}"), return_dtype=pl.String)
    shown = frame.select(
        LINK_TO_STREAM,
        columns.local_time("started_at", zone).alias("started"),
        "model",
        signed,
        pl.coalesce("error_type", "finish_reason").alias("reason"),
        *columns.scaled(columns.NS_TO_MS, "ttft_ns", "itl_ns", "icl_max_ns"),
        "tps_user",
        *columns.scaled(columns.NS_TO_S, "end_ns"),
        *("input_tokens", "output_tokens", "stall_count", "gateway", "client"),
    )
    config = {
        **SHARED_COLUMNS,
        "started": columns.instant("Started", format="MM-DD HH:mm:ss.SSS", width=150),
        "outcome": columns.text("Outcome", width=120),
        "reason": columns.text("Reason", width=150, help="The error type, or the finish reason."),
        "itl_ns": columns.number("ITL", format="%.1f ms", width=90),
        "icl_max_ns": columns.ms("Longest gap", width=100),
        "tps_user": columns.tokens_per_s("Speed", width=100),
        "end_ns": columns.number("Duration", format="%.2f s", width=90),
        "input_tokens": columns.count("Tokens in", width=80, help="Reported input tokens."),
        "output_tokens": columns.count("Tokens out", width=85, help="Reported output tokens."),
        "stall_count": columns.count("Stalls", width=65),
    }
    columns.show(shown, column_config=config, key=key, alt="Streams", height=height)
    st.caption(f"Started: time zone {zone.key}.")


def show_open_streams(frame: pl.DataFrame) -> None:
    """Streams in flight (`queries.live.open_streams`)."""
    waiting = pl.when(pl.col("ttft_ns").is_null()).then(pl.lit("waiting")).otherwise(pl.lit("streaming"))
    shown = frame.select(
        LINK_TO_STREAM,
        waiting.alias("state"),
        "model",
        *columns.scaled(columns.NS_TO_S, "age_ns", "silent_ns"),
        *columns.scaled(columns.NS_TO_MS, "ttft_ns"),
        *("tps", "events_per_s", "output_tokens", "output_event_count", "event_count"),
        *("gateway", "client", "http_status"),
    )
    config = {
        **SHARED_COLUMNS,
        "state": columns.text("State", width=90),
        "age_ns": columns.seconds("Open for", width=90),
        "silent_ns": columns.number("Last event", format="%.1f s ago", width=110),
        "events_per_s": columns.number(
            "Output events/s", format="%.1f", width=110, help="A chunk is not a token."
        ),
        "tps": columns.tokens_per_s(
            "Speed", width=100, help="Output tokens / time from first to last output."
        ),
        "output_tokens": columns.count("Tokens out", width=85, help="Output tokens reported so far."),
        "output_event_count": columns.count("Output events", width=110),
        "event_count": columns.count("Events", width=80),
        "http_status": columns.count("HTTP", width=70),
    }
    height: int | Literal["auto"] = 560 if frame.height > 9 else "auto"
    columns.show(shown, key="live", height=height, alt="Streams in flight", column_config=config)

"""The table of the throughput page: tokens and speed by group."""

from __future__ import annotations

import polars as pl

from dashboard.metric_help import metric_help
from dashboard.tables.columns import count, number, percent, show, text, tokens_per_s

SHARES = ("cached_share", "reasoning_share", "burstiness_p50", "known")


def show_throughput(frame: pl.DataFrame, *, group: str) -> None:
    """Tokens and speed (`queries.throughput.table`)."""
    show(
        frame.with_columns(pl.col(c) * 100 for c in SHARES),
        key="throughput",
        alt=f"Throughput by {group}",
        column_config={
            "name": text(group.capitalize()),
            "requests": count("Requests"),
            "input_tokens": number("Tokens in", format="localized"),
            "cached_share": percent("cached", help=metric_help("cached")),
            "output_tokens": number("Tokens out", format="localized"),
            "reasoning_share": percent("reasoning", help="Reasoning tokens / output tokens."),
            "output_per_s": tokens_per_s("Output", help=metric_help("tps_total")),
            "tps_user_p50": tokens_per_s("Speed p50", help=metric_help("tps_user")),
            "tps_user_p5": tokens_per_s("Speed p5", help="The slowest 5 % of streams are at or below this."),
            "tps_e2e_p50": tokens_per_s("End-to-end speed p50", help=metric_help("tps_e2e")),
            "burstiness_p50": number("Burstiness p50", format="%.0f %%", help=metric_help("burstiness")),
            "known": number(
                "tokens known", format="%.0f %%", help="Share of streams with known output tokens."
            ),
        },
    )

"""Tables in the house style: durations in ms, links to the single stream, words for what is unknown."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import polars as pl
import streamlit as st

from dashboard import filters, formatting
from dashboard.metric_help import described
from dashboard.queries.selection import Selection

column = st.column_config
show = partial(st.dataframe, hide_index=True, placeholder=formatting.UNKNOWN)
OUTCOME_SIGNS = {"ok": "✓ ok", "client_abort": "◌ client_abort", "tap_lost": "? tap_lost"}
"""An outcome as read in a table; every other is an error and gets a ✕. Signs, so that no colour is needed."""

STREAM_COLUMNS: dict[str, Any] = {
    "link": column.LinkColumn(
        "Stream", display_text=r"id=(?:.*)([0-9a-f]{8})$", width=90, help="Opens the stream; its id's last digits."
    ),
    "started": column.DatetimeColumn("Started", format="MM-DD HH:mm:ss.SSS", width=150),
    "model": column.TextColumn("Model", width=170),
    "gateway": column.TextColumn("Gateway", width=110),
    "client": column.TextColumn("Client", width=110, help="Keyed hash of the API key."),
    "outcome": column.TextColumn("Outcome", width=120),
    "why": column.TextColumn("Why", width=150, help="Error type, else the finish reason."),
    "ttft_ms": column.NumberColumn("TTFT", format="%.0f ms", width=90),
    "itl_ms": column.NumberColumn("ITL", format="%.1f ms", width=90),
    "gap_ms": column.NumberColumn("Longest gap", format="%.0f ms", width=100),
    "tps_user": column.NumberColumn("Speed", format="%.1f tok/s", width=100),
    "end_s": column.NumberColumn("Length", format="%.2f s", width=90),
    "input_tokens": column.NumberColumn("In", format="%d", width=70, help="Input tokens as reported."),
    "output_tokens": column.NumberColumn("Out", format="%d", width=70, help="Output tokens as reported."),
    "stall_count": column.NumberColumn("Stalls", format="%d", width=65),
}  # fmt: skip


def streams(frame: pl.DataFrame, *, key: str, height: int | Literal["auto"] = "auto") -> None:
    """Streams, one a row, each with a link to its own page (`queries.streams.COLUMNS`)."""
    zone = filters.zone()
    shown = frame.select(
        ("stream?id=" + pl.col("stream_id").cast(pl.String)).alias("link"),
        pl.col("started_at").dt.convert_time_zone(zone.key).dt.replace_time_zone(None).alias("started"),
        "model",
        pl.col("outcome").map_elements(lambda o: OUTCOME_SIGNS.get(o, f"✕ {o}"), return_dtype=pl.String),
        pl.coalesce("error_type", "finish_reason").alias("why"),
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
    show(
        shown,
        column_config=STREAM_COLUMNS,
        key=key,
        alt="Streams",
        height=height,
    )
    st.caption(f"Started: {zone.key}.")


NARROWED = column.LinkColumn(
    "", display_text="only", width=44, help="This page for this one alone, in a tab of its own."
)
NOT_IN_A_LINK = frozenset({"model", "gateway", "client", "token"})


def narrowing(dimension: str, name: str) -> str:
    """The address of this page with one filter more."""
    kept = [
        (key, value)
        for key in st.query_params
        if key not in NOT_IN_A_LINK
        for value in st.query_params.get_all(key)
    ]
    chosen = [
        (key, v) for key in ("model", "gateway", "client") if key != dimension for v in filters.chosen(key)
    ]
    return "?" + urlencode([*kept, *chosen, (dimension, name)])


def _narrowed(frame: pl.DataFrame) -> pl.Series:
    return pl.Series(
        "link", [narrowing(d, n) for d, n in frame.select("dimension", "name").iter_rows()], pl.String
    )


def short_name() -> pl.Expr:
    """A client's hash by its first digits: nobody reads 32 of them."""
    return pl.col("name").str.replace(r"^([0-9a-f]{10})[0-9a-f]{22}$", "$1…")


def hurting(frame: pl.DataFrame) -> None:
    """Who has more bad streams than their share (`queries.overview.where_it_hurts`)."""
    if frame.is_empty():
        st.caption("Nobody stands out: no bad streams, or they are spread like the traffic.")
        return
    show(
        frame.select(
            _narrowed(frame),
            "dimension",
            short_name(),
            pl.col("of_all_bad") * 100,
            pl.col("of_all") * 100,
            pl.col("bad_share") * 100,
            "bad",
            pl.col("error_rate") * 100,
            pl.col("ttft_p95_ns") / 1e6,
            pl.col("itl_p95_ns") / 1e6,
        ),
        key="hurting",
        alt="Models, gateways and clients with more bad streams than their share",
        height="content",
        column_config={
            "link": NARROWED,
            "dimension": column.TextColumn("", width=61),
            "name": column.TextColumn("Name", width=122),
            "of_all_bad": column.ProgressColumn(
                "of all bad", format="%.0f %%", min_value=0, max_value=100, width=92, color="orange",
                help="Its part of all bad streams of the selection.",
            ),
            "of_all": column.NumberColumn("of traffic", format="%.0f %%", width=72, help="Its part of all requests."),
            "bad_share": column.NumberColumn("bad", format="%.1f %%", width=64, help="Bad streams of its own requests."),
            "bad": column.NumberColumn("streams", format="%d", help="Bad streams."),
            "error_rate": column.NumberColumn("errors", format="%.1f %%", help=described("error_rate")),
            "ttft_p95_ns": column.NumberColumn("TTFT p95", format="%.0f ms"),
            "itl_p95_ns": column.NumberColumn("ITL p95", format="%.1f ms"),
        },
    )  # fmt: skip


def changes(frame: pl.DataFrame, chosen: Selection) -> None:
    """The models and gateways that moved most against the period before."""
    if frame.is_empty():
        st.caption(
            "Nothing to compare: no model or gateway has 5 requests both in this range and in the "
            f"{formatting.span(chosen.length)} before."
        )
        return
    shown = frame.select(
        _narrowed(frame),
        "dimension",
        short_name(),
        pl.col("ttft_p50_ns") / 1e6,
        pl.col("ttft_change") * 100,
        pl.col("error_rate") * 100,
        pl.col("error_change") * 100,
        pl.col("ttft_p50_before_ns") / 1e6,
        pl.col("error_rate_before") * 100,
        "requests",
        "requests_before",
    )
    show(
        shown,
        key="changes",
        alt="What changed",
        height="content",
        column_config={
            "link": NARROWED,
            "dimension": column.TextColumn("", width=61),
            "name": column.TextColumn("Name", width=100),
            "ttft_p50_ns": column.NumberColumn("TTFT p50", format="%.0f ms", width=72),
            "ttft_change": column.NumberColumn("change", format="%+.0f %%", width=60),
            "error_rate": column.NumberColumn(
                "errors", format="%.1f %%", width=56, help=described("error_rate")
            ),
            "error_change": column.NumberColumn(
                "change", format="%+.1f", width=60, help="Of the error rate, in percentage points."
            ),
            "ttft_p50_before_ns": column.NumberColumn("TTFT before", format="%.0f ms"),
            "error_rate_before": column.NumberColumn("errors before", format="%.1f %%"),
            "requests": column.NumberColumn("Requests", format="%d"),
            "requests_before": column.NumberColumn("before", format="%d"),
        },
    )


def durations(frame: pl.DataFrame, *, name: str, counted: str = "streams") -> None:
    """Quantiles in ns by group (`queries.latency.table`), in ms. `counted`: what `n` counts."""
    quantiles = [c for c in frame.columns if c.endswith("_ns")]
    show(
        frame.with_columns(pl.col(c) / 1e6 for c in quantiles),
        key="quantiles",
        alt=f"Quantiles by {name}",
        column_config={
            "name": column.TextColumn(name.capitalize()),
            "n": column.NumberColumn(counted.capitalize(), format="localized", help="That have this metric."),
            **{c: column.NumberColumn(c.removesuffix("_ns"), format="%.1f ms") for c in quantiles},
        },
    )


def stalls(frame: pl.DataFrame, *, name: str) -> None:
    """Stalls by group (`queries.latency.stalls`)."""
    if frame.is_empty():
        st.caption("Stalls are unknown for these streams.")
        return
    show(
        frame.with_columns(
            pl.col("stalled_share") * 100,
            pl.col("stalled_time_share") * 100,
            pl.col("stalled_ns") / 1e9,
            pl.col("worst_ns") / 1e9,
        ),
        key="stalls",
        alt=f"Stalls by {name}",
        column_config={
            "name": column.TextColumn(name.capitalize()),
            "streams": column.NumberColumn("Streams", format="%d", help="Whose stalls are known."),
            "stalled_streams": column.NumberColumn("with a stall", format="%d"),
            "stalled_share": column.NumberColumn("share", format="%.1f %%"),
            "stalls": column.NumberColumn("Stalls", format="%d"),
            "stalled_ns": column.NumberColumn("Stalled in all", format="%.1f s"),
            "stalled_time_share": column.NumberColumn("of output time", format="%.2f %%"),
            "worst_ns": column.NumberColumn("Longest gap", format="%.2f s"),
        },
    )


def throughput(frame: pl.DataFrame, *, name: str) -> None:
    """Tokens and speed by group (`queries.throughput.table`)."""
    show(
        frame.with_columns(
            pl.col(c) * 100 for c in ("cached_share", "reasoning_share", "burstiness_p50", "known")
        ),
        key="throughput",
        alt=f"Throughput by {name}",
        column_config={
            "name": column.TextColumn(name.capitalize()),
            "requests": column.NumberColumn("Requests", format="%d"),
            "input_tokens": column.NumberColumn("Tokens in", format="localized"),
            "cached_share": column.NumberColumn("cached", format="%.1f %%", help=described("cached")),
            "output_tokens": column.NumberColumn("Tokens out", format="localized"),
            "reasoning_share": column.NumberColumn(
                "reasoning", format="%.1f %%", help="Reasoning tokens / output tokens."
            ),
            "output_per_s": column.NumberColumn("Output", format="%.1f tok/s", help=described("tps_total")),
            "tps_user_p50": column.NumberColumn("Speed p50", format="%.1f tok/s", help=described("tps_user")),
            "tps_user_p5": column.NumberColumn(
                "slowest 5 %", format="%.1f tok/s", help="Quantile 0.05 of the speed."
            ),
            "tps_e2e_p50": column.NumberColumn(
                "with waiting, p50", format="%.1f tok/s", help=described("tps_e2e")
            ),
            "burstiness_p50": column.NumberColumn(
                "Burstiness p50", format="%.0f %%", help=described("burstiness")
            ),
            "known": column.NumberColumn(
                "tokens known", format="%.0f %%", help="Share of streams whose output tokens are known."
            ),
        },
    )


def aborts(frame: pl.DataFrame, *, name: str) -> None:
    """Aborts and their waste by group (`queries.errors.aborts`)."""
    if frame.is_empty():
        st.caption("No client left early in this selection.")
        return
    show(
        frame.with_columns(
            short_name(),
            pl.col("abort_share") * 100,
            pl.col("left_after_ns") / 1e9,
            pl.col("undelivered_bytes") / 1024,
        ),
        key="aborts",
        alt=f"Client aborts by {name}",
        column_config={
            "name": column.TextColumn(name.capitalize()),
            "requests": column.NumberColumn("Requests", format="%d"),
            "aborts": column.NumberColumn("Aborts", format="%d", help=described("aborts")),
            "abort_share": column.NumberColumn("share", format="%.1f %%"),
            "before_output": column.NumberColumn(
                "before the first token", format="%d", help="Left while waiting for the first token."
            ),
            "left_after_ns": column.NumberColumn("left after, p50", format="%.1f s"),
            "output_tokens": column.NumberColumn(
                "Tokens generated", format="%d", help=described("left_tokens")
            ),
            "wasted_tokens": column.NumberColumn("wasted", format="%.0f", help=described("wasted")),
            "undelivered_bytes": column.NumberColumn("undelivered", format="%.1f KiB"),
        },
    )


def error_kinds(frame: pl.DataFrame) -> None:
    """Kinds of errors (`queries.errors.kinds`)."""
    if frame.is_empty():
        st.caption("No errors in this selection.")
        return
    zone = filters.zone()
    show(
        frame.with_columns(pl.col("last_at").dt.convert_time_zone(zone.key).dt.replace_time_zone(None)),
        key="kinds",
        alt="Kinds of errors",
        column_config={
            "outcome": column.TextColumn("Outcome"),
            "error_phase": column.TextColumn("Phase"),
            "error_type": column.TextColumn("Type"),
            "http_status": column.NumberColumn("HTTP", format="%d"),
            "n": column.NumberColumn("Streams", format="%d"),
            "models": column.NumberColumn("Models", format="%d", help="How many models it hit."),
            "gateways": column.NumberColumn("Gateways", format="%d"),
            "last_at": column.DatetimeColumn("Last", format="MM-DD HH:mm:ss"),
            "message": column.TextColumn("Last message", width="large"),
        },
    )
    st.caption(f"Last: {zone.key}.")


def live(frame: pl.DataFrame) -> None:
    """Streams in flight (`queries.live.open_streams`)."""
    shown = frame.select(
        ("stream?id=" + pl.col("stream_id").cast(pl.String)).alias("link"),
        pl.when(pl.col("ttft_ns").is_null())
        .then(pl.lit("waiting"))
        .otherwise(pl.lit("streaming"))
        .alias("state"),
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
    show(
        shown,
        key="live",
        height=560 if frame.height > 9 else "auto",
        alt="Streams in flight",
        column_config={
            **{name: STREAM_COLUMNS[name] for name in ("link", "model", "ttft_ms", "gateway", "client")},
            "state": column.TextColumn("State", width=90),
            "age_s": column.NumberColumn("Open for", format="%.1f s", width=90),
            "silent_s": column.NumberColumn("Last event", format="%.1f s ago", width=110),
            "events_per_s": column.NumberColumn(
                "Output events", format="%.1f /s", width=110, help="A chunk is not a token."
            ),
            "tps": column.NumberColumn(
                "Speed", format="%.1f tok/s", width=100, help="Output tokens / time since the first."
            ),
            "output_tokens": column.NumberColumn(
                "Out", format="%d", width=70, help="Output tokens, where the stream tells already."
            ),
            "output_event_count": column.NumberColumn("of them output", format="%d", width=110),
            "event_count": column.NumberColumn("Events", format="%d", width=80),
            "http_status": column.NumberColumn("HTTP", format="%d", width=70),
        },
    )


def plain(
    frame: pl.DataFrame,
    *,
    key: str,
    zone: ZoneInfo,
    height: int | Literal["auto"] = "auto",
    in_words: bool = False,
) -> None:
    """Any result as it is, instants in a zone (named in their heading); or `in_words`, with counts that can be read."""
    config: dict[str, Any] = {}
    instants = []
    for name, kind in frame.schema.items():
        heading = name.replace("_", " ").capitalize() if in_words else name
        if isinstance(kind, pl.Datetime) and kind.time_zone:
            instants.append(pl.col(name).dt.convert_time_zone(zone.key).dt.replace_time_zone(None))
            config[name] = column.DatetimeColumn(f"{heading} ({zone.key})", format="YYYY-MM-DD HH:mm:ss.SSS")
        elif in_words and kind.is_integer():
            config[name] = column.NumberColumn(heading, format="localized")
        else:
            config[name] = heading
    st.dataframe(
        frame.with_columns(instants),
        hide_index=True,
        key=key,
        placeholder=formatting.UNKNOWN if in_words else "NULL",
        height=height,
        column_config=config,
    )

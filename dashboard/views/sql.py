"""Any question: SQL over the public tables, read-only, limited in time and rows."""

from __future__ import annotations

import time

import altair as alt
import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, query_runner
from dashboard.charts import base
from dashboard.downloads import as_csv, as_parquet
from dashboard.queries import table_columns
from dashboard.sql_examples import COOKBOOK
from dashboard.tables import generic

MOST_ROWS = 10_000
TIMEOUT_S = 20.0
DRAWN_ROWS = 2_000


def take_recipe() -> None:
    """The chosen recipe replaces what stands in the editor."""
    chosen = st.session_state.get("recipe")
    if chosen in COOKBOOK:
        st.session_state["sql"] = COOKBOOK[chosen]


def run(sql: str) -> None:
    """Ask, and keep the answer for this reader: a click on a download must not ask again."""
    began = time.monotonic()
    try:
        with st.spinner("Running …"):
            answer = query_runner.query_untrusted(
                sql.strip().rstrip(";"), max_rows=MOST_ROWS, timeout_s=TIMEOUT_S
            )
    except query_runner.QueryError as error:
        st.session_state["answer"] = None
        st.error(str(error), icon=":material/error:")
        return
    st.session_state["answer"] = (sql, answer, time.monotonic() - began)


def show(sql: str, answer: pl.DataFrame, took_s: float) -> None:
    st.caption(f"{formatting.count(answer.height)} rows in {formatting.duration(took_s * 1e9)}")
    generic.plain(answer, key="result", zone=filters.zone(), height=420 if answer.height > 10 else "auto")
    with st.container(horizontal=True):
        st.download_button(
            "CSV",
            lambda: as_csv(answer),
            "streamgauge.csv",
            "text/csv",
            icon=":material/download:",
            on_click="ignore",
        )
        st.download_button(
            "Parquet", lambda: as_parquet(answer), "streamgauge.parquet", "application/vnd.apache.parquet",
            icon=":material/download:", on_click="ignore",
        )  # fmt: skip
    drawing(answer)


def catalogue() -> None:
    """What can be asked for, and what it means."""
    try:
        found = table_columns.columns(query_runner.ask_seldom)
    except query_runner.QueryError as error:
        st.error(str(error), icon=":material/error:")
        return
    chosen = st.selectbox(
        "Table or view", found["table_name"].unique(maintain_order=True).to_list(), key="table"
    )
    generic.plain(
        found.filter(pl.col("table_name") == chosen).drop("table_name"), key="columns", zone=filters.zone()
    )


def drawing(answer: pl.DataFrame) -> None:
    """Numbers over the first column, when the answer has the shape of a chart."""
    numbers = [c for c, kind in answer.schema.items() if kind.is_numeric()]
    axes = [c for c in answer.columns if c not in numbers]
    if not numbers or not axes or answer.height < 2:
        return
    with st.expander("Chart", expanded=answer.height <= DRAWN_ROWS):
        with st.container(horizontal=True):
            x = st.selectbox("Across", axes, key="chart-x", width=220)
            y = st.selectbox("Up", numbers, key="chart-y", width=220)
            split = st.selectbox(
                "Colour", ["none", *(a for a in axes if a != x)], key="chart-colour", width=220
            )
        drawn = answer.head(DRAWN_ROWS)
        if answer.height > DRAWN_ROWS:
            st.caption(f"The first {formatting.count(DRAWN_ROWS)} rows are drawn.")
        base.draw(free(drawn, x, y, None if split == "none" else split), f"{y} by {x}", key="chart")


def free(frame: pl.DataFrame, x: str, y: str, split: str | None) -> alt.Chart:
    """A line over time, bars over names."""
    plain = frame.select(
        pl.col(x).alias("x"),
        pl.col(y).cast(pl.Float64, strict=False).alias("y"),
        *([pl.col(split).cast(pl.String).alias("s")] if split else []),
    )
    over_time = plain.schema["x"].is_temporal()
    if over_time:
        if isinstance(plain.schema["x"], pl.Datetime) and plain.schema["x"].time_zone:
            plain = base.wall(plain, filters.zone(), "x")
        across = alt.X("x:T", title=None, scale=alt.Scale(type="utc"))
        marks = alt.Chart(plain).mark_line(point=True)
    else:
        plain = plain.with_columns(pl.col("x").cast(pl.String))
        across = alt.X("x:N", title=x, sort=None, axis=alt.Axis(labelLimit=160))
        marks = alt.Chart(plain).mark_bar()
    colour = alt.Color("s:N", title=split) if split else alt.Undefined
    chart: alt.Chart = marks.encode(
        x=across, y=alt.Y("y:Q", title=y), color=colour, tooltip=list(plain.columns)
    ).properties(height=300)
    return chart


page_frame.title(
    "SQL", f"One SELECT over the public tables. Read-only; at most {MOST_ROWS:,} rows and {TIMEOUT_S:g} s."
)
if "sql" not in st.session_state and "sql" not in st.query_params:
    st.session_state["sql"] = next(iter(COOKBOOK.values()))
st.selectbox(
    "Cookbook",
    list(COOKBOOK),
    index=None,
    placeholder="ready queries",
    key="recipe",
    on_change=take_recipe,
    width=420,
)
with st.form("editor", border=False):
    written = st.text_area("SQL", key="sql", bind="query-params", height=220, max_chars=20_000)
    asked = st.form_submit_button("Run", icon=":material/play_arrow:", type="primary", shortcut="Ctrl+Enter")
if asked and written.strip():
    run(written)
kept = st.session_state.get("answer")
if kept:
    show(*kept)
known = st.expander("Tables and columns", icon=":material/schema:", on_change="rerun")
if known.open:
    with known:
        catalogue()

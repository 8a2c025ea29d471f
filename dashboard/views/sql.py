"""SQL over the public tables: read-only, with limits on time and rows; results as table, chart and download."""

from __future__ import annotations

import time
from functools import partial

import altair as alt
import polars as pl
import streamlit as st

from dashboard import filters, formatting, page_frame, query_runner
from dashboard.charts.axes import to_wall_time
from dashboard.charts.drawing import draw
from dashboard.downloads import as_csv, as_parquet
from dashboard.queries import table_columns
from dashboard.sql_examples import EXAMPLES
from dashboard.tables.query_result import show_result

MAX_ROWS = 10_000
TIMEOUT_S = 20.0
CHART_ROWS = 2_000
NO_SPLIT = "none"


def insert_example() -> None:
    chosen = st.session_state.get("example")
    if chosen in EXAMPLES:
        st.session_state["sql"] = EXAMPLES[chosen]


def run(sql: str) -> None:
    """Run a statement and keep its result in the session, so a download does not run it again."""
    began_s = time.monotonic()
    try:
        with st.spinner("Running …"):
            result = query_runner.query_untrusted(
                sql.strip().rstrip(";"), max_rows=MAX_ROWS, timeout_s=TIMEOUT_S
            )
    except query_runner.QueryError as error:
        st.session_state["last_result"] = None
        st.error(str(error), icon=":material/error:")
        return
    st.session_state["last_result"] = (result, time.monotonic() - began_s)


def show(result: pl.DataFrame, duration_s: float) -> None:
    st.caption(f"{formatting.count(result.height)} rows in {formatting.duration(duration_s * 1e9)}")
    show_result(result, key="result", height=420 if result.height > 10 else "auto")
    with st.container(horizontal=True):
        for label, to_bytes, name, mime in (
            ("CSV", as_csv, "streamgauge.csv", "text/csv"),
            ("Parquet", as_parquet, "streamgauge.parquet", "application/vnd.apache.parquet"),
        ):
            st.download_button(
                label, partial(to_bytes, result), name, mime, icon=":material/download:", on_click="ignore"
            )
    show_chart(result)


def show_chart(result: pl.DataFrame) -> None:
    """A chart, if the result has a numeric and another column."""
    numbers = [c for c, dtype in result.schema.items() if dtype.is_numeric()]
    others = [c for c in result.columns if c not in numbers]
    if not numbers or not others or result.height < 2:
        return
    with st.expander("Chart", expanded=result.height <= CHART_ROWS):
        with st.container(horizontal=True):
            x = st.selectbox("X axis", others, key="chart-x", width=220)
            y = st.selectbox("Y axis", numbers, key="chart-y", width=220)
            split = st.selectbox(
                "Colour", [NO_SPLIT, *(c for c in others if c != x)], key="chart-colour", width=220
            )
        if result.height > CHART_ROWS:
            st.caption(f"Only the first {formatting.count(CHART_ROWS)} rows are drawn.")
        chart = chart_of(result.head(CHART_ROWS), x, y, None if split == NO_SPLIT else split)
        draw(chart, f"{y} by {x}", key="chart")


def chart_of(result: pl.DataFrame, x: str, y: str, split: str | None) -> alt.Chart:
    """A line over time, or bars by name."""
    frame = result.select(
        pl.col(x).alias("x"),
        pl.col(y).cast(pl.Float64, strict=False).alias("y"),
        *([pl.col(split).cast(pl.String).alias("s")] if split else []),
    )
    dtype = frame.schema["x"]
    if dtype.is_temporal():
        if isinstance(dtype, pl.Datetime) and dtype.time_zone:
            frame = to_wall_time(frame, filters.time_zone(), "x")
        x_axis = alt.X("x:T", title=None, scale=alt.Scale(type="utc"))
        base = alt.Chart(frame).mark_line(point=True)
    else:
        frame = frame.with_columns(pl.col("x").cast(pl.String))
        x_axis = alt.X("x:N", title=x, sort=None, axis=alt.Axis(labelLimit=160))
        base = alt.Chart(frame).mark_bar()
    color = alt.Color("s:N", title=split) if split else alt.Undefined
    chart: alt.Chart = base.encode(
        x=x_axis, y=alt.Y("y:Q", title=y), color=color, tooltip=list(frame.columns)
    ).properties(height=300)
    return chart


def show_columns() -> None:
    """The columns of one table with their comments."""
    try:
        columns = table_columns.columns(query_runner.query_catalog)
    except query_runner.QueryError as error:
        st.error(str(error), icon=":material/error:")
        return
    chosen = st.selectbox(
        "Table or view", columns["table_name"].unique(maintain_order=True).to_list(), key="table"
    )
    show_result(columns.filter(pl.col("table_name") == chosen).drop("table_name"), key="columns")


page_frame.title(
    "SQL", f"One SELECT over the public tables: read-only, at most {MAX_ROWS:,} rows and {TIMEOUT_S:g} s."
)
if "sql" not in st.session_state and "sql" not in st.query_params:
    st.session_state["sql"] = next(iter(EXAMPLES.values()))
st.selectbox(
    "Examples",
    list(EXAMPLES),
    index=None,
    placeholder="Choose an example",
    key="example",
    on_change=insert_example,
    width=420,
)
with st.form("editor", border=False):
    sql = st.text_area("SQL", key="sql", bind="query-params", height=220, max_chars=20_000)
    submitted = st.form_submit_button(
        "Run", icon=":material/play_arrow:", type="primary", shortcut="Ctrl+Enter"
    )
if submitted and sql.strip():
    run(sql)
if last := st.session_state.get("last_result"):
    show(*last)
schema = st.expander("Tables and columns", icon=":material/schema:", on_change="rerun")
if schema.open:
    with schema:
        show_columns()

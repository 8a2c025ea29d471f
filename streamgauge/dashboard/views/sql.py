"""SQL over the public tables: read-only, with limits on time and rows; results as table, chart and download.

The address contains the statement that was run, and the columns of the chart. A link with a statement runs it.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.query.render import plan_of, render
from streamgauge.analytics.query.statement_filter import allowed_functions
from streamgauge.analytics.reports import formatting, table_columns
from streamgauge.analytics.schema.dimensions import is_client
from streamgauge.analytics.schema.sql_quoting import instant, literal
from streamgauge.dashboard import (
    filters,
    page_frame,
    query_runner,
    sql_editor,
    sql_result,
    sql_statements,
    zoom,
)
from streamgauge.dashboard.charts.drawing import draw, draw_legend
from streamgauge.dashboard.panels import draw_download
from streamgauge.dashboard.sql_statements import SqlProblem, problem_of

MAX_ROWS = 10_000
TABLE, CHART = "Table", "Chart"
NO_COLOR = "none"
DOWNLOADS = {"CSV": "text/csv", "Parquet": "application/vnd.apache.parquet", "JSON": "application/json"}
"""Formats of `streamgauge sql` with their media types."""


@dataclass(frozen=True)
class Answer:
    """What became of a statement. The session keeps it, so a choice or a download does not run the statement again."""

    sql: str
    chosen: tuple[tuple[str, str], ...] = ()
    """The range and the filters that its variables had."""
    rows: pl.DataFrame | None = None
    is_cut: bool = False
    """Whether there are more rows than `MAX_ROWS`."""
    duration_s: float = 0.0
    problem: SqlProblem | None = None


def run(sql: str) -> Answer:
    """Run a statement of the reader."""
    began_s = time.monotonic()
    values, chosen = variable_values(), chosen_for(sql)
    try:
        rows = query_runner.query_untrusted(sql_statements.with_values(sql, values), max_rows=MAX_ROWS)
    except query_runner.QueryError as error:
        at = error.position
        at = None if at is None else sql_statements.position_before(sql, values, at)
        return Answer(sql, chosen, problem=problem_of(str(error), sql, at, columns_of(sql)))
    duration_s = time.monotonic() - began_s
    return Answer(sql, chosen, rows.head(MAX_ROWS), is_cut=rows.height > MAX_ROWS, duration_s=duration_s)


def variable_values() -> dict[str, str]:
    """The SQL of the variables of a statement. A filter is a list for `IN`; without a choice, it has all values of the range."""
    chosen = filters.selection()
    since, until = instant(chosen.since), instant(chosen.until)
    values = {"from": since, "to": until}
    for name, column in sql_statements.COLUMNS.items():
        selected = chosen.chosen[name]
        of_range = f"SELECT {column} FROM streams WHERE started_at >= {since} AND started_at < {until}"
        if column == "client_id" and selected:  # ids, or names of clients
            values[name] = f"({of_range} AND {is_client(column, selected)})"
        else:
            values[name] = f"({', '.join(map(literal, selected)) or of_range})"
    return values


def chosen_for(sql: str) -> tuple[tuple[str, str], ...]:
    """The range and the filters in the address, if the statement depends on them."""
    return tuple(filters.shared_parameters()) if sql_statements.variables(sql) else ()


def columns_of(sql: str) -> list[str]:
    """The columns of the tables that the statement names."""
    words = set(re.findall(r"\w+", sql.lower()))
    return [column for table in names()[0] if table["name"] in words for column, *_ in table["columns"]]


@cache
def _allowed_functions() -> frozenset[str]:
    return allowed_functions()


def names() -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Tables and functions to complete. Empty while the store cannot be read."""
    try:
        functions = table_columns.functions(query_runner.query_catalog)
        tables = table_columns.tables(query_runner.query_catalog)
    except query_runner.QueryError:
        return [], []  # a statement shows the error
    return tables, [one for one in functions if one[0] in _allowed_functions()]


def draw_editor(answer: Answer | None, linked: str | None) -> str | None:
    """The editor. Returns the statement that the reader has just run."""
    # The browser keeps the text; a new revision replaces it.
    state = st.session_state
    if linked is not None and linked != state.get("sql-shown"):  # a link, or the browser's back button
        state["sql-shown"] = linked
        state["sql-revision"] = state.get("sql-revision", 0) + 1
    tables, functions = names()
    problem = None if answer is None else answer.problem
    ran = sql_editor.draw(
        state.setdefault("sql-shown", sql_statements.FIRST.sql),
        revision=state.get("sql-revision", 0),
        mark=sql_editor.Mark(answer.sql, problem.position) if answer is not None and problem else None,
        tables=tables,
        functions=functions,
        recipes=[(group, [asdict(one) for one in found]) for group, found in sql_statements.by_group()],
        open_recipes=linked is None and answer is None,
    )
    if ran is not None:
        state["sql-shown"] = ran
    return ran


def put_in_address(sql: str) -> None:
    if sql_statements.fits(sql):
        st.query_params[sql_statements.PARAMETER] = sql
    else:
        st.query_params.pop(sql_statements.PARAMETER, None)


def show(answer: Answer) -> None:
    """The result, or why there is none."""
    if not sql_statements.fits(answer.sql):
        st.info(sql_statements.too_long(answer.sql), icon=":material/link_off:")
    if answer.problem is not None:
        place = f"Line {answer.problem.line}, column {answer.problem.column}: " if answer.problem.line else ""
        st.error(place + formatting.markdown(answer.problem.text), icon=":material/error:")
    if answer.rows is None:
        return
    if (plan := plan_of(answer.rows)) is not None:
        st.code(plan, language=None)
        return
    axes = sql_result.default_axes(answer.rows)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        view = TABLE
        if axes is not None:
            view = filters.choice("Show as", [TABLE, CHART], TABLE, key="view", show_label=False)
        draw_downloads(answer.rows)
    st.caption(
        f"{formatting.count(answer.rows.height)} rows in {formatting.duration(answer.duration_s * 1e9)}"
    )
    if answer.is_cut:
        st.warning(
            f"The result is cut: it has more than {MAX_ROWS:,} rows. Table, chart and downloads have the first "
            f"{MAX_ROWS:,}. Aggregate, or run it with `streamgauge sql`.",
            icon=":material/content_cut:",
        )
    if axes is not None and view == CHART:
        show_chart(answer.rows, axes)
    else:
        sql_result.show_result(answer.rows, key="result", height=420 if answer.rows.height > 10 else "auto")


def draw_downloads(rows: pl.DataFrame) -> None:
    with st.container(horizontal=True, horizontal_alignment="right", width="content"):
        for label, mime in DOWNLOADS.items():
            form = label.lower()
            draw_download(label, partial(render, rows, form), f"streamgauge.{form}", mime)


def show_chart(rows: pl.DataFrame, default: sql_result.Axes) -> None:
    """A chart of the chosen columns. The address contains the choice."""
    values = sql_result.numbers(rows.schema)
    with st.container(horizontal=True):
        columns = sql_result.drawable(rows.schema)
        x = choose("X axis", columns, default.x, "x")
        y = choose("Y axis", values, default.y, "y")
        others = [NO_COLOR, *(name for name in columns if name not in values)]
        color = choose("Colour", others, default.color or NO_COLOR, "colour")
    axes = sql_result.Axes(x, y, None if color == NO_COLOR else color)
    chart, colors, note = sql_result.result_chart(rows, axes, filters.time_zone())
    if note:
        st.caption(note)
    if colors:
        draw_legend(colors)
    draw(chart, f"{y} by {x}", key="chart")


def choose(label: str, columns: list[str], default: str, key: str) -> str:
    """A column of the result. A choice that this result does not have is forgotten."""
    if st.session_state.get(key, default) not in columns:
        del st.session_state[key]
    if key not in st.session_state and st.query_params.get(key, default) not in columns:
        del st.query_params[key]
    chosen: str = st.selectbox(
        label, columns, index=columns.index(default), key=key, bind="query-params", width=160
    )
    return chosen


def draw_page() -> None:
    """Read-only SQL over the public tables: recipes, charts and downloads."""
    st.caption(
        f"One SELECT over the public tables: read-only, at most {MAX_ROWS:,} rows and {query_runner.TIMEOUT_S:g} s. "
        "The time range and the filters apply where the statement has them: `started_at >= $from AND started_at < $to`, "
        f"{', '.join(f'`{column} IN ${name}`' for name, column in sql_statements.COLUMNS.items())}."
    )
    in_address = st.query_params.get(sql_statements.PARAMETER)
    if in_address is None and zoom.follows_history():
        # The step before the first query. With its answer, the address would get the query again, and no step would leave the page.
        st.session_state.pop("sql-answer", None)
    last: Answer | None = st.session_state.get("sql-answer")
    if in_address is not None:
        in_address = in_address.replace("\r\n", "\n")  # as in the editor, so positions are the same
    submitted = draw_editor(last, in_address)
    if submitted is None and in_address is not None and (last is None or last.sql != in_address):
        submitted = in_address
    if submitted is None and last is not None and last.chosen != chosen_for(last.sql):
        submitted = last.sql
    if submitted is not None and submitted.strip():
        with st.spinner("Running …", show_time=True):
            last = st.session_state["sql-answer"] = run(submitted)
        put_in_address(submitted)
        uses_others = sql_statements.variables(submitted) != sql_statements.variables(in_address or "")
        if uses_others or (last.problem is not None and last.problem.position is not None):
            st.rerun()  # the editor above marks the position, and the head shows what the variables depend on
    if last is not None:
        if in_address is None:
            put_in_address(last.sql)  # the page was left and opened again
        show(last)


def applying() -> set[str]:
    """What changes the answer: the variables of the statement."""
    return sql_statements.variables(st.query_params.get(sql_statements.PARAMETER, ""))


PAGE = page_frame.Page(draw_page, "SQL", "database", applying=applying, shares=False)

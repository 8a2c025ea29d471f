"""Sessions of agents and chats: turns, user wait against model time and tool time, tokens and waste. One turn: model or tool."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting, has_rows, prompt_context, sessions, spend, turn_timeline
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.reports.sessions import bars
from streamgauge.analytics.reports.trace_tree import instant
from streamgauge.dashboard import filters, page_frame
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import draw, draw_legend, draw_split
from streamgauge.dashboard.charts.stream_charts import (
    context_growth,
    session_legend,
    session_turns,
    turn_waterfall,
)
from streamgauge.dashboard.panels import box, draw_download, numbers, section
from streamgauge.dashboard.query_runner import prefetch, query
from streamgauge.dashboard.report_download import draw_report_button
from streamgauge.dashboard.report_tables import show_report

LIMITS = (50, 200)
MAX_REQUESTS, MAX_SUBAGENTS = 500, 100
MAX_TURNS = 80
"""Turns on the time line. The table has more."""
MAX_LANES, MAX_ACTIVITIES = 30, 200
"""Rows of the picture and of the table of a turn."""
ACTIVE, REAL = "active time", "real time"


def body(session_id: str, turn: int | None, order: str, limit: int, chosen: Selection) -> None:
    if session_id and turn is not None:
        show_turn(session_id, turn)
        return
    if session_id:
        show_session(session_id)
        draw_report_button(chosen, session_id)
        return
    count = prefetch(sessions.count, query, chosen)
    found = sessions.table(query, chosen, order=order, limit=limit)
    st.caption(filters.describe(chosen))
    if found.is_empty():
        if has_rows(query, "streams", f"{sessions.IN_SESSION} AND {sessions.IS_NAMED}"):
            page_frame.show_no_matches()
        else:
            show_first_steps()
        return
    costs = spend.of_sessions(query, found)
    show_numbers(found, count())
    show_report(sessions.TABLE, found.join(costs, on="session_id", how="left", maintain_order="left"))


def show_subagents(session_id: str) -> None:
    found = sessions.subagents(query, session_id, most=MAX_SUBAGENTS)
    if found.is_empty():
        return
    section("Subagents")
    costs = spend.of_sessions(query, found)
    rows = found.join(costs, on="session_id", how="left", maintain_order="left")
    show_report(sessions.TABLE, rows, label="Subagents of the session")


def show_first_steps() -> None:
    st.info("**No sessions yet.** No stored request names a session.", icon=":material/forum:")
    st.markdown(
        "Requests are grouped by the session headers and body fields of common agents and SDKs. For other clients, name the header "
        "that has the session: `--session-header NAME`. Session ids are hashed like client ids unless the header is declared safe."
    )


def show_numbers(found: pl.DataFrame, counts: dict[str, int]) -> None:
    shown = f"{formatting.count(len(found))} of {formatting.count(counts['sessions'])} sessions"
    share = formatting.share(counts["in_session"] / counts["requests"] if counts["requests"] else None)
    with box(f"Time of {shown}", metric_help("session_time")):
        draw_split(time_split(found), colors.SESSION_PARTS, "Time of the sessions")
        st.caption(
            f"{share} of the {formatting.count(counts['requests'])} requests in the range belong to a session."
        )


def time_split(found: pl.DataFrame) -> dict[str, float]:
    """The parts of the time of rows of the view `sessions`, in ns."""
    return {part: float(found[column].fill_null(0).sum()) for part, column in sessions.PARTS.items()}


def show_session(session_id: str) -> None:
    row: dict[str, Any] | None = sessions.one(query, session_id)
    if row is None:
        st.warning("Session not found. Its requests may be older than the retention (`--retain-streams`).",
                   icon=":material/warning:")  # fmt: skip
        return
    requests = sessions.requests(query, session_id, most=MAX_REQUESTS)
    requests = requests.with_columns(turn=pl.Series(sessions.turns_of(requests.to_dicts()), dtype=pl.Int64))
    zone = filters.time_zone()
    began, ended = (row[name].astimezone(zone) for name in ("first_at", "last_at"))
    models = ", ".join(formatting.markdown(name) for name in row["models"] or ())
    cost = spend.of_session(query, session_id, row["first_at"], row["last_at"])
    said = spend.said_by_agents(query, [session_id]).get(session_id)
    app = f" · {formatting.markdown(row['client_app'])}" if row["client_app"] else ""
    st.markdown(
        f"**{models or 'unknown model'}**{app} · {began:%Y-%m-%d %H:%M:%S} – {ended:%Y-%m-%d %H:%M:%S} {zone.key}"
        + (f" · estimated cost {cost}" if cost is not None else "")
        + (f" · the agent's estimate {said}" if said is not None else ""),
        help=metric_help("cost") if cost is not None else None,
    )
    if parent := row["parent_session_id"]:
        filters.page_link("sessions", "Session of the parent agent", ":material/forum:", {"session": parent})
    unfinished = formatting.count(row["unfinished_output_tokens"])
    cards = [
        ("Turns", formatting.count(row["turns"]), None),
        ("Requests", formatting.count(row["requests"]), None),
        ("Errors", formatting.count(row["errors"]), None),
        ("TTFT p50", formatting.duration(requests["ttft_ns"].median()), metric_help("ttft")),  # type: ignore[arg-type]
        ("Tokens in", formatting.count(row["input_tokens"]), None),
        ("Tokens out", formatting.count(row["output_tokens"]), None),
        ("Unfinished", unfinished, metric_help("session_unfinished")),
    ]
    numbers(cards, least_px=98, border=False)
    with box("Time", metric_help("session_time")):
        parts = time_split(pl.DataFrame([row], infer_schema_length=None))
        draw_split(parts, colors.SESSION_PARTS, "Time of the session")
    if (missed := sessions.cache_misses(query, session_id, row["first_at"], row["last_at"])) is not None:
        per_hour = missed.cost_per_hour
        price = f", {spend.cost_text(per_hour, missed.currency)}/h" if per_hour is not None else ""
        st.markdown(
            f"Since {missed.since.astimezone(zone):%H:%M} {formatting.markdown(missed.what)}: "
            f"the prompt cache missed {formatting.share(missed.share)} of the input{price}.",
            help=metric_help("cache_misses"),
        )
    show_timeline(requests)
    show_context(session_id)
    show_subagents(session_id)
    section("Requests")
    if len(requests) < row["requests"]:
        st.caption(f"The first {formatting.count(len(requests))} requests are shown.")
    show_report(sessions.REQUESTS_TABLE, requests)


def show_timeline(requests: pl.DataFrame) -> None:
    with box(
        "Turns",
        "One row per turn: thick bars are requests (click one to open its stream), thin bars are pauses. The name of a "
        "turn opens it. A cross marks a request that did not end ok. Active time leaves out the waits for the user.",
    ):
        axis = filters.choice("Time axis", (ACTIVE, REAL), ACTIVE, key="axis", show_label=False)
        found = bars(requests.to_dicts(), with_user_waits=axis == REAL)
        shown = [bar for bar in found if bar.turn < found[0].turn + MAX_TURNS]
        draw_legend(session_legend(shown))
        draw(session_turns(shown), "Turns of the session on a time line", key="turns")
        if len(shown) < len(found):
            st.caption(f"The first {MAX_TURNS} turns are drawn.")


def show_context(session_id: str) -> None:
    parts = prompt_context.parts(query, session_id, most=MAX_REQUESTS)
    if parts.is_empty():
        return
    with box("Context", metric_help("context")):
        value = filters.choice("Unit", ("tokens", "bytes"), "tokens", key="context", show_label=False)
        draw_legend(colors.present(colors.CONTEXT, parts, "part"))
        draw(context_growth(parts, value), "Parts of the prompts by request", key="context-growth")
    if (carried := prompt_context.carried(query, session_id)) is not None:
        section("Tools in the context")
        st.caption(f"{prompt_context.carried_text(carried)}.")
        by = filters.choice(
            "By", tuple(prompt_context.GROUPS), prompt_context.TOOL, key="tools-by", show_label=False
        )
        show_report(prompt_context.TOOLS, prompt_context.tools(query, session_id, by), by=by)


def show_turn(session: str, number: int) -> None:
    filters.draw_back("turn", "All turns of the session")
    found = turn_timeline.one(query, session, number)
    if found is None:
        st.warning("Turn not found in the stored requests of the session.", icon=":material/warning:")
        return
    zone = filters.time_zone()
    st.markdown(f"**{formatting.markdown(turn_timeline.answer(found))}**")
    st.caption(
        f"Turn {number}, from {instant(found.start_ns).astimezone(zone):%Y-%m-%d %H:%M:%S} {zone.key}."
    )
    lanes = turn_timeline.lanes(found)
    with box("Time", metric_help("critical_path")):
        draw_split(turn_timeline.parts_ns(found), colors.TURN_PARTS, "Time of the turn")
        chart = turn_waterfall(found, lanes[:MAX_LANES])
        draw(chart, f"Waterfall of the turn. {turn_timeline.answer(found)}", key="turn-waterfall")
        notes = [
            "Full colour: the critical path. A click on a bar opens its stream.",
            "Calls of MCP that name no agent are counted here, because no other agent was active."
            if found.by_time
            else "",
            f"The first {MAX_LANES} of {len(lanes)} rows are drawn." if len(lanes) > MAX_LANES else "",
        ]
        st.caption(" ".join(filter(None, notes)))
        trace, help_text = partial(turn_timeline.perfetto_trace, found), "Open the file at ui.perfetto.dev."
        draw_download("Perfetto trace", trace, f"turn-{number}.json", "application/json", help_text)
    section("Longest")
    show_report(turn_timeline.ACTIVITIES, turn_timeline.activities(found, most=MAX_ACTIVITIES))


def draw_page() -> None:
    """Sessions of agents and chats: turns, user wait, model time and tool time, tokens."""
    st.caption("Requests of one agent or chat, by turn.")
    with filters.row():
        session_id = filters.text("Session id", key="session", placeholder="all sessions", width=340)
        turn = st.number_input(
            "Turn",
            value=None,
            min_value=1,
            step=1,
            key="turn",
            bind="query-params",
            placeholder="all",
            width=110,
        )
        order = filters.select("Order", list(sessions.ORDERS), key="order", width=170)
        limit = filters.select("Rows", LIMITS, key="rows", width=100)
    page_frame.show(partial(body, session_id, turn, order, limit), uses_time_range=False)


PAGE = page_frame.Page(draw_page, "Sessions", "forum")

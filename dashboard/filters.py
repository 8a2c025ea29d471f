"""The time range and the filters: widgets in the sidebar, bound to the URL, read by every page.

- The URL is the state: `?range=1h&model=…&gateway=…&client=…`, so that a link shows another reader the same.
- A value that the URL names is offered even when no stream of the range has it: a link never loses its filter.
- A custom range is in UTC whatever the reader's zone, so that a link means the same everywhere.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard import formatting, query_runner
from dashboard.queries import overview
from dashboard.queries.selection import Selection

RANGES: dict[str, timedelta] = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
CUSTOM = "custom"
DEFAULT_RANGE = "15m"
REFRESH_S: dict[str, int | None] = {"5s": 5, "15s": 15, "60s": 60, "off": None}
DEFAULT_REFRESH = "5s"
ALL = "all"


def sidebar() -> None:
    """Draw the widgets. Call once per run, before the page."""
    with st.sidebar:
        st.selectbox(
            "Time range", [*RANGES, CUSTOM], index=list(RANGES).index(DEFAULT_RANGE), key="range", bind="query-params",
            help="By the start of a stream. The URL keeps the range and the filters: share it.",
        )  # fmt: skip
        if st.session_state.get("range") == CUSTOM:
            now = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
            st.datetime_input("From (UTC)", value=now - timedelta(hours=1), key="from", bind="query-params")
            st.datetime_input("Until (UTC)", value=now, key="until", bind="query-params")
        offered = _choices()
        for name, label in (("model", "Models"), ("gateway", "Gateways"), ("client", "Clients")):
            options = list(dict.fromkeys([*offered.get(name, []), *st.query_params.get_all(name)]))
            st.multiselect(label, options, key=name, bind="query-params", placeholder=ALL, wrap=True)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.selectbox("Refresh", list(REFRESH_S), key="refresh", bind="query-params", width=110)
            st.toggle(
                "UTC",
                key="utc",
                bind="query-params",
                help="Show times in UTC instead of your browser's zone.",
            )


def selection(now: datetime | None = None) -> Selection:
    """What is chosen, at this moment."""
    state = st.session_state
    length = state.get("range", DEFAULT_RANGE)
    now = now or datetime.now(UTC)
    until = now.replace(microsecond=0, second=now.second - now.second % 2) + timedelta(seconds=2)
    since = until - RANGES.get(length, RANGES[DEFAULT_RANGE])
    if length == CUSTOM and state.get("from") and state.get("until"):
        since, until = state["from"].replace(tzinfo=UTC), state["until"].replace(tzinfo=UTC)
        if until <= since:
            since, until = until, since + timedelta(minutes=1)
    return Selection(
        since=since,
        until=until,
        models=chosen("model"),
        gateways=chosen("gateway"),
        clients=chosen("client"),
    )


def refresh_s() -> int | None:
    """Seconds between refreshes, None for none."""
    return REFRESH_S.get(st.session_state.get("refresh", DEFAULT_REFRESH), 5)


def zone() -> ZoneInfo:
    """The zone that times are shown in: the browser's, or UTC when it is unknown or asked for."""
    name = None if st.session_state.get("utc") else st.context.timezone
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def said(chosen: Selection) -> str:
    """The selection in words, with the zone of all times on the page."""
    where = zone()
    begin, end = chosen.since.astimezone(where), chosen.until.astimezone(where)
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    parts = [f"{formatting.span(chosen.length)}: {begin:%Y-%m-%d %H:%M:%S} – {until} {where.key}"]
    for label, values in (("model", chosen.models), ("gateway", chosen.gateways), ("client", chosen.clients)):
        if values:
            parts.append(f"{label} {', '.join(values)}")
    return " · ".join(parts)


def chosen(name: str) -> tuple[str, ...]:
    """The values of one filter ("model", "gateway", "client"); none means all."""
    return tuple(st.session_state.get(name) or ())


def _choices() -> dict[str, list[str]]:
    try:
        chosen = selection()
        coarse = chosen.since.replace(second=0)  # so that the answer is shared for a while
        return overview.choices(
            query_runner.ask_seldom,
            Selection(since=coarse, until=coarse + chosen.length + timedelta(minutes=2)),
        )
    except query_runner.QueryError:
        return {}  # the page itself says what is wrong

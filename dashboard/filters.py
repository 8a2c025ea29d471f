"""The time range and the filters of all pages: widgets in the sidebar and the resulting `Selection`.

- The URL contains every choice (`?range=1h&model=…&gateway=…&client=…`), so a link shows the same data to another reader.
- Filter values in the URL stay selectable even if no stream in the range has them.
- A custom range is always in UTC, so a link means the same range for every reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard import formatting, query_runner
from dashboard.charts.axes import TimeRange
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
FILTERS = {"model": "Models", "gateway": "Gateways", "client": "Clients"}
"""Dimension → label of its filter."""


def draw_sidebar() -> None:
    """Draw the widgets. Call once per run, before the page."""
    with st.sidebar:
        st.selectbox(
            "Time range", [*RANGES, CUSTOM], index=list(RANGES).index(DEFAULT_RANGE), key="range", bind="query-params",
            help="Streams that started in this range. The URL contains the range and the filters.",
        )  # fmt: skip
        if st.session_state.get("range") == CUSTOM:
            now = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
            st.datetime_input("From (UTC)", value=now - timedelta(hours=1), key="from", bind="query-params")
            st.datetime_input("Until (UTC)", value=now, key="until", bind="query-params")
        offered = _options()
        for name, label in FILTERS.items():
            values = options(offered, name, key=name)
            st.multiselect(label, values, key=name, bind="query-params", placeholder="all", wrap=True)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.selectbox("Refresh", list(REFRESH_S), key="refresh", bind="query-params", width=110)
            st.toggle(
                "UTC",
                key="utc",
                bind="query-params",
                help="Show times in UTC instead of the time zone of your browser.",
            )


def options(offered: dict[str, list[str]], name: str, *, key: str) -> list[str]:
    """The values of a filter: offered values, then values of the URL parameter `key`."""
    return list(dict.fromkeys([*offered.get(name, []), *st.query_params.get_all(key)]))


def _options() -> dict[str, list[str]]:
    try:
        chosen = selection()
        since = chosen.since.replace(second=0)  # same SQL for a minute, so readers share the result
        until = since + chosen.length + timedelta(minutes=2)
        return overview.filter_options(query_runner.query_catalog, Selection(since=since, until=until))
    except query_runner.QueryError:
        return {}  # the page itself shows the error


def selection(now: datetime | None = None) -> Selection:
    """The selection of the sidebar. Relative ranges end at `now`."""
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
        models=selected("model"),
        gateways=selected("gateway"),
        clients=selected("client"),
    )


def selected(name: str) -> tuple[str, ...]:
    """The selected values of one filter. An empty tuple means all."""
    return tuple(st.session_state.get(name) or ())


def refresh_interval_s() -> int | None:
    """Seconds between refreshes, or None."""
    return REFRESH_S.get(st.session_state.get("refresh", DEFAULT_REFRESH), 5)


def time_zone() -> ZoneInfo:
    """The time zone of all times on the page: the browser's, or UTC if it is unknown or selected."""
    name = None if st.session_state.get("utc") else st.context.timezone
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def time_range(chosen: Selection, bucket_s: int | None = None) -> TimeRange:
    """The selection as a time axis."""
    return TimeRange(chosen.since, chosen.until, time_zone(), bucket_s or chosen.bucket_s)


def describe(chosen: Selection) -> str:
    """The selection as text, with the time zone."""
    zone = time_zone()
    begin, end = chosen.since.astimezone(zone), chosen.until.astimezone(zone)
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    parts = [f"{formatting.span(chosen.length)}: {begin:%Y-%m-%d %H:%M:%S} – {until} {zone.key}"]
    for label, values in (("model", chosen.models), ("gateway", chosen.gateways), ("client", chosen.clients)):
        if values:
            parts.append(f"{label} {', '.join(values)}")
    return " · ".join(parts)


def choice(label: str, values: Sequence[str], default: str, *, key: str, show_label: bool = True) -> str:
    """A row of options, one of them selected. The URL contains the choice under `key`."""
    chosen: str = st.segmented_control(
        label, values, default=default, required=True, key=key, bind="query-params",
        label_visibility="visible" if show_label else "collapsed",
    )  # fmt: skip
    return chosen

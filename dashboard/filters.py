"""The time range and the filters of all pages: widgets in the header and the sidebar, and the resulting `Selection`.

- The URL contains every choice (`?range=1h&model=…&gateway=…&client=…`), so a link shows the same data to another reader.
- Filter values in the URL stay selectable even if no stream in the range has them.
- A custom range is always in UTC, so a link means the same range for every reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from streamgauge.analytics.reports import formatting, overview
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import query_runner, zoom
from streamgauge.dashboard.charts.axes import TimeRange

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
_CHOSEN = "filters-chosen"
PAGE_FILTERS: dict[str, dict[str, str]] = {
    "Streams": {"outcome": "Outcome", "cause": "Cause", "status": "HTTP status", "dialect": "Dialect"},
}
"""Title of a page → its own filters: name → label. They have no widget: links set them in the URL, and chips remove them."""


def draw_time_range(*, enabled: bool = True) -> None:
    """Draw the time range, the refresh interval and the time zone. `enabled` is False where the range does not apply."""
    st.selectbox(
        "Time range", [*RANGES, CUSTOM], index=list(RANGES).index(DEFAULT_RANGE), key="range", bind="query-params",
        width=112, disabled=not enabled, on_change=zoom.clear,
        help="Streams that started in this range. The URL contains the range and the filters."
        if enabled
        else "The time range does not apply to this page.",
    )  # fmt: skip
    if st.session_state.get("range") == CUSTOM:
        now = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
        for key, label, value in (
            ("from", "From (UTC)", now - timedelta(hours=1)),
            ("until", "Until (UTC)", now),
        ):
            st.datetime_input(
                label, value=value, key=key, bind="query-params", width=190, disabled=not enabled
            )
    st.selectbox("Refresh", list(REFRESH_S), key="refresh", bind="query-params", width=84)
    st.toggle(
        "UTC",
        key="utc",
        bind="query-params",
        help="Show times in UTC instead of the time zone of your browser.",
    )


def draw_sidebar() -> None:
    """Draw the filters. Call once per run, before the page."""
    with st.sidebar:
        offered = _options()
        for name, label in FILTERS.items():
            values = options(offered, name, key=name)
            st.multiselect(label, values, key=name, bind="query-params", placeholder="all", wrap=True)


def draw_chips(page_filters: Iterable[str] = ()) -> None:
    """Draw one button for each value of a filter. It removes the value. `page_filters` are those of `PAGE_FILTERS`."""
    chosen = [(name, value) for name in FILTERS for value in selected(name)]
    chosen += [(name, value) for name in page_filters for value in st.query_params.get_all(name)]
    if not chosen and zoom.current() is None:
        return
    with st.container(horizontal=True, gap="small", key="chips"):
        zoom.draw_zooms(time_zone())
        for name, value in chosen:
            st.button(
                f"{name}: {formatting.markdown(value)}",
                key=f"chip-{name}-{value}",
                icon=":material/close:",
                icon_position="right",
                help="Remove this filter.",
                on_click=_remove,
                args=[(name, value)],
            )
        if len(chosen) > 1:
            st.button(
                "Remove all filters",
                key="chip-all",
                type="tertiary",
                on_click=_remove,
                args=chosen,
            )


def choose(values: Mapping[str, str]) -> None:
    """Set filters to one value each. For callbacks of the pages; `page_frame` then reruns the sidebar, too."""
    for name, value in values.items():
        st.session_state[name] = [value]
    st.session_state[_CHOSEN] = True


def was_chosen() -> bool:
    """Whether `choose` set filters since the last call."""
    return bool(st.session_state.pop(_CHOSEN, False))


def _remove(*chosen: tuple[str, str]) -> None:
    """Remove values of filters."""
    for name, value in chosen:
        if name in FILTERS:
            st.session_state[name] = [v for v in selected(name) if v != value]
        else:
            st.query_params[name] = [v for v in st.query_params.get_all(name) if v != value]


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


SHARED_PARAMETERS = ("range", "from", "until", zoom.KEY, "utc", "refresh", *FILTERS)
"""URL parameters that all pages share."""
EXCLUDED_PARAMETERS = frozenset({"token"})
"""URL parameters that links do not repeat."""


def shared_parameters() -> list[tuple[str, str]]:
    """The URL parameters of this page for a link to another page with the same time range and filters."""
    return [(key, value) for key in SHARED_PARAMETERS for value in st.query_params.get_all(key)]


def page_address(page: str, parameters: Mapping[str, str]) -> str:
    """The address of another page with the same time range and filters, for a link."""
    return f"{page}?{urlencode([*parameters.items(), *shared_parameters()])}"


def address_with(changes: Mapping[str, Sequence[str]]) -> str:
    """The address of this page with other values of some parameters, for a link."""
    kept = [
        (key, value)
        for key in st.query_params
        if key not in changes and key not in EXCLUDED_PARAMETERS
        for value in st.query_params.get_all(key)
    ]
    return "?" + urlencode([*kept, *((key, value) for key, values in changes.items() for value in values)])


def selection(now: datetime | None = None) -> Selection:
    """The selection of the widgets. Relative ranges end at `now`."""
    state = st.session_state
    length = state.get("range", DEFAULT_RANGE)
    now = now or datetime.now(UTC)
    until = now.replace(microsecond=0, second=now.second - now.second % 2) + timedelta(seconds=2)
    since = until - RANGES.get(length, RANGES[DEFAULT_RANGE])
    if length == CUSTOM and state.get("from") and state.get("until"):
        since, until = state["from"].replace(tzinfo=UTC), state["until"].replace(tzinfo=UTC)
        if until <= since:
            since, until = until, since + timedelta(minutes=1)
    since, until = zoom.current() or (since, until)
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


def time_range(
    chosen: Selection, bucket_s: int | None = None, marks: Sequence[tuple[datetime, str]] = ()
) -> TimeRange:
    """The selection as a time axis. `marks` as in `TimeRange`."""
    zoom.remember_drawn(chosen.since, chosen.until)
    return TimeRange(chosen.since, chosen.until, time_zone(), bucket_s or chosen.bucket_s, marks)


def describe(chosen: Selection) -> str:
    """The selection as text, with the time zone."""
    zone = time_zone()
    begin, end = chosen.since.astimezone(zone), chosen.until.astimezone(zone)
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    parts = [f"{formatting.span(chosen.length)}: {begin:%Y-%m-%d %H:%M:%S} – {until} {zone.key}"]
    by_name = (("model", chosen.models), ("gateway", chosen.gateways), ("client", chosen.clients))
    for label, values in (*by_name, *chosen.further):
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

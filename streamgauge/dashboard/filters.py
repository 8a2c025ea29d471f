"""The time range and the filters of all pages: widgets in the header and the sidebar, and the resulting `Selection`.

The widgets and the addresses of pages are here too, because every choice of a page is part of its address.

- The URL contains every choice (`?range=1h&model=…&gateway=…&client=…`), so a link shows the same data to another reader.
- Filter values in the URL stay selectable even if no stream in the range has them.
- A custom range is always in UTC, so a link means the same range for every reader.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from streamgauge.analytics.reports import formatting, overview, stream_lists
from streamgauge.analytics.reports.selection import DIMENSIONS, Selection
from streamgauge.analytics.reports.selection import FILTERS as selection_filters
from streamgauge.analytics.schema.clients import NO_CLIENT_NAMES, shortened
from streamgauge.analytics.schema.dimensions import LABEL
from streamgauge.dashboard import page_settings, query_runner, zoom
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import TimeRange
from streamgauge.dashboard.page_head import PAGES

T = TypeVar("T")

RANGES = ("5m", "15m", "1h", "6h", "24h", "7d", "30d")
"""Offered lengths of the time range. Any other one can be entered."""
CUSTOM = "custom"
DEFAULT_RANGE = "15m"
ENDS = {"from": "From (UTC)", "until": "Until (UTC)"}
"""URL parameter of each end of a custom range → its label."""
REFRESH_S: dict[str, int | None] = {"5s": 5, "15s": 15, "60s": 60, "off": None}
DEFAULT_REFRESH = "5s"
FILTERS = {name: f"{name.capitalize()}s" for name in selection_filters}
"""Filter → its heading."""
_OPENS = "opens-address"
GROUPED_BY = {"prompt size": "prompt", "dialect": "dialect", **dict(zip(DIMENSIONS, DIMENSIONS, strict=True))}
"""Grouping of charts and tables → filter of *Streams* that selects a group. Labels have the filter `label`."""
NO_FILTER = ("", "everything", "session")
"""Groupings without a filter."""


def draw_time_range(*, enabled: bool = True) -> None:
    """Draw the time range, the refresh interval and the time zone. `enabled` is False where the range does not apply."""
    chosen = st.selectbox(
        "Time range", options([*RANGES, CUSTOM], key="range"), index=RANGES.index(DEFAULT_RANGE), key="range", bind="query-params",
        width=112, disabled=not enabled, on_change=_begin_range, accept_new_options=True,
        help="Streams that started in this range. Enter any other duration, such as 30m, 3h or 2d."
        if enabled
        else "The time range does not apply to this page.",
    )  # fmt: skip
    if chosen != CUSTOM and length_of(chosen) is None:
        st.caption(
            f"{formatting.markdown(chosen[:80])} is not a duration such as 30m, 3h or 2d: the range is {DEFAULT_RANGE}."
        )
    if chosen == CUSTOM:
        for key, label in ENDS.items():
            # Without a default, which Streamlit would leave out of the URL: the link would mean another range a minute later.
            st.datetime_input(
                label, value=None, key=key, bind="query-params", width=190, disabled=not enabled
            )
    select("Refresh", list(REFRESH_S), key="refresh", width=84)
    st.toggle(
        "UTC",
        key="utc",
        bind="query-params",
        help="Show times in UTC instead of the time zone of your browser.",
    )


def _begin_range() -> None:
    """A new range has no zoom. A custom one begins with the last hour."""
    zoom.clear()
    if st.session_state["range"] == CUSTOM:
        now = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
        for key, at in zip(ENDS, (now - timedelta(hours=1), now), strict=True):
            st.session_state[key] = at
            st.query_params[key] = f"{at:%Y-%m-%dT%H:%M}"


def draw_sidebar() -> None:
    """Draw the filters and the saved views. Call once per run, before the page."""
    with st.sidebar:
        offered = {}
        with contextlib.suppress(query_runner.QueryError):  # the page itself shows the error
            offered = offered_values()
        for name, label in FILTERS.items():
            values = options(offered.get(name, ()), key=name)
            if name == LABEL and not values:  # there are none
                continue
            st.multiselect(label, values, key=name, bind="query-params", placeholder="all", wrap=True)
        if views := page_settings.saved_views():
            st.html(saved_views_markup(views))


def offered_values() -> dict[str, list[str]]:
    """The values of each filter in the time range, busiest first. Raises QueryError."""
    chosen = selection().in_minutes()  # the same for all readers, so they share the answer
    return overview.filter_options(
        query_runner.query_catalog, Selection(since=chosen.since, until=chosen.until)
    )


def saved_views_markup(views: Iterable[tuple[str, str]]) -> str:
    """Links to saved views, names and addresses relative to the dashboard, as HTML.

    They come from the settings and from readers who saved a view. All readers see the same ones.
    """
    links = "".join(
        f'<li><a href="{escape(f"./{address}")}" target="_self">{escape(name)}</a></li>'
        for name, address in views
    )
    return f'<nav class="sg-views" aria-label="Saved views"><span>Saved views</span><ul>{links}</ul></nav>'


def draw_chips(applying: Collection[str], page_filters: Iterable[str] = ()) -> None:
    """Draw one button for each value of a filter. It removes the value.

    `applying` are the filters that change the page, and `from` or `to` if the time range does. `page_filters` are its own.
    """
    chosen = [(name, value) for name in FILTERS if name in applying for value in selected(name)]
    chosen += [(name, value) for name in page_filters for value in st.query_params.get_all(name)]
    is_zoomed = (zoom.current() is not None or zoom.is_comparing()) and (
        "from" in applying or "to" in applying
    )
    if not chosen and not is_zoomed:
        return
    with st.container(horizontal=True, gap="small", key="chips"):
        if is_zoomed:
            zoom.draw_zooms(time_zone())
        for name, value in chosen:
            text = stream_lists.duration_text(value) if name == "duration" else f"{name}: {value}"
            chip, key = formatting.markdown(text), f"{name}-{value}"
            zoom.draw_chip(chip, key, "Remove this filter.", _remove, (name, value))
        if len(chosen) > 1:
            st.button("Remove all filters", key="chip-all", type="tertiary", on_click=_remove, args=chosen)


def _remove(*chosen: tuple[str, str]) -> None:
    """Remove values of filters."""
    for name, value in chosen:
        if name in FILTERS:
            st.session_state[name] = [v for v in selected(name) if v != value]
        else:
            st.query_params[name] = [v for v in st.query_params.get_all(name) if v != value]


def options(offered: Iterable[str], *, key: str) -> list[str]:
    """The values of a filter: offered values, then values of the URL parameter `key`, which would be rejected otherwise."""
    return list(dict.fromkeys([*offered, *st.query_params.get_all(key)]))


SHARED_PARAMETERS = ("range", "from", "until", zoom.KEY, "utc", "refresh", *FILTERS)
"""URL parameters that all pages share."""
EXCLUDED_PARAMETERS = frozenset({"token"})
"""URL parameters that links do not repeat."""


def shared_parameters() -> list[tuple[str, str]]:
    """The URL parameters of this page for a link to another page with the same time range and filters."""
    return [(key, value) for key in SHARED_PARAMETERS for value in st.query_params.get_all(key)]


def parameters_with(changes: Mapping[str, str]) -> list[tuple[str, str]]:
    """The parameters of a link to another page: `changes`, and the time range and filters of this page for all others."""
    return [*changes.items(), *(pair for pair in shared_parameters() if pair[0] not in changes)]


def page_address(page: str, changes: Mapping[str, str]) -> str:
    """The address of another page with the same time range and filters except `changes`, for a link in HTML."""
    return f"{page}?{urlencode(parameters_with(changes))}"


def draw_back(parameter: str, label: str) -> None:
    """Draw a link to this page without one of its parameters."""
    address = escape(address_with({parameter: []}))
    st.html(f'<a class="sg-back" href="{address}" target="_self">← {label}</a>')


def page_link(page: str, label: str, icon: str, changes: Mapping[str, str] | None = None) -> None:
    """Draw a link to another page with the same time range and filters except `changes`."""
    parameters = parameters_with(changes or {})
    target = st.session_state[PAGES][page]
    st.page_link(target, label=label, icon=icon, query_params=parameters, width="content")


def label_names() -> list[str]:
    """The labels by which pages group."""
    with contextlib.suppress(query_runner.QueryError):  # the page itself shows the error
        return overview.label_names(query_runner.query_catalog)
    return []


def groupings() -> list[str]:
    """What all pages group by: dimensions and labels."""
    return [*DIMENSIONS, *label_names()]


def of_group(by: str, name: object) -> dict[str, str]:
    """The filter that selects a group, with its value. Empty for groups without one."""
    if by in GROUPED_BY:
        return {GROUPED_BY[by]: str(name)}
    return {} if by in NO_FILTER else {LABEL: f"{by}={name}"}


def group_address(by: str, name: object) -> str:
    """The address of this page, filtered to one group."""
    return address_with({key: (value,) for key, value in of_group(by, name).items()})


def streams_address(by: str, name: str | None, changes: Mapping[str, str] | None = None) -> str | None:
    """The address of the streams of a group. None for groups that no filter selects, such as "others"."""
    if by in NO_FILTER:
        return page_address("streams", changes or {})
    if name in (None, *NO_CLIENT_NAMES[1:], colors.OTHERS, colors.TOTAL):
        return None
    return page_address("streams", of_group(by, name) | dict(changes or {}))


def opens_streams(
    time: TimeRange | None = None, *, by: str = "", series: str = "name", column: str = "", **changes: str
) -> Callable[[Mapping[str, Any]], None]:
    """What a click on a mark of a chart does: open its streams.

    The streams are limited by all of these: the mark's point of `time`, its group by `by` (field `series`), its bin of the duration
    `column`, and `changes`.
    """

    def opens(mark: Mapping[str, Any]) -> None:
        limits = dict(changes)
        if time is not None:
            limits[zoom.KEY] = zoom.to_text(time.point(mark["t"]))
        if column in stream_lists.DURATIONS:
            limits["duration"] = f"{column}:{mark['low_ns']:.6f}-{mark['high_ns']:.6f}"
        st.session_state[_OPENS] = streams_address(by, mark.get(series), limits) or page_address(
            "streams", limits
        )

    return opens


def opened() -> str | None:
    """The address to open after a click on a mark or the brush of a second range. None on the second call."""
    if (ranges := zoom.compared()) is not None:
        return page_address("compare", dict(zip(("A-when", "B-when"), ranges, strict=True)))
    address: str | None = st.session_state.pop(_OPENS, None)
    return address


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
    """The selection of the widgets, or of the address before they are drawn. Relative ranges end at `now`."""
    state = st.session_state
    length = state.get("range") or st.query_params.get("range") or DEFAULT_RANGE
    now = now or datetime.now(UTC)
    # In steps of 2 s, as long as `query_runner.CACHED_S`: readers within one step ask the same SQL and share the answer.
    until = now.replace(microsecond=0, second=now.second - now.second % 2) + timedelta(seconds=2)
    since = until - (length_of(length) or length_of(DEFAULT_RANGE) or timedelta(0))
    if length == CUSTOM and state.get("from") and state.get("until"):
        since, until = state["from"].replace(tzinfo=UTC), state["until"].replace(tzinfo=UTC)
        # The reader may enter the two ends in either order. An empty range would have no axis.
        if until <= since:
            since, until = until, since + timedelta(minutes=1)
    since, until = zoom.current() or (since, until)
    return Selection(since=since, until=until).filtered({name: selected(name) for name in FILTERS})


def is_known() -> bool:
    """Whether `selection` already returns what the widgets will have when they are drawn."""
    state, address = st.session_state, st.query_params
    if "range" not in state:
        return address.get("range") != CUSTOM
    return address.get("range") in (None, state["range"]) and all(
        address.get_all(name) in ([], state.get(name) or []) for name in FILTERS
    )


def length_of(text: str) -> timedelta | None:
    """The duration of a text such as `30m`, `3h` or `2d`. None for other texts, and for durations above ten years."""
    found = re.fullmatch(r"(\d{1,7}) ?([smhdw])", text.strip())
    length = timedelta(seconds=int(found[1]) * formatting.UNITS_S[found[2]]) if found else timedelta(0)
    return length if zoom.SHORTEST <= length <= timedelta(days=3660) else None


def selected(name: str) -> tuple[str, ...]:
    """The selected values of one filter. An empty tuple means all."""
    return tuple(st.session_state[name] if name in st.session_state else st.query_params.get_all(name))


def refresh_interval_s() -> int | None:
    """Seconds between refreshes, or None."""
    return REFRESH_S.get(st.session_state.get("refresh", DEFAULT_REFRESH), 5)


def time_zone() -> ZoneInfo:
    """The time zone of all times on the page: the browser's, or UTC if it is unknown or selected."""
    # A browser may name a zone that this host does not know, for example with an older time zone database.
    name = None if st.session_state.get("utc") else st.context.timezone
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def time_range(
    chosen: Selection,
    bucket_s: int | None = None,
    marks: Sequence[tuple[datetime, str]] = (),
    complete_until: datetime | None = None,
) -> TimeRange:
    """The selection as a time axis. `marks` and `complete_until` as in `TimeRange`."""
    # A drag arrives as fractions of the axis, whose ends move with each refresh.
    zoom.remember_drawn(chosen.drawn_since, chosen.until)
    return TimeRange(
        chosen.drawn_since, chosen.until, time_zone(), bucket_s or chosen.bucket_s, marks, complete_until
    )


def describe(chosen: Selection) -> str:
    """The selection in Markdown, with the time zone."""
    zone = time_zone()
    begin, end = chosen.since.astimezone(zone), chosen.until.astimezone(zone)
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    parts = [f"{formatting.span(chosen.length)}: {begin:%Y-%m-%d %H:%M:%S} – {until} {zone.key}"]
    if chosen.began is not None and chosen.since < chosen.began < chosen.until:
        parts.append(f"data since {chosen.began.astimezone(zone):%H:%M:%S}")
    for label, values in (*chosen.chosen.items(), *chosen.further):
        if values:
            parts.append(f"{label} {formatting.markdown(', '.join(values))}")
    return " · ".join(parts)


def choice(label: str, values: Sequence[str], default: str, *, key: str, show_label: bool = True) -> str:
    """A row of options, one of them selected. The URL contains the choice under `key`."""
    chosen: str = st.segmented_control(
        label, values, default=default, required=True, key=key, bind="query-params",
        label_visibility="visible" if show_label else "collapsed",
    )  # fmt: skip
    return chosen


def select(
    label: str, values: Sequence[T], *, key: str, width: int | Literal["stretch"] = "stretch", index: int = 0
) -> T:
    """A list of options, one of them selected. The URL contains the choice under `key`."""
    return st.selectbox(label, values, index=index, key=key, bind="query-params", width=width)


def text(label: str, *, key: str, placeholder: str, width: int, **options: Any) -> str:
    """A field for a text, without spaces at its ends. The URL contains it under `key`. Options as of `st.text_input`."""
    entered = st.text_input(
        label, key=key, bind="query-params", placeholder=placeholder, width=width, **options
    )
    return (entered or "").strip()


def row() -> DeltaGenerator:
    """A container of widgets side by side."""
    return st.container(horizontal=True, vertical_alignment="bottom")


PAGE = "page"
"""The URL parameter of the page of a long list."""


def page_number() -> int:
    """The page of a long list, from 1."""
    text = st.query_params.get(PAGE, "1")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def draw_pager(*, has_more: bool) -> None:
    """Links to the previous and the next page of a long list, if there are any."""
    page = page_number()
    if page == 1 and not has_more:
        return

    def link(number: int, text: str, rel: str) -> str:
        address = address_with({PAGE: [str(number)] if number > 1 else []})
        return f'<a href="{escape(address)}" target="_self" rel="{rel}">{text}</a>'

    before = link(page - 1, f"← Page {page - 1}", "prev") if page > 1 else ""
    after = link(page + 1, f"Page {page + 1} →", "next") if has_more else ""
    st.html(
        f'<nav class="sg-pager" aria-label="Pages">{before}<span aria-current="page">Page {page}</span>{after}</nav>'
    )


AddressOf = Callable[[str, Sequence[str]], str]
"""(Filter, values) → address of the page with these values of the filter."""


def facets_markup(
    counts: Sequence[tuple[str, str, int]],
    names: Iterable[str],
    selected: Mapping[str, Sequence[str]],
    address_of: AddressOf,
) -> str:
    """The values of each filter with their counts as HTML, in the order of `names`. "" without any.

    `counts` has (filter, value, number of streams). A click selects a value, a click on a selected one removes it. A filter with
    one value that is not selected is left out: it would change nothing.
    """
    groups = []
    for name in names:
        values = [(value, n) for facet, value, n in counts if facet == name]
        chosen = selected.get(name, ())
        if len(values) < 2 and not chosen:
            continue
        lines = []
        for value, n in values:
            current, sign, then = (
                (' aria-current="true"', "✓ ", [v for v in chosen if v != value])
                if value in chosen
                else ("", "", [value])
            )
            lines.append(
                f'<li><a href="{escape(address_of(name, then))}" target="_self" title="{escape(value)}"{current}>'
                f"<span>{sign}{escape(shortened(value))}</span><span>{formatting.count(n)}</span></a></li>"
            )
        label = stream_lists.FILTER_LABELS.get(name, name.capitalize())
        groups.append(f'<div><span class="sg-facet">{escape(label)}</span><ul>{"".join(lines)}</ul></div>')
    if not groups:
        return ""
    return f'<nav class="sg-facets" aria-label="Values of the filters">{"".join(groups)}</nav>'

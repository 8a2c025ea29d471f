"""Time ranges that the reader selected by dragging on a chart, and the crosshair of all charts over time.

The URL contains them (`?zoom=2026-03-01T12:00:00/2026-03-01T12:05:00`, in UTC), the newest last. The newest is the time range of
the pages. Each has a button under the title, which removes it and so restores the range before.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

KEY = "zoom"
MAX_ZOOMS = 4
SHORTEST = timedelta(seconds=5)
Span = tuple[datetime, datetime]
_DRAWN = "zoom-drawn"
_PAGE = "zoom-page"
_POINTER = "time-pointer"
_FIRST, _COMPARED = "zoom-first", "zoom-compared"
# A component, because the selections of Streamlit's charts end at the borders of one chart, and a refresh of the page while the
# reader drags would discard them.
_pointer = st.components.v2.component(
    "streamgauge_time_pointer", js=Path(__file__).with_suffix(".js").read_text(), isolate_styles=False
)

# `st.switch_page` cannot set the parameters of widgets, and would replace the address of the page that the reader leaves.
_follower = st.components.v2.component(
    "streamgauge_follower",
    js="""export default ({data}) => {
        if (new URL(data, location.href).href === location.href) return;
        history.pushState({}, "", data);
        window.dispatchEvent(new PopStateEvent("popstate", {state: {}}));
    }""",
    isolate_styles=False,
)


def to_text(span: Span) -> str:
    """A time range as a value of the URL."""
    return "/".join(at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in span)


def from_text(text: str) -> Span | None:
    """The time range of a value of the URL, None if it is not one."""
    begin, _, end = text.partition("/")
    try:
        since, until = (datetime.fromisoformat(part).replace(tzinfo=UTC) for part in (begin, end))
    except ValueError:
        return None
    return (since, until) if since < until else None


def part_of(span: Span, begin: float, end: float) -> Span:
    """The part of a time range between two fractions of its length, in whole seconds and at least `SHORTEST`."""
    since, length_s = span[0], (span[1] - span[0]).total_seconds()
    first = since + timedelta(seconds=floor(begin * length_s))
    # Outwards to whole seconds, which the address has, so the drawn part is never cut.
    return first, max(since + timedelta(seconds=ceil(end * length_s)), first + SHORTEST)


def current() -> Span | None:
    """The newest selected time range."""
    values = _values()
    return from_text(values[-1]) if values else None


def _values() -> list[str]:
    # An address can have any text, also of an older version: what is no range is left out.
    return [value for value in st.query_params.get_all(KEY) if from_text(value) is not None][-MAX_ZOOMS:]


def keep(title: str) -> None:
    """Call once per run with the title of the page: the next page keeps the time ranges, although the sidebar's links lack them."""
    page, values = st.session_state.get(_PAGE, (title, []))
    # The sidebar links to a page without parameters. Other links, and the steps back, have the time range that they mean.
    if page != title and values and KEY not in st.query_params and not follows_history():
        st.query_params[KEY] = values
    st.session_state[_PAGE] = title, _values()


def follows_history() -> bool:
    """Whether this run shows an address of the browser's history, or of a link that `follow` or page.js opened."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def remember_drawn(since: datetime, until: datetime) -> None:
    """Remember the range of the charts' time axes, to which the next drag refers."""
    st.session_state[_DRAWN] = since, until


def draw_chip(
    label: str,
    key: str,
    help_text: str,
    on_click: Callable[..., Any],
    value: object,
    icon: str = ":material/close:",
) -> None:
    """Draw a button that removes what it names."""
    st.button(
        label, key=f"chip-{key}", icon=icon, icon_position="right", help=help_text, on_click=on_click, args=(value,)
    )  # fmt: skip


def draw_zooms(zone: ZoneInfo) -> None:
    """Draw one button for each time range. It removes the range."""
    for value in _values():
        label, key = f"zoom: {_label(value, zone)}", f"{KEY}-{value}"
        draw_chip(label, key, "Zoom out.", _remove, value, icon=":material/zoom_out:")
    current_value = _values()[-1:]
    if first := st.session_state.get(_FIRST):
        label = f"compare {_label(first, zone)} with the range that you drag over"
        draw_chip(label, "compare", "Do not compare.", st.session_state.pop, _FIRST)
    elif current_value:
        st.button(
            "Compare with another range",
            key="chip-compare",
            icon=":material/compare_arrows:",
            type="tertiary",
            help="Zooms out. Then drag over the other range.",
            on_click=_begin_comparison,
            args=current_value,
        )


def _begin_comparison(value: str) -> None:
    _remove(value)
    st.session_state[_FIRST] = value


def compared() -> tuple[str, str] | None:
    """Two ranges that the reader selected to compare, as values of the URL, once."""
    found: tuple[str, str] | None = st.session_state.pop(_COMPARED, None)
    return found


def is_comparing() -> bool:
    """Whether the next selected range is compared with the one before."""
    return _FIRST in st.session_state


def _remove(value: str) -> None:
    kept = [other for other in _values() if other != value]
    clear()
    if kept:
        st.query_params[KEY] = kept


def _label(value: str, zone: ZoneInfo) -> str:
    span = from_text(value)
    assert span is not None
    begin, end = (at.astimezone(zone) for at in span)
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%d %b %H:%M:%S}"
    return f"{begin:%d %b %H:%M:%S} – {until}"


def draw_pointer() -> None:
    """Link the charts over time of the page, and let the reader select a time range by dragging on one."""
    _pointer(key=_POINTER, on_brush_change=_zoom, height=0)


def _zoom() -> None:
    ends, drawn = st.session_state[_POINTER].brush, st.session_state.get(_DRAWN)
    if not ends or drawn is None:
        return
    selected = to_text(part_of(drawn, float(ends[0]), float(ends[1])))
    if first := st.session_state.pop(_FIRST, None):
        st.session_state[_COMPARED] = first, selected
    else:
        st.query_params[KEY] = [*_values(), selected][-MAX_ZOOMS:]


def follow(address: str) -> None:
    """Let the browser open an address of the dashboard, as a click on a link does."""
    _follower(data=address, height=0)


def clear() -> None:
    """Remove all selected time ranges."""
    st.query_params.pop(KEY, None)

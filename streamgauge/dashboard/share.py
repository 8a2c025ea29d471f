"""The buttons *Copy link* and *More* of every page: its address, a link with the absolute time range, and saved views."""

from __future__ import annotations

import streamlit as st

from streamgauge.analytics.reports import formatting
from streamgauge.dashboard import filters, page_settings, zoom

_NAME, _PROBLEM = "view-name", "view-problem"


def draw_share(title: str, *, has_range: bool) -> None:
    """Draw the buttons. `title` is that of the page; `has_range` is whether the time range applies to it."""
    st.html('<button type="button" class="sg-copy">Copy link</button>', width="content")  # page.js copies
    help_text = "Link with the present time range, and saved views."
    with st.popover("More", help=help_text, key="share", on_change="rerun") as popover:
        if popover.open:  # the ends of the time range are those of now
            if has_range and st.session_state.get("range") != filters.CUSTOM and zoom.current() is None:
                _draw_absolute_link()
            _draw_views(title)


def _draw_absolute_link() -> None:
    base, shown = (st.context.url or "").partition("?")[0], filters.selection()
    st.caption(f"Link that stays at {filters.describe(shown).partition(': ')[2]}")
    address = base + filters.address_with({zoom.KEY: [zoom.to_text((shown.since, shown.until))]})
    st.code(address, language=None, wrap_lines=True, height=80)


def _draw_views(title: str) -> None:
    """A form that saves the page as a view, and the saved views, which a click removes."""
    page = (st.context.url or "").rstrip("/").rpartition("/")[2] if title != "Overview" else ""
    address = page + filters.address_with({})
    with st.form("save-view", border=False):
        st.text_input(
            "Save as a view in the sidebar",
            key=_NAME,
            max_chars=page_settings.MAX_NAME_CHARS,
            placeholder=title,
        )
        st.form_submit_button("Save view", icon=":material/bookmark_add:", on_click=_save, args=(address,))
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(problem)
    for name in page_settings.own_views():
        st.button(
            formatting.markdown(name),
            key=f"view-{name}",
            icon=":material/delete:",
            help="Remove this view.",
            on_click=_change,
            args=(name, None),
        )


def _save(address: str) -> None:
    _change(st.session_state[_NAME], address)


def _change(name: str, address: str | None) -> None:
    try:
        page_settings.change_view(name, address)
    except (OSError, ValueError) as error:
        st.session_state[_PROBLEM] = f"Cannot change the saved views: {error}"

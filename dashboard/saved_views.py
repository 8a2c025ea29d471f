"""Saved views: names for addresses of pages with their time ranges and filters, listed in the sidebar.

They come from the settings, so all readers see the same ones. The dashboard stores nothing: it only reads the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from streamgauge.dashboard import page_settings

View = tuple[str, str]
"""Name and address relative to the dashboard."""


def draw_saved_views() -> None:
    """Draw the links in the sidebar. Without views, draw nothing."""
    if views := page_settings.saved_views():
        with st.sidebar:
            st.html(markup(views))


def markup(views: Sequence[View]) -> str:
    """The links as HTML."""
    links = "".join(
        f'<li><a href="{escape(f"./{address}")}" target="_self">{escape(name)}</a></li>'
        for name, address in views
    )
    return f'<nav class="sg-views" aria-label="Saved views"><span>Saved views</span><ul>{links}</ul></nav>'

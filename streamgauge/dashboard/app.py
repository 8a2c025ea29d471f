"""Entry script of the dashboard: navigation, sign-in, sidebar and page header. Streamlit runs it for each reader, on each full rerun."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Streamlit puts the folder of its script on `sys.path`, where files such as `access.py` would shadow other modules.
sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]

import streamlit as st  # noqa: E402

from streamgauge.dashboard import access, filters, page_frame, page_head, page_settings, zoom  # noqa: E402
from streamgauge.dashboard.pages import PAGES  # noqa: E402

LOGO = str(HERE / "logo.svg")

st.set_page_config(page_title="Streamgauge", page_icon=LOGO, layout="wide")
st.logo(LOGO, size="large")
if os.environ.get(page_settings.ENV_OIDC):
    access.require_login()

pages = {page.address: page for group in PAGES.values() for page in group}
st.session_state[page_head.PAGES] = linked = {
    address: st.Page(
        page.draw,
        title=page.title,
        icon=f":material/{page.icon}:",
        url_path=address,
        default=page is PAGES[""][0],
        visibility="hidden" if page.hidden else "visible",
        help=page.draw.__doc__,
    )
    for address, page in pages.items()
}
opened = st.navigation(
    {name: [linked[page.address] for page in group] for name, group in PAGES.items()}, expanded=True
)
page = next(page for address, page in pages.items() if linked[address] is opened)
st.set_page_config(page_title=f"{page.title} · Streamgauge")
zoom.keep(page.title)
page_frame.begin(page)
page_head.draw_hidden()
filters.draw_sidebar()
# The widgets of the header are drawn here and not by the pages, so they keep their values when the page changes.
page_frame.header(page)
opened.run()

"""Entry script of the dashboard: navigation, sign-in, sidebar and page header. Streamlit runs it for each reader, on each full rerun.

The folder of the pages is not called `pages`, because Streamlit would then open deep links to its files without this script.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Streamlit puts the folder of its script on `sys.path`, where files such as `access.py` would shadow other modules.
sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]

import streamlit as st  # noqa: E402

from streamgauge.dashboard import access, filters, page_frame, page_head, page_settings, zoom  # noqa: E402

VIEWS = HERE / "views"
LOGO = str(HERE / "logo.svg")

st.set_page_config(page_title="Streamgauge", page_icon=LOGO, layout="wide")
st.logo(LOGO, size="large")
if os.environ.get(page_settings.ENV_OIDC):
    access.require_login()

page = st.navigation(
    {
        "": [
            st.Page(VIEWS / "overview.py", title="Overview", icon=":material/monitor_heart:", default=True,
                    help="Diagnosis, objectives, top offenders, requests, errors, TTFT, ITL, tokens per second."),
            st.Page(VIEWS / "alerts.py", title="Alerts", icon=":material/notifications:",
                    help="Alerts that fire and their history, the rules, and the silences."),
        ],
        "Analyse": [
            st.Page(VIEWS / "latency.py", title="Latency", icon=":material/timer:",
                    help="TTFT, inter-token latency and other durations: over time, distributions, by group; stalls."),
            st.Page(VIEWS / "throughput.py", title="Throughput", icon=":material/speed:",
                    help="Input and output tokens, tokens per second, concurrency."),
            st.Page(VIEWS / "spend.py", title="Spend", icon=":material/payments:",
                    help="Estimated cost by model, gateway, client and session; what the prompt cache saves."),
            st.Page(VIEWS / "errors.py", title="Errors", icon=":material/error:",
                    help="Causes of errors, error rates by model and gateway, outcomes over time, client aborts and undelivered tokens."),
            st.Page(VIEWS / "hops.py", title="Hops", icon=":material/conversion_path:",
                    help="Delays, failed attempts and changes that each gateway adds."),
            st.Page(VIEWS / "compare.py", title="Compare", icon=":material/compare_arrows:",
                    help="Two selections side by side, with confidence intervals."),
        ],
        "Streams": [
            st.Page(VIEWS / "streams.py", title="Streams", icon=":material/list:", help="Search finished streams."),
            st.Page(VIEWS / "stream.py", title="Stream", icon=":material/water:", visibility="hidden",
                    help="One stream: phases, events, gaps, usage."),
            st.Page(VIEWS / "sessions.py", title="Sessions", icon=":material/forum:",
                    help="Sessions of agents and chats: turns, user wait, model time and tool time, tokens."),
            st.Page(VIEWS / "live.py", title="Live", icon=":material/bolt:", help="Streams in flight."),
            st.Page(VIEWS / "traces.py", title="Traces", icon=":material/account_tree:", help="Search traces and their spans."),
        ],
        "System": [
            st.Page(VIEWS / "pipeline.py", title="Pipeline", icon=":material/valve:",
                    help="Completeness and freshness of the data: positions, losses, versions."),
            st.Page(VIEWS / "sql.py", title="SQL", icon=":material/database:",
                    help="Read-only SQL over the public tables: recipes, charts and downloads."),
        ],
    },
    expanded=True,
)  # fmt: skip
st.set_page_config(page_title=f"{page.title} · Streamgauge")
zoom.keep(page.title)
page_frame.begin(page.title)
page_head.draw_hidden()
filters.draw_sidebar()
# The widgets of the header are drawn here and not by the pages, so they keep their values when the page changes.
page_frame.header(page.title)
page.run()

"""The pages and what stands around them. Streamlit runs this file again for every reader and every full rerun.

- Streamlit puts this file's folder on `sys.path`; it is taken off again, so that no file here hides a module of that name,
  and the folder above it is there instead: `analytics`, `ingest` and `dashboard` are ours.
- The pages' folder is not called `pages`: Streamlit would take its files for pages by itself, and open a deep link past this
  file until somebody had seen the first page.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) in sys.path:
    sys.path[:] = [entry for entry in sys.path if entry != str(HERE)]
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

import streamlit as st  # noqa: E402

from dashboard import css, filters, oidc_login  # noqa: E402
from dashboard.page_settings import ENV_OIDC  # noqa: E402

VIEWS = HERE / "views"
LOGO = str(HERE / "logo.svg")

st.set_page_config(page_title="Streamgauge", page_icon=LOGO, layout="wide")
st.logo(LOGO, size="large")
st.html(css.STYLE)
if os.environ.get(ENV_OIDC):
    oidc_login.gate()

page = st.navigation(
    {
        "": [
            st.Page(VIEWS / "overview.py", title="Overview", icon=":material/monitor_heart:", default=True,
                    help="Is it healthy? Requests, errors, TTFT, ITL, tokens/s, and what changed."),
        ],
        "Analyse": [
            st.Page(VIEWS / "latency.py", title="Latency", icon=":material/timer:",
                    help="TTFT and inter-token latency over time, as distributions, by group; stalls."),
            st.Page(VIEWS / "throughput.py", title="Throughput", icon=":material/speed:",
                    help="Tokens in and out, speed per stream, streams at once."),
            st.Page(VIEWS / "errors.py", title="Errors", icon=":material/error:",
                    help="Outcomes over time, by phase, type, model, gateway; aborts and waste apart."),
            st.Page(VIEWS / "compare.py", title="Compare", icon=":material/compare_arrows:",
                    help="Two selections side by side, with confidence intervals."),
        ],
        "Streams": [
            st.Page(VIEWS / "streams.py", title="Streams", icon=":material/list:", help="Find single streams."),
            st.Page(VIEWS / "stream.py", title="Stream", icon=":material/water:", visibility="hidden",
                    help="One stream: phases, events, gaps, usage."),
            st.Page(VIEWS / "live.py", title="Live", icon=":material/bolt:", help="Streams in flight now."),
            st.Page(VIEWS / "traces.py", title="Traces", icon=":material/account_tree:", help="Spans of one trace."),
        ],
        "System": [
            st.Page(VIEWS / "pipeline.py", title="Pipeline", icon=":material/valve:",
                    help="Is what you see complete and fresh? Positions, losses, versions."),
            st.Page(VIEWS / "sql.py", title="SQL", icon=":material/database:",
                    help="Your own questions, and a cookbook."),
        ],
    },
    expanded=True,
)  # fmt: skip
filters.sidebar()
page.run()

"""The pages and what stands around them. Streamlit runs this file again for every reader and every full rerun.

Streamlit puts this file's folder first on `sys.path`; the folder above it comes before, so that `analytics`, `ingest` and
`dashboard` are ours, and nothing here is imported under a bare name.
"""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT in sys.path:
    sys.path.remove(ROOT)
sys.path.insert(0, ROOT)

import streamlit as st  # noqa: E402

from dashboard import filters  # noqa: E402

PAGES = Path(__file__).parent / "pages"
LOGO = str(Path(__file__).parent / "logo.svg")

st.set_page_config(page_title="Streamgauge", page_icon=LOGO, layout="wide")
st.logo(LOGO, size="large")

page = st.navigation(
    {
        "": [
            st.Page(PAGES / "overview.py", title="Overview", icon=":material/monitor_heart:", default=True,
                    help="Requests, errors, time to first token, inter-token latency, tokens per second."),
        ],
    },
    expanded=True,
)  # fmt: skip
filters.sidebar()
page.run()

"""Run pages with Streamlit's AppTest over a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

VIEWS = [
    "compare", "errors", "latency", "live", "overview", "pipeline", "sql", "stream", "streams", "throughput", "traces",
]  # fmt: skip
UNREADABLE = "Cannot read the tables"
"""The start of the message of a page whose queries fail."""
APP = Path(__file__).parents[2] / "dashboard" / "app.py"


def open_page(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str = "overview",
    *,
    user: Any = None,
    secrets: Any = None,
    **query: Any,
) -> AppTest:
    """A page after one run with this query string. `user` is the signed-in user, `secrets` are Streamlit's secrets.

    AppTest starts with the first page, so that page runs first, over a folder without data.
    """
    app = AppTest.from_file(APP, default_timeout=60)
    app.user = user or {}
    for key, value in (secrets or {}).items():
        app.secrets[key] = value
    for key, value in query.items():
        app.query_params[key] = value
    if page != "overview":
        monkeypatch.setenv("STREAMGAUGE_DATA", str(data / "nowhere"))
        app.run()
        app.switch_page(f"views/{page}.py")
    monkeypatch.setenv("STREAMGAUGE_DATA", str(data))
    return app.run()


def page_text(app: AppTest) -> str:
    """All text on the page, without charts."""
    kinds = (app.title, app.markdown, app.caption, app.info, app.warning, app.error, app.subheader, app.code)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def metric_value(app: AppTest, label: str) -> str:
    """The value of a metric card."""
    return next(str(m.value) for m in app.metric if m.label == label)

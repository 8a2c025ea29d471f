"""Run the dashboard's pages as Streamlit's own AppTest does, over a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

VIEWS = [
    "compare", "errors", "latency", "live", "overview", "pipeline", "sql", "stream", "streams", "throughput", "traces",
]  # fmt: skip
UNREADABLE = "The tables cannot be read"
"""Heads the message of a page whose queries fail."""
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
    """A page, run once over the data folder, with this query string; `user` has signed in, `secrets` are configured.

    AppTest reaches a page only through the first one: that one is run over no data, which is quick.
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
    """All words on the page: what a reader could read, charts apart."""
    kinds = (app.title, app.markdown, app.caption, app.info, app.warning, app.error, app.subheader, app.code)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def metric_value(app: AppTest, label: str) -> str:
    """The value that a card shows."""
    return next(str(m.value) for m in app.metric if m.label == label)

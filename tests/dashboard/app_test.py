"""Run pages with Streamlit's AppTest over a data folder."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from streamgauge.dashboard.pages import PAGES

VIEWS = sorted(page.address for pages in PAGES.values() for page in pages)
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
    """A page after one run with this query string. `user` is the signed-in user, `secrets` are Streamlit's secrets."""
    app = AppTest.from_file(APP, default_timeout=60)
    app.user = user or {}
    for key, value in (secrets or {}).items():
        app.secrets[key] = value
    for key, value in query.items():
        app.query_params[key] = value
    if page != "overview":
        app._page_hash = calc_hash(page)  # `switch_page` takes only files
    monkeypatch.setenv("STREAMGAUGE_DATA", str(data))
    return app.run()


def page_text(app: AppTest) -> str:
    """All text on the page, with the markup of HTML, without charts."""
    kinds = (app.title, app.markdown, app.caption, app.info, app.warning, app.error, app.header, app.code)
    texts = [str(element.value) for kind in kinds for element in kind]
    return "\n".join([*texts, *(element.proto.body for element in app.get("html"))])


def metric_value(app: AppTest, label: str) -> str:
    """The value of a metric card."""
    return next(str(m.value) for m in app.metric if m.label == label)


class _Table(HTMLParser):
    """The label, the headings, the cells and the links of a table of `streamgauge.dashboard.html_table`."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.label = ""
        self.rows: list[list[str]] = []
        self.links: list[list[str]] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.label = dict(attrs).get("aria-label") or ""
        elif tag == "tr":
            self.rows.append([])
            self.links.append([])
        elif tag == "a":
            self.links[-1].append(dict(attrs)["href"] or "")
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def _tables(app: AppTest) -> dict[str, _Table]:
    found = [_Table(e.proto.body) for e in app.get("html") if "<table" in e.proto.body]
    return {table.label: table for table in found}


def table(app: AppTest, label: str) -> list[dict[str, str]]:
    """The rows of a table: heading → text. The headings have no sign of the order."""
    head, *body = _tables(app)[label].rows
    return [dict(zip((h.removesuffix(" ▾") for h in head), row, strict=True)) for row in body]


def links(app: AppTest, label: str) -> list[list[str]]:
    """The addresses in each row of a table."""
    return _tables(app)[label].links[1:]


def number(text: str) -> float:
    """A number of a table with grouped digits."""
    return float(text.replace(",", ""))

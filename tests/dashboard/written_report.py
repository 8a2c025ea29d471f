"""Read the HTML of a report: its tags, tables and texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from streamgauge.analytics.html_report.document import render
from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.selection import Selection
from tests.tables import tables


def query_of(data: Path) -> Query:
    return partial(tables(data).query, max_rows=20_000, timeout_s=60.0)


def last(hours: float) -> Selection:
    until = datetime.now(UTC).replace(microsecond=0)
    return Selection(since=until - timedelta(hours=hours), until=until)


class Written(HTMLParser):
    """The document: its tags, the text of each section by its id, and the rows of its tables by their label, with their section."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self.tables: list[tuple[str, str, list[list[str]]]] = []
        self._section = ""
        self.feed(html.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "section":
            self._section = given.get("id") or "nothing"
            self.sections[self._section] = ""
        elif tag == "table":
            self.tables.append((self._section, given["aria-label"] or "", []))
        elif tag == "tr":
            self.tables[-1][2].append([])
        elif tag in ("td", "th"):
            self.tables[-1][2][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "dt", "dd", "p", "h3"):
            self.sections[self._section] += "\n"

    def handle_data(self, data: str) -> None:
        if self.lasttag not in ("style", "title"):
            self.sections[self._section] += data
        if (
            self.tables
            and self.tables[-1][2]
            and self.lasttag in ("td", "th", "small")
            and self.tables[-1][0] == self._section
        ):
            self.tables[-1][2][-1][-1] += data

    def table(self, section: str, label: str) -> list[dict[str, str]]:
        """The rows of a table: heading → text."""
        [(head, *rows)] = [rows for where, name, rows in self.tables if (where, name) == (section, label)]
        return [{h.strip(): text.strip() for h, text in zip(head, row, strict=True)} for row in rows]


def written(
    data: Path, selection: Selection, session_ids: Sequence[str] = (), **options: Any
) -> tuple[Written, bytes]:
    """A report of a data folder, with times in UTC."""
    html = render(query_of(data), selection, UTC, selection.until, session_ids=session_ids, **options)
    return Written(html), html

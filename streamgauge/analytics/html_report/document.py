"""The whole document: what all sections read, drawn by the template."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from streamgauge.analytics.diagnosis import diagnosis
from streamgauge.analytics.html_report.figures import cut
from streamgauge.analytics.html_report.sections import SECTIONS, read_scope
from streamgauge.analytics.reports import Query, formatting, number_of, overview, sessions, spend
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.reports.objectives import burn_text
from streamgauge.analytics.reports.providers import CLOSE
from streamgauge.analytics.reports.selection import MIN_SAMPLES, Selection

TITLE, SESSION_TITLE = "LLM gateway report", "Session report"
NOT_OF_SESSIONS = frozenset(SECTIONS) - {"sessions", "definitions"}
"""Sections that a report of chosen sessions leaves out: they are about all requests of its time range."""
# It escapes all values, which come from requests.
TEMPLATES = Environment(
    autoescape=True, loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.globals |= {
    "formatting": formatting, "diagnosis": diagnosis, "spend": spend, "metric_help": metric_help, "burn_text": burn_text, "cut": cut,
    "CLOSE": CLOSE, "MIN_SAMPLES": MIN_SAMPLES,
}  # fmt: skip
try:
    TEMPLATES.globals["version"] = f" {version('streamgauge')}"
except PackageNotFoundError:  # in a source tree
    TEMPLATES.globals["version"] = ""


def render(
    query: Query, selection: Selection, zone: tzinfo, now: datetime, *, title: str = "", session_ids: Sequence[str] = (),
    without: Collection[str] = (),
) -> bytes:  # fmt: skip
    """The HTML of a report. `session_ids` are stored sessions to show turn by turn, `without` are sections to leave out.

    Raises QueryError.
    """
    scope, found = None, {}
    selection = replace(selection, began=overview.data_began(query))
    if session_ids or number_of(query, "count(*)", f"streams WHERE {selection.where()}"):
        scope = read_scope(query, selection, zone, now, session_ids)
        selection = scope.selection
        read = {name: section(scope) for name, section in SECTIONS.items() if name not in without}
        found = {name: one for name, one in read.items() if one is not None}

    def clock(at: datetime | None) -> str:
        return formatting.UNKNOWN if at is None else f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S}"

    chosen = [
        f"{name} {', '.join(values)}"
        for name, values in (*selection.chosen.items(), *selection.further)
        if values
    ]
    # The system zone has the current offset, also for times before a daylight-saving change.
    local = now.astimezone(zone)
    zone_name = getattr(zone, "key", None) or local.strftime("%Z (UTC%z)" if local.utcoffset() else "%Z")
    title = title or (SESSION_TITLE if session_ids and NOT_OF_SESSIONS.issubset(without) else TITLE)
    return TEMPLATES.get_template("template.html").render(
        title=title, zone=zone_name, scope=scope, found=found, selection=selection, filters=chosen, clock=clock,
        created=local, began=selection.began,
    ).encode(errors="replace")  # fmt: skip


def session_range(query: Query, session_ids: Sequence[str]) -> Selection | None:
    """The time of the sessions. None if one of them is not stored. Raises QueryError."""
    rows: list[Any] = [sessions.one(query, session_id) for session_id in session_ids]
    if not rows or None in rows:
        return None
    return Selection(
        since=min(row["first_at"] for row in rows),
        until=max(row["last_at"] for row in rows) + timedelta(seconds=1),
    )

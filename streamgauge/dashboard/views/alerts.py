"""Alerts: those that fire, those that resolved in the time range, the rules and the silences."""

from __future__ import annotations

import glob
import json
import shlex
from collections.abc import Iterator, Sequence
from html import escape

import streamlit as st

from streamgauge.analytics.reports import alerts
from streamgauge.analytics.reports.columns import Row
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import page_frame, page_settings
from streamgauge.dashboard.html_table import show_records
from streamgauge.dashboard.panels import section
from streamgauge.dashboard.query_runner import query
from streamgauge.dashboard.report_tables import show_report

MAX_ROWS, MAX_COMMANDS = 200, 5


def body(chosen: Selection) -> None:
    firing = alerts.firing(query)
    section("Firing")
    if firing.is_empty():
        st.success("No alert fires.", icon=":material/check_circle:")
    else:
        show_report(alerts.TABLE, firing, links=LINKS, label="Alerts that fire")
        show_commands(firing.to_dicts())
    section("History", "Alerts that resolved, and overlap the time range.")
    history = alerts.history(query, chosen, most=MAX_ROWS)
    empty = "No alert resolved in this time range."
    show_report(alerts.TABLE, history, links=LINKS, label="Resolved alerts", empty=empty)
    if history.height == MAX_ROWS:
        st.caption(f"Only the newest {MAX_ROWS} alerts are shown.")
    help_text = "What analytics evaluates. Settings apply from its next start."
    show_records("Rules", alerts.rules(query), help_text, empty="Analytics has not started yet.")
    help_text = "Alerts with a silence are shown here, but send no message."
    show_records("Silences", alerts.silences(query), help_text, empty="None.")
    # Not `st.code`: its colours have too little contrast, and on a phone the keyboard cannot scroll it.
    st.caption(
        "To silence alerts: `streamgauge silence --model 'gpt-*' --for 2h`. To end a silence: `--for 0`."
    )


def show_commands(firing: Sequence[Row]) -> None:
    """The commands that silence the alerts, one for several with the same rule, model and gateway."""
    ends = ["--for", "2h", "--data", str(page_settings.data_dir())]
    commands = dict.fromkeys(shlex.join(["streamgauge", "silence", *_globs(row), *ends]) for row in firing)
    lines = "".join(
        f'<li><code>{escape(one)}</code> <button type="button" class="sg-copy" data-copy="{escape(one)}">Copy</button></li>'
        for one in [*commands][:MAX_COMMANDS]
    )
    st.caption(
        "To send no messages about them for 2 h, run in a terminal. A command without model and gateway is for all alerts of its rule."
    )
    st.html(f'<ul class="sg-commands">{lines}</ul>')


def _globs(alert: Row) -> Iterator[str]:
    for name in ("rule", "model", "gateway"):
        if alert[name] is not None:
            yield from (f"--{name}", glob.escape(alert[name]))


def overview_link(row: Row) -> str:
    place = {name: row[name] for name in ("model", "gateway") if row[name] is not None}
    until = row["resolved_at"] or row["fired_at"]
    return "./" + alerts.overview_address(
        place | json.loads(row["place"] or "{}"), row["began_at"].timestamp(), until.timestamp()
    )


LINKS = {
    "message": overview_link,
    "stream_id": lambda row: f"stream?id={row['stream_id']}" if row["stream_id"] else None,
}
"""A row opens the Overview with the streams and the time of its alert."""


def draw_page() -> None:
    """Alerts that fire and their history, the rules, and the silences."""
    st.caption(
        "What analytics reports by itself. Filters do not apply; the time range applies to the history. "
        "Times inside texts are in UTC."
    )
    page_frame.show(body, needs_streams=False)


PAGE = page_frame.Page(draw_page, "Alerts", "notifications")

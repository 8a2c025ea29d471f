"""Alerts: those that fire, their history, the rules and the silences; and the page that shows their streams."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting
from streamgauge.analytics.reports.columns import text
from streamgauge.analytics.reports.selection import FILTERS, Selection
from streamgauge.analytics.schema import budgets
from streamgauge.analytics.schema.sql_quoting import instant

LEAD_S, LEAST_S = 600, 300
"""What a link shows before the alert began, and at least after it."""
_ALERTS = """
SELECT alert_id::VARCHAR AS alert_id, severity, rule, gateway, model, place, message, evidence, began_at, fired_at, resolved_at,
    stream_id::VARCHAR AS stream_id, not_sent
FROM alerts"""


TABLE = columns.table(
    "Alerts",
    text("message", "Alert", opens_row=True, min_characters=40, priority=0),
    text("severity", "Severity", line=True,
         state=lambda row: "bad" if row["severity"] == "page" and row["resolved_at"] is None else None),
    text("rule", "Rule", line=True),
    columns.instant("began_at", "Since", form="%m-%d %H:%M:%S"),
    columns.instant("resolved_at", "Resolved", form="%m-%d %H:%M:%S"),
    text("evidence", "Evidence", min_characters=30, priority=2, text=lambda found: "; ".join(found) or formatting.UNKNOWN),
    text("stream_id", "Stream", text=lambda stream_id: stream_id[:8], mono=True, priority=3),
    text("not_sent", "No message", priority=4, text=lambda why: why[:14] if why.startswith("alert ") else why),

)  # fmt: skip


def firing(query: Query, *, most: int = 100) -> pl.DataFrame:
    """The alerts that fire, regardless of the time range, pages first: the columns of `_ALERTS`."""
    return query(f"{_ALERTS} WHERE state = 'firing' ORDER BY severity, began_at DESC LIMIT {most:d}")


def of_budgets(query: Query) -> list[str]:
    """The messages of the alerts about budgets that fire."""
    found: list[str] = firing(query).filter(pl.col("rule") == budgets.RULE)["message"].to_list()
    return found


def history(query: Query, selection: Selection, *, most: int = 200) -> pl.DataFrame:
    """The alerts that resolved and overlap the time range, newest first: as `firing`."""
    return query(f"""{_ALERTS} WHERE state = 'resolved' AND began_at < {instant(selection.until)}
        AND resolved_at >= {instant(selection.since)} ORDER BY began_at DESC LIMIT {most:d}""")


def rules(query: Query) -> pl.DataFrame:
    """`rule, severity, fires_when`, and `alerts_in_24_h`."""
    return query("""
        SELECT rule, alert_rules.severity, fires_when, count(alert_id) AS alerts_in_24_h FROM alert_rules
        LEFT JOIN (SELECT rule, alert_id FROM alerts WHERE coalesce(resolved_at, now()) > now() - INTERVAL 24 HOUR) USING (rule)
        GROUP BY ALL ORDER BY rule""")


def silences(query: Query, *, most: int = 100) -> pl.DataFrame:
    """`rule, model, gateway, created_at, ends_at, reason, state` (active or ended), the active ones first."""
    return query(f"""
        SELECT rule, model, gateway, created_at, ends_at, reason, if(ends_at > now(), 'active', 'ended') AS state FROM silences
        QUALIFY row_number() OVER (PARTITION BY rule, model, gateway ORDER BY created_at DESC) = 1
        ORDER BY state, created_at DESC LIMIT {most:d}""")


def overview_address(place: Mapping[str, str], began_s: float, until_s: float) -> str:
    """The Overview with the streams of an alert, in an absolute range of whole minutes. Times are Unix times.

    `place`: dimension values. Those that pages cannot filter by are left out.
    """
    since_s = math.floor((began_s - LEAD_S) / 60) * 60
    end_s = math.ceil(max(until_s, began_s + LEAST_S) / 60) * 60
    begin, end = (f"{datetime.fromtimestamp(s, UTC):%Y-%m-%dT%H:%M}" for s in (since_s, end_s))
    filters = {name: place[name] for name in FILTERS if name in place}
    return f"?{urlencode({'range': 'custom', 'from': begin, 'until': end, **filters})}"

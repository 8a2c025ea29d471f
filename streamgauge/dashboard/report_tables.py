"""Draw the tables of reports: their links, and the form of instants that depends on the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import polars as pl

from streamgauge.analytics.reports.columns import Column, ReportTable, Row, outcome_state
from streamgauge.analytics.schema.clients import NO_CLIENT_NAMES
from streamgauge.dashboard import filters
from streamgauge.dashboard.html_table import show_table


def outcome_badge(outcome: str) -> str:
    """An outcome in its colour, in Markdown."""
    color = {None: "green", "muted": "gray", "bad": "red"}[outcome_state(outcome)]
    return f":{color}-badge[{outcome}]"


def show_report(
    report: ReportTable,
    frame: pl.DataFrame,
    *,
    by: str = "",
    links: Mapping[str, Callable[[Row], str | None]] | None = None,
    sort_addresses: Mapping[str, str] | None = None,
    order: str | None = None,
    **words: str,
) -> None:
    """Draw the rows of a report.

    `by` is the grouping of the rows, by default that of the column `dimension`. `links` are those of columns, `sort_addresses` the
    addresses of the page sorted by them. `words` are those of the label and the headings, `label` and `empty` replace the report's.
    """
    words = {"by": by, "By": by.capitalize(), "label": report.label, "empty": report.empty} | words
    columns = [
        replace(
            _column(column, frame, by),
            heading=column.heading.format(**words),
            sort_address=(sort_addresses or {}).get(column.name),
        )
        for column in report.columns
    ]
    columns = [replace(c, link=links[c.name]) if links and c.name in links else c for c in columns]
    show_table(
        columns,
        frame,
        label=words["label"].format(**words),
        stacks=report.stacks,
        empty=words["empty"].format(**words),
        zone_of=report.zone_of,
        order=order or report.order,
    )


def _column(column: Column, frame: pl.DataFrame, by: str) -> Column:
    """The column with its link and the form of its instants."""
    if column.form == "":
        days = frame[column.name].dt.convert_time_zone(filters.time_zone().key).dt.date().n_unique()
        # It may wrap before the time.
        form, one_day = ("%H:%M:%S", True) if days < 2 else ("%m-%d %H:%M:%S", False)
        return replace(column, form=form, line=one_day, min_characters=8)
    opens_streams = isinstance(column.opens, Mapping)
    if column.opens is None or (opens_streams and not column.of and by == "session"):  # no filter selects one
        return column
    link = partial(_address, column, by)
    if opens_streams:  # a column that disappears would take the link with it
        return replace(column, link=link, opens_row=True, priority=0)
    return replace(column, link=link, opens_row=column.opens_row or callable(column.opens))


def _address(column: Column, by: str, row: Row) -> str | None:
    """What a click on the value of a column opens."""
    value, opens = row[column.name], column.opens
    if opens == "group":
        by = by or row["dimension"]
        is_group = filters.of_group(by, "") and value not in (None, *NO_CLIENT_NAMES[1:])
        return filters.group_address(by, value) if is_group else None
    if opens == "trace":
        return filters.address_with({"trace": [value]})
    if opens == "stream":
        return None if value is None else filters.page_address("stream", {"id": str(value)})
    if opens == "session" or opens == "turn":
        turn = {"turn": str(value)} if opens == "turn" else {}
        return filters.page_address("sessions", {"session": row["session_id"], **turn})
    if isinstance(opens, Mapping):
        return filters.streams_address(column.of or by or row["dimension"], row[column.of or "name"], opens)
    changes = opens(row) if callable(opens) else None
    return None if changes is None else filters.page_address("streams", changes)

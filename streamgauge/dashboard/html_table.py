"""Small tables as HTML: readable by assistive technology and tests, with ordinary links, and never wider than their box.

`st.dataframe` draws on a canvas, clips columns that do not fit, and opens links in a new tab. It stays for results of SQL, which
have any number of rows and columns.

- Every value is escaped. Numbers are right-aligned, with the unit in the heading. Instants are in the reader's time zone.
- The first column names the row and always stays. Another column without a value in any row is left out.
- In a narrow box, columns of the lowest priority disappear, the last of them first. On a phone, each row becomes a block of lines
  instead if `stacks` is set, so that no value is lost. Use it for rows without a page of their own.
- Colours have the meaning of their class name, and the text has the same meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.columns import WORD, Column, Row, State, instant, number
from streamgauge.dashboard.filters import time_zone
from streamgauge.dashboard.page_head import SIGNS_BELOW_PX, STACKED_BELOW_PX, WIDTHS_PX
from streamgauge.dashboard.panels import section

MAX_TEXT = 240
"""Longest text of a cell in characters. The rest becomes an ellipsis; the title has 1,000 characters."""
MAX_TITLE = 1000
CHARACTER_PX, MONO_PX, PADDING_PX, SIGN_PX = 6.6, 7.8, 17, 32
"""Estimated widths of a character, of the margins of a cell, and of a cell with a sign."""
LONG = 40
"""Characters of a line of a longer text, such as JSON, in a column of `show_records`."""
NARROWEST_PX = 350
"""Width of a box on a phone. A table whose remaining columns need more can be scrolled, also with the keyboard."""


def show_table(
    columns: Sequence[Column], frame: pl.DataFrame, *, empty: str = "", zone_of: str = "", **options: Any
) -> None:
    """Draw the rows of a frame, or the text `empty` instead of a table without rows.

    `zone_of` names the instants whose time zone stands below the table. Other options as in `markup`.
    """
    if empty and frame.is_empty():
        st.caption(empty)
        return
    st.html(markup(columns, frame.to_dicts(), **options))
    if zone_of:
        st.caption(f"{zone_of}: time zone {time_zone().key}.")


def show_pairs(pairs: Mapping[str, str], *, label: str) -> None:
    """Draw names and values."""
    st.html(pairs_markup(pairs, label=label))


def show_records(
    label: str,
    frame: pl.DataFrame,
    help_text: str | None = None,
    *,
    title: str | None = None,
    empty: str = "",
) -> None:
    """Draw a section with all columns of rows of the store, with headings made of the column names.

    `title` is that of the section if it is not the label of the table. "" draws none.
    """
    if title != "":
        section(title or label, help_text)
    columns = [_record_column(name, frame[name]) for name in frame.columns]
    show_table(columns, frame, label=label, stacks=True, empty=empty)


def _record_column(name: str, values: pl.Series) -> Column:
    dtype, heading = values.dtype, name.replace("_", " ").capitalize()
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return instant(name, f"{heading} ({time_zone().key})", form="%Y-%m-%d %H:%M:%S.%f")
    if dtype.is_numeric():
        return number(name, heading, digits=0 if dtype.is_integer() else 3)
    long = bool((values.cast(pl.String, strict=False).str.len_chars() > LONG).any())
    return Column(name=name, heading=heading, min_characters=LONG if long else WORD)


def markup(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    label: str,
    stacks: bool = False,
    order: str | None = None,
) -> str:
    """The table as HTML.

    `label` names the table for screen readers. `order` is the name of the column by which the rows are sorted, descending.
    """
    texts = {c.name: [_text(c, row.get(c.name)) for row in rows] for c in columns}
    shown = [
        c for i, c in enumerate(columns) if i == 0 or any(t != formatting.UNKNOWN for t in texts[c.name])
    ]
    widths = {c.name: _width_px(c, texts[c.name]) for c in shown}
    hiding = _hidden_below(shown, widths)
    whole = f' class="sg-rows-from-{min(_step(sum(widths.values())), STACKED_BELOW_PX)}"' if stacks else ""
    opens = ' class="sg-opens"' if any(c.opens_row for c in shown) else ""
    head = "".join(_heading(c, hiding.get(c.name), widths[c.name], order) for c in shown)
    body = "".join(
        f"<tr{opens}>"
        + "".join(
            _cell(c, row, texts[c.name][i], is_row_header=c is shown[0], hidden_below=hiding.get(c.name))
            for c in shown
        )
        + "</tr>"
        for i, row in enumerate(rows)
    )
    table = f'<table{whole} aria-label="{escape(label)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    # A box that can be scrolled needs the focus, so that the keyboard can scroll it.
    least = sum(px for name, px in _on_phone(shown, widths).items() if name not in hiding)
    return _box(table + _note(shown, hiding), label, scrolls=not stacks and least > NARROWEST_PX)


def pairs_markup(pairs: Mapping[str, str], *, label: str) -> str:
    """Names and values as HTML, one row per pair, without a heading row."""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_cut(value))}</td></tr>'
        for name, value in pairs.items()
    )
    return _box(f'<table class="sg-pairs" aria-label="{escape(label)}"><tbody>{body}</tbody></table>', label)


def _box(table: str, label: str, *, scrolls: bool = False) -> str:
    region = f' role="region" tabindex="0" aria-label="{escape(label)}"' if scrolls else ""
    return f'<div class="sg-table"{region}>{table}</div>'


def _text(column: Column, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return formatting.UNKNOWN
    if column.form is None:
        return column.text(value)
    shown = f"{value.astimezone(time_zone()):{column.form}}"
    return shown[:-3] if column.form.endswith("%f") else shown


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _width_px(column: Column, texts: Sequence[str]) -> int:
    """The estimated least width of a column: its longest line, or `min_characters` where values wrap."""
    # The server cannot measure text. An estimate that is too small wraps a value; one that is too large hides a column early.
    longest = max(map(len, texts), default=0)
    if not column.number and not column.line:
        longest = min(longest, column.min_characters)
    words = max(map(len, column.title.split()), default=0)
    width_px = max(longest * (MONO_PX if column.mono else CHARACTER_PX), words * CHARACTER_PX)
    return math.ceil(width_px) + PADDING_PX


def _on_phone(columns: Sequence[Column], widths: Mapping[str, int]) -> dict[str, int]:
    """The widths in a box below `SIGNS_BELOW_PX`."""
    return {
        c.name: SIGN_PX
        if c.is_sign
        else min(widths[c.name], NARROWEST_PX // 4)
        if c.wraps_on_phone
        else widths[c.name]
        for c in columns
    }


def _hidden_below(columns: Sequence[Column], widths: Mapping[str, int]) -> dict[str, int]:
    """Column → width of the box in px below which it disappears: the sum of the widths of all columns that stay longer."""
    found: dict[str, int] = {}
    needed = widths[columns[0].name]
    narrow = _on_phone(columns, widths)
    words = sum(widths.values()) - sum(narrow.values())
    # The sort is stable: of equal priorities, the columns at the right disappear first.
    for column in sorted(columns[1:], key=lambda c: c.priority):
        needed += narrow[column.name]
        if column.priority > 0:
            found[column.name] = _step(needed if needed + words <= SIGNS_BELOW_PX else needed + words)
    return found


def _note(columns: Sequence[Column], hiding: Mapping[str, int]) -> str:
    """The headings of the columns that do not fit. Each one appears when its column disappears."""
    first_hidden = sorted(
        ((hiding[c.name], c.title) for c in columns if c.name in hiding), key=lambda pair: -pair[0]
    )
    names = "".join(
        f'<span class="sg-until-{width}">{", " if i else "Not shown at this width: "}{escape(heading)}</span>'
        for i, (width, heading) in enumerate(first_hidden)
    )
    return f'<div class="sg-note">{names}</div>' if names else ""


def _step(width_px: int) -> int:
    return next((step for step in WIDTHS_PX if step >= width_px), WIDTHS_PX[-1])


def _classes(
    column: Column, hidden_below: int | None, state: State | None = None, *, is_short: bool = False
) -> str:
    names = [
        "sg-number" if column.number else "",
        "sg-line" if column.line or is_short else "",
        "sg-mono" if column.mono else "",
        "sg-bar" if column.bar else "",
        "sg-sign" if column.is_sign else "",
        f"sg-{state}" if state else "",
        f"sg-from-{hidden_below}" if hidden_below else "",
    ]
    joined = " ".join(name for name in names if name)
    return f' class="{joined}"' if joined else ""


def _heading(column: Column, hidden_below: int | None, width_px: int, order: str | None) -> str:
    attributes = _classes(column, hidden_below)
    if column.help:
        attributes += f' title="{escape(column.help[:MAX_TITLE])}"'
    if not column.number and not column.line:
        least = f"min({width_px}px,25cqw)" if column.wraps_on_phone else f"{width_px}px"
        attributes += f' style="min-width:{least}"'
    content = escape(column.title)
    if column.name == order:
        attributes += ' aria-sort="descending"'
        content += " ▾"
    if column.sort_address:
        content = f'<a href="{escape(column.sort_address)}" target="_self">{content}</a>'
    return f'<th scope="col"{attributes}><span>{content}</span></th>'


def _cell(column: Column, row: Row, text: str, *, is_row_header: bool, hidden_below: int | None) -> str:
    # A shortened id is one line, also where a name wraps.
    is_short = text.endswith("…") and isinstance(given := row.get(column.name), str) and text != given
    state = column.state(row) if column.state else None
    attributes = _classes(column, hidden_below, state, is_short=is_short)
    cut = _cut(text)
    content = escape(cut)
    if column.is_sign:
        first, _, rest = cut.partition(" ")
        content = f"{escape(first)} <span>{escape(rest)}</span>"
    if cut != text:
        attributes += f' title="{escape(text[:MAX_TITLE])}"'
    if column.bar and text != formatting.UNKNOWN:
        attributes += f' style="--sg-share:{min(max(row[column.name], 0), 1):.1%}"'
    address = column.link(row) if column.link else None
    if address is not None:
        opens = ' class="sg-row"' if column.opens_row else ""
        content = f'<a href="{escape(address)}" target="_self"{opens}>{content}</a>'
    # CSS shows it beside the value where rows are blocks, and the row of headings is not visible.
    attributes += f' data-heading="{escape(column.title)}"'
    if is_row_header:
        return f'<th scope="row"{attributes}>{content}</th>'
    return f"<td{attributes}>{content}</td>"

"""The values of each filter with their counts. A click selects a value, a click on a selected one removes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

import polars as pl
import streamlit as st

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.schema.clients import shortened

AddressOf = Callable[[str, Sequence[str]], str]
"""(Filter, values) → address of the page with these values of the filter."""


def show_facets(
    counts: pl.DataFrame,
    labels: Mapping[str, str],
    selected: Mapping[str, Sequence[str]],
    address_of: AddressOf,
) -> None:
    """Draw the values of `counts` (`reports.stream_lists.facets`). Arguments as in `facets_markup`."""
    html = facets_markup(counts.rows(), labels, selected, address_of)
    if html:
        st.html(html)


def facets_markup(
    counts: Sequence[tuple[str, str, int]],
    labels: Mapping[str, str],
    selected: Mapping[str, Sequence[str]],
    address_of: AddressOf,
) -> str:
    """The values as HTML, in the order of `labels`. `counts` has (filter, value, number of streams).

    A filter with one value that is not selected is left out: it would change nothing.
    """
    groups = []
    for name, label in labels.items():
        values = [(value, n) for facet, value, n in counts if facet == name]
        chosen = selected.get(name, ())
        if len(values) < 2 and not chosen:
            continue
        lines = "".join(_line(name, value, n, chosen, address_of) for value, n in values)
        groups.append(f'<div><span class="sg-facet">{escape(label)}</span><ul>{lines}</ul></div>')
    if not groups:
        return ""
    return f'<nav class="sg-facets" aria-label="Values of the filters">{"".join(groups)}</nav>'


def _line(name: str, value: str, n: int, chosen: Sequence[str], address_of: AddressOf) -> str:
    is_chosen = value in chosen
    address = address_of(name, [v for v in chosen if v != value] if is_chosen else [value])
    text = escape(shortened(value))
    current = ' aria-current="true"' if is_chosen else ""
    sign = "✓ " if is_chosen else ""
    return (
        f'<li><a href="{escape(address)}" target="_self" title="{escape(value)}"{current}><span>{sign}{text}</span>'
        f"<span>{formatting.count(n)}</span></a></li>"
    )

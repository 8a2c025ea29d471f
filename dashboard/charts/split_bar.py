"""A thin bar that splits a duration between its parts, with their lengths and shares. HTML, so it costs no chart."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import streamlit as st

from streamgauge.analytics.reports import formatting

BAR = "display:flex;gap:2px;height:.8em;border-radius:4px;overflow:hidden;margin:.15em 0 .45em"
LEGEND = "display:flex;flex-wrap:wrap;gap:.15em 1.4em;font-size:.87rem"
ENTRY = "display:inline-flex;align-items:center"
SWATCH = "flex:none;width:.75em;height:.75em;border-radius:2px;margin-right:.4em"


def draw_split(parts_ns: Mapping[str, float], part_colors: Mapping[str, str], label: str) -> None:
    """Draw the parts in their order. `label` names the whole for screen readers. A part of 0 is only in the legend."""
    total_ns = sum(parts_ns.values())
    bars, entries = [], []
    for name, length_ns in parts_ns.items():
        color = part_colors[name]
        share = formatting.share(length_ns / total_ns if total_ns else None)
        text = f"{name} {formatting.duration(length_ns)}"
        if length_ns > 0:
            # The growth factors are shares, because factors below 1 in total would leave a part of the bar empty.
            style = f"flex:{100 * length_ns / total_ns:.4f} 0 0;min-width:2px;background:{color}"
            bars.append(f'<span style="{style}" title="{escape(text, quote=True)}, {share}"></span>')
        entries.append(
            f'<span style="{ENTRY}"><span style="{SWATCH};background:{color}"></span>'
            f'{escape(name)}&nbsp;<b>{formatting.duration(length_ns)}</b>&nbsp;<span style="opacity:.7">{share}</span></span>'
        )
    spoken = ", ".join(f"{name} {formatting.duration(value)}" for name, value in parts_ns.items())
    st.html(
        f'<div role="img" aria-label="{escape(f"{label}: {spoken}", quote=True)}">'
        f'<div style="{BAR}">{"".join(bars)}</div><div style="{LEGEND}">{"".join(entries)}</div></div>'
    )

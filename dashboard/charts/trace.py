"""The spans of one trace as a waterfall."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from dashboard import formatting
from dashboard.charts import colors
from dashboard.charts.axes import duration_unit
from dashboard.charts.drawing import Drawing
from dashboard.trace_spans import Span, service

ROW_PX = 40
INDENT = "› "
NAME_CHARS = 90


def span_waterfall(spans: list[Span], service_colors: Mapping[str, str]) -> Drawing:
    """One bar per span, in the order of `spans` (`trace_spans.nested`)."""
    end_ns = max((s["offset_ns"] + s["duration_ns"] for s in spans), default=1) or 1
    divisor, unit = duration_unit(end_ns, ("s", "ms"))
    frame = pl.DataFrame(
        {
            "row": list(range(len(spans))),
            "label": [_label(s) for s in spans],
            "start": [s["offset_ns"] / divisor for s in spans],
            "end": [(s["offset_ns"] + s["duration_ns"]) / divisor for s in spans],
            "offset": [formatting.duration(s["offset_ns"]) for s in spans],
            "length": [formatting.duration(s["duration_ns"]) for s in spans],
            "service": [service(s) for s in spans],
            "status": [s["status"] for s in spans],
        }
    )
    base = alt.Chart(frame).encode(
        y=alt.Y("row:O", title=None, axis=None),
        tooltip=["label:N", "service:N", "offset:N", "length:N", "status:N"],
    )
    domain = [0, end_ns / divisor * 1.01]
    bars = base.mark_bar(cornerRadius=2, height=11, yOffset=9).encode(
        x=alt.X("start:Q", title=unit, scale=alt.Scale(domain=domain, nice=False)),
        x2="end:Q",
        color=colors.scale("service", service_colors),
    )
    # The name is above its bar: on a phone, a column of names would leave no room for the bars.
    names = base.mark_text(align="left", dx=2, dy=-7, fontSize=12, color=colors.RULE).encode(
        x=alt.datum(0), text="label:N"
    )
    return alt.layer(bars, names).properties(height=ROW_PX * len(spans) + 60)


def _label(span: Span) -> str:
    failed = "✕ " if str(span["status"]).lower() == "error" else ""
    name = span["name"] if len(span["name"]) <= NAME_CHARS else span["name"][:NAME_CHARS] + "…"
    return f"{INDENT * span['depth']}{failed}{name} · {formatting.duration(span['duration_ns'])}"

"""One session on a time line: a row per turn, with requests, tool time and user waits."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from streamgauge.analytics.reports import formatting
from streamgauge.analytics.reports.sessions import MODEL, USER, Bar
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.axes import duration_unit, tooltips
from streamgauge.dashboard.charts.drawing import Drawing

ROW_PX = 24
AXIS_PX = 50


def turns(bars: Sequence[Bar]) -> Drawing:
    """One row per turn. Requests that did not end ok have a cross."""
    divisor, unit = duration_unit(max((b.end_ns for b in bars), default=1), ("s", "ms"))
    frame = pl.DataFrame(
        {
            "turn": [f"turn {b.turn}" for b in bars],
            "kind": [b.kind for b in bars],
            "start": [b.start_ns / divisor for b in bars],
            "end": [b.end_ns / divisor for b in bars],
            "length": [formatting.duration(b.end_ns - b.start_ns) for b in bars],
            "request": [b.request["request"] for b in bars],
            "model": [b.request["model"] for b in bars],
            "outcome": [b.request["outcome"] if b.kind == MODEL else None for b in bars],
            "link": [f"stream?id={b.request['stream_id']}" if b.kind == MODEL else None for b in bars],
        }
    )
    names = list(dict.fromkeys(frame["turn"]))
    base = alt.Chart(frame).encode(
        y=alt.Y("turn:N", sort=names, title=None, axis=alt.Axis(grid=False, labelLimit=90)),
        tooltip=tooltips("turn:N", "kind:N", "length:N", "request:Q", "model:N", "outcome:N"),
    )
    x = alt.X("start:Q", title=f"{unit} from the first request", scale=alt.Scale(nice=False))
    color = colors.scale("kind", colors.SESSION_PARTS)
    requests = base.mark_bar(height=13, cornerRadius=2, minBandSize=2).encode(
        x=x, x2=alt.X2("end:Q"), color=color
    )
    waits = base.mark_bar(height=4).encode(x=x, x2=alt.X2("end:Q"), color=color)
    ticks = base.mark_tick(thickness=2, height=13).encode(x=x, color=color)
    failed = base.mark_point(
        shape="cross", angle=45, size=60, filled=True, color=colors.OUTCOMES["http_error"]
    )
    return alt.layer(
        waits.transform_filter(f"datum.kind != '{MODEL}'"),
        requests.transform_filter(f"datum.kind == '{MODEL}'").encode(href=alt.Href("link:N")),
        ticks.transform_filter(f"datum.kind == '{MODEL}'"),
        failed.transform_filter("datum.outcome && datum.outcome != 'ok'").encode(x=alt.X("end:Q")),
        height=ROW_PX * len(names) + AXIS_PX,
    )


def legend(bars: Sequence[Bar]) -> dict[str, str]:
    """Names and colours of the legend."""
    kinds = {b.kind for b in bars}
    return {kind: color for kind, color in colors.SESSION_PARTS.items() if kind in kinds or kind != USER}

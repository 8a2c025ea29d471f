"""The pages in the groups of the navigation. A new page is a module of `views` with its `PAGE`, and its name here."""

from __future__ import annotations

from streamgauge.dashboard.page_frame import Page
from streamgauge.dashboard.views import (
    alerts,
    compare,
    errors,
    hops,
    latency,
    live,
    overview,
    pipeline,
    sessions,
    spend,
    sql,
    stream,
    streams,
    throughput,
    traces,
)

PAGES: dict[str, tuple[Page, ...]] = {
    "": (overview.PAGE, alerts.PAGE),
    "Analyse": (latency.PAGE, throughput.PAGE, spend.PAGE, errors.PAGE, hops.PAGE, compare.PAGE),
    "Streams": (streams.PAGE, stream.PAGE, sessions.PAGE, live.PAGE, traces.PAGE),
    "System": (pipeline.PAGE, sql.PAGE),
}
"""The first page is the default."""

"""The queries of the dashboard's first page over the last 15 minutes, every 2 s. Called with DATA; ended by SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tree import Ask, module, reading_as_dashboard

EVERY_S = 2.0
RANGE = timedelta(minutes=15)


def draw(ask: Ask) -> None:
    """Run the queries of `streamgauge.dashboard.views.overview` once."""
    overview, streams = (
        module("streamgauge.analytics.reports.overview"),
        module("streamgauge.analytics.reports.stream_lists"),
    )
    now = datetime.now(UTC)
    chosen = module("streamgauge.analytics.reports.selection").Selection(since=now - RANGE, until=now)
    overview.any_stream(ask)
    overview.filter_options(ask, chosen)
    overview.summary_now_and_before(ask, chosen)
    overview.active_streams(ask, chosen)
    overview.active_at(ask, chosen, now - RANGE)
    overview.timeline_by(ask, chosen, "model")
    overview.top_contributors(ask, chosen)
    overview.largest_changes(ask, chosen)
    overview.timeline_by(ask, chosen, "model")
    streams.table(ask, chosen, overview.IS_BAD, limit=15)


def main(data: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with reading_as_dashboard(data) as ask:
        while True:
            began_s = time.monotonic()
            draw(ask)
            time.sleep(max(0.0, began_s + EVERY_S - time.monotonic()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

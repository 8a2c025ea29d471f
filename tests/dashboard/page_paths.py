"""The address of every page over a store with streams and spans."""

from __future__ import annotations

from pathlib import Path

from tests.dashboard.app_test import VIEWS
from tests.tables import tables

RANGE = "range=24h&refresh=off"


def page_paths(data: Path) -> dict[str, str]:
    """Name of a view → path and query. "trace" is one trace of the Traces page, "turn" one turn of
    the Sessions page, "filtered" the Overview with filter chips."""
    store = tables(data)
    ok = store.query("SELECT stream_id FROM streams WHERE outcome = 'ok' ORDER BY started_at LIMIT 1")
    turn = store.query("SELECT session_id, turn FROM session_turns WHERE pause = 'tool' ORDER BY ALL LIMIT 1")
    spans = store.query("SELECT trace_id FROM spans ORDER BY ALL LIMIT 1")
    paths = {view: f"{view}?{RANGE}" for view in VIEWS}
    return paths | {
        "overview": f"?{RANGE}",
        "filtered": f"?{RANGE}&model=gpt-4o-mini&model=qwen3-32b",
        "stream": f"stream?{RANGE}&id={ok['stream_id'][0]}",
        "turn": f"sessions?{RANGE}&session={turn['session_id'][0]}&turn={turn['turn'][0]}",
        "trace": f"traces?{RANGE}&trace={spans['trace_id'][0]}",
    }

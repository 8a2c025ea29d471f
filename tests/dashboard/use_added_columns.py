"""Script of test_added_columns.py: use columns of a changed copy of the product. Argument: a data folder."""

from __future__ import annotations

import json
import os
import runpy
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from streamlit.testing.v1 import AppTest

import streamgauge
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.reports import latency
from streamgauge.analytics.reports.metric_help import metric_help
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.telemetry.semconv import names_of
from streamgauge.analytics.telemetry.spans import SpanBuilder, span_rows
from tests.analytics.stream_records import stream_id, whole_stream
from tests.dashboard.app_test import APP, page_text, table

ROOT = Path(__file__).parents[2]
ADDED: dict[str, tuple[str, Any]] = {
    "tap_worker": ("opened", 0),
    "reused_connection": ("closed", False),
    "content_event_count": ("decoded", 3),
    "generation_ns": ("computed", 20_000_000),
}
"""Column → (source, its value in the stream)."""
NAMES, VALUES = ", ".join(ADDED), tuple(value for _, value in ADDED.values())


def comment(source: str) -> str:
    return f"Added by a test: {source}."


def use(data: Path) -> None:
    assembler = Assembler()
    assembler.feed("w0", 0, whole_stream(stream_id(1)))
    finished = assembler.take_finished()
    tables = measure(finished)
    with closing(Store(locate("sqlite", data))) as store:
        store.commit(Commit("", tables={**tables, **rollups(tables)}))
    # SQL and Python
    with streamgauge.connect(data) as connection:
        assert connection.sql(f"SELECT {NAMES} FROM streams").fetchall() == [VALUES]
        assert connection.sql("SELECT generation_p50_ns > 19e6 FROM latency_by_minute").fetchall() == [
            (True,)
        ]
        described = connection.sql(
            "SELECT column_name, comment FROM duckdb_columns() WHERE starts_with(comment, 'Added by a test')"
        ).fetchall()
    assert dict(described) == {name: comment(source) for name, (source, _) in ADDED.items()}
    # span
    row = tables["streams"].row(0, named=True)
    *_, attributes, _ = span_rows(SpanBuilder(names_of("1.41"), Resource({})).build(finished[0], row))[0]
    found = json.loads(attributes)
    assert found["streamgauge.generation"] == 0.02
    for name in [*ADDED][:3]:
        assert found[f"streamgauge.{name}"] == ADDED[name][1]
    # pages
    assert latency.METRICS["length of the output"] == "generation_ns"
    assert metric_help("generation") == "Help of the metric."
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params["id"] = str(row["stream_id"])
    os.environ["STREAMGAUGE_DATA"] = str(data)
    shown = {
        cells["Column"]: cells
        for cells in table(app.switch_page("views/stream.py").run(), "Columns of streams")
    }
    for name, (source, value) in ADDED.items():
        assert shown[name]["Value"] == str(value), page_text(app)
        assert shown[name]["Comment"] == comment(source)
    # docs
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    page = pages[ROOT / "docs" / "reference" / "tables.md"]
    assert all(f"| `{name}` |" in page and comment(source) in page for name, (source, _) in ADDED.items())


assert Path(str(streamgauge.__file__)).parents[1] == Path(sys.argv[1]).parent, "not the copy"
use(Path(sys.argv[1]))
print("added columns work")

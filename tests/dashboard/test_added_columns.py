"""A column of `streams` is a line of the catalogue and the code that computes it. The rest of the product follows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

from streamgauge.analytics.schema.stream_columns import OPENED, Text, columns_of, read_from
from streamgauge.ingest.records import Closed
from tests.analytics.schema.test_added_table import ROOT, copied_package
from tests.deadline import DEADLINE_S

END_OF_ROW = "\n    output_text: Text\n"
COLUMNS = '''
    tap_worker: Annotated[Int32, OPENED, ATTRIBUTE]
    """Added by a test: opened."""
    reused_connection: Annotated[Flag, CLOSED, ATTRIBUTE]
    """Added by a test: closed."""
    content_event_count: Annotated[Integer, DECODED, ATTRIBUTE]
    """Added by a test: decoded."""
    generation_ns: Annotated[Integer, READS, Histogram("p50"), Metric("length of the output", 99), ATTRIBUTE]
    """Added by a test: computed.

    Help of the metric.
    """
'''
"""The first three are attributes of records and of the decoded body that no column has so far."""
BEFORE = "\n    _set(row, body.columns)\n"
COMPUTED = '\n    row["generation_ns"] = chunks.output_span_ns'


def test_column_of_each_source_is_in_sql_docs_spans_pages_and_python(tmp_path: Path) -> None:
    package = copied_package(tmp_path)
    for file, place, added in (
        ("schema/stream_columns.py", END_OF_ROW, COLUMNS),
        ("measures/measure.py", BEFORE, COMPUTED),
    ):
        path = package / "analytics" / file
        before, place, after = path.read_text().partition(place)
        assert place
        path.write_text(before + added.rstrip("\n") + place + after)
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("use_added_columns.py")), str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "added columns work\n"


class Misspelt:
    added: Annotated[Text, "histogram"]
    """A text."""


def test_unknown_hint_fails() -> None:
    with pytest.raises(TypeError, match="column added: unknown hint"):
        columns_of(Misspelt)


def test_record_without_the_attribute_of_a_column_fails() -> None:
    with pytest.raises(AttributeError, match="Closed"):
        read_from(Closed, OPENED)


@pytest.mark.slow
def test_misspelt_column_fails_the_check_of_types() -> None:
    code = """
from streamgauge.analytics.schema.stream_columns import StreamRow

def add(row: StreamRow) -> None:
    row["ttft_ns"] = 1
    row["tttf_ns"] = 1
"""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert 'has no key "tttf_ns"' in done.stdout
    assert "Found 1 error in 1 file" in done.stdout

"""Captures of our own, written by hand: `captures/<system>/<what>.sse`, and beside it what must be found in it.

The `.json` holds what was asked and answered (`url`, `http_status`, `content_type`) and `expected`: any keys of what
`streamgauge read --format json` prints. A new dialect's test data goes here; nothing else needs to be touched.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamgauge.read import ExchangeHints, read_file

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*/*.sse"))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_capture_reads_as_it_was_written(capture: Path) -> None:
    expected = json.loads(capture.with_suffix(".json").read_text())["expected"]
    found = read_file(capture, ExchangeHints())
    assert {key: found[key] for key in expected} == expected


def test_there_are_captures() -> None:
    assert len(CAPTURES) > 10

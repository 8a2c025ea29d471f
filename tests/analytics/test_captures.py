"""Hand-written captures: `captures/<system>/<name>.sse` with the expected result in `<name>.json`.

The `.json` holds `url`, `http_status` and `content_type` of the exchange, and under `expected` any keys that
`streamgauge read --format json` prints. Captures for a new dialect go here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamgauge.python_api.recorded_response import ExchangeHints, members, read_file

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*/*.sse"))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_capture_matches_its_expected_result(capture: Path) -> None:
    expected = json.loads(capture.with_suffix(".json").read_text())["expected"]
    found = members(read_file(capture, ExchangeHints()))
    assert {key: found[key] for key in expected} == expected


def test_captures_are_found() -> None:
    assert len(CAPTURES) > 10

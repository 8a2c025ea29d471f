"""Small responses after public bug reports, outside the repository. Each stands for a kind that has tests in the tree too."""

from __future__ import annotations

from typing import Any

import pytest

from streamgauge.python_api.recorded_response import ExchangeHints, Response, read_file
from tests.analytics.corpus import CORPUS

CASES = CORPUS.parent / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases in {CASES}")

EXPECTED: dict[str, dict[str, Any]] = {
    "anthropic_only_message_start": {"outcome": "truncated", "error_type": "stream_truncated"},
    "abort_finish": {"outcome": "inband_error", "error_type": "abort"},
    "network_error_finish": {"outcome": "inband_error", "error_type": "network_error"},
    "gemini_lead_stop_cut": {"outcome": "truncated"},
    "anthropic_delta_input_zero": {"outcome": "ok", "input_tokens": 15, "output_tokens": 7},
    "anthropic_input_zero_never_corrected": {"outcome": "ok", "input_tokens": None, "output_tokens": 54},
    "anthropic_delta_input_sum": {"outcome": "ok", "input_tokens": 32_671, "output_tokens": 7},
    "empty_200_json": {"outcome": "truncated"},
    "empty_200_noct": {"outcome": "truncated"},
    "split_surrogates": {"outcome": "ok", "text": "ok 😀", "kinds": ["text"] * 3, "chars": 4},
    "gemini_image_only": {"outcome": "ok", "kinds": ["image"], "output_event_count": 1},
    "image_output": {"outcome": "ok", "kinds": ["image"], "output_event_count": 1},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_case_has_the_right_values(name: str) -> None:
    found = values(read_file(CASES / f"{name}.sse", ExchangeHints()))
    assert {key: found[key] for key in EXPECTED[name]} == EXPECTED[name]


def test_every_case_is_read() -> None:
    assert {case.stem for case in CASES.glob("*.sse")} == EXPECTED.keys()


def values(response: Response) -> dict[str, Any]:
    output = [
        event
        for event in response.events
        if event.kind in ("text", "reasoning", "tool_call", "audio", "image")
    ]
    found = {name: getattr(response, name) for name in response.__struct_fields__}
    return found | {"kinds": [e.kind for e in output], "chars": sum(e.chars for e in output)}

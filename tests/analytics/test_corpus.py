"""`streamgauge read` on recorded streams gives the result of an independent reader."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.python_api.recorded_response import ExchangeHints, members, read_file
from tests.analytics.corpus import SKIP_REASON, Recording, recordings

RECORDINGS = recordings()
pytestmark = pytest.mark.skipif(not RECORDINGS, reason=SKIP_REASON)


def _arguments(text: str, *, as_json: bool) -> Any:
    return json.loads(text) if as_json and text else text


def _compared(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """name → (our value, reference value)."""
    expected_calls = expected["tool_calls"]
    were_objects = [call.get("args_were_object", False) for call in expected_calls]
    were_objects += [False] * len(found["tool_calls"])
    return {
        "text": (found["text"], expected["text"]),
        "reasoning": (found["reasoning"], expected["reasoning"]),
        "refusal": (found["refusal"] or None, expected["refusal"] or None),
        "tool_calls": (
            [
                (call["id"], call["name"], _arguments(call["arguments"], as_json=as_json))
                for call, as_json in zip(found["tool_calls"], were_objects, strict=False)
            ],
            [
                (call["id"] or None, call["name"], _arguments(call["arguments"], as_json=as_json))
                for call, as_json in zip(expected_calls, were_objects, strict=False)
            ],
        ),
        "finish_reason": (found["finish_reason"], expected["finish_reason"]),
        "usage": (found["usage"], expected["usage"]),
        "error": (found["error"], expected["error"]),
        "event_count": (found["event_count"], expected["n_events"]),
        "event_count_strict": (
            found["event_count"] - found["unterminated_tail"],
            expected["n_events_strict"] or expected["n_events"] - expected["tail_unterminated"],
        ),
        "content_event_count": (found["content_event_count"], expected["n_content_events"]),
        "comment_count": (found["comment_count"], expected["n_comments"]),
        "done_seen": (found["done_seen"], expected["has_done"]),
        "response_id": (found["response_id"], expected["response_id"]),
        "response_model": (found["response_model"], expected["model"]),
    }


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_recorded_stream_matches_the_reference_result(recording: Recording) -> None:
    expected = recording.found
    found = members(read_file(recording.body, ExchangeHints()))
    compared = _compared(found, expected)
    assert {name: ours for name, (ours, _) in compared.items()} == {
        name: theirs for name, (_, theirs) in compared.items()
    }
    assert found["malformed_events"] == 0
    for choice in expected.get("choices") or ():
        ours = next(c for c in found["choices"] if c["index"] == choice["index"])
        for key in ("text", "reasoning", "finish_reason"):
            assert ours[key] == choice[key], (choice["index"], key)


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_outcome_matches_recorded_status_and_error(recording: Recording) -> None:
    expected = recording.found
    outcome = read_file(recording.body, ExchangeHints()).outcome
    if expected["http_status"] >= 400:
        assert outcome == "http_error"
    elif expected["finish_reason"] in (None, "ERROR", "error", "failed"):
        assert outcome in ("ok", "truncated", "inband_error")
    else:
        assert outcome in ("ok", "inband_error" if expected["error"] else "ok")

"""Markers of a request's JSON: times with a zone, defaults, and errors that name the key."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from streamgauge.analytics.intake.posted_items import MAX_SOURCE, Marker, parse_marker
from streamgauge.analytics.intake.store_endpoint import MAX_TEXT

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def test_time_and_source_have_defaults() -> None:
    assert parse_marker(b'{"text": " deploy v2 "}', NOW) == Marker(NOW, "deploy v2", "api")


def test_time_is_converted_to_utc() -> None:
    body = json.dumps({"text": "d", "at": "2026-03-01T13:00:00.5+01:00", "source": "ci"}).encode()
    expected = Marker(dt.datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=dt.UTC), "d", "ci")
    assert parse_marker(body, NOW) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"", "the body is not a JSON object"),
        (b"\xff{", "the body is not a JSON object"),
        (b"[" * 8000, "the body is not a JSON object"),
        ([1], "the body is not a JSON object"),
        ({"text": "a", "txet": 1}, "unknown key 'txet'. Allowed: text, at, source"),
        ({}, f"text is not a text of 1 to {MAX_TEXT} characters"),
        ({"text": "a\nb"}, "text is not a text"),
        ({"text": "a" * (MAX_TEXT + 1)}, "text is not a text"),
        ({"text": "a", "source": "s" * (MAX_SOURCE + 1)}, f"source is not a text of 1 to {MAX_SOURCE} characters"),
        ({"text": "a", "at": "2026-03-01T12:00:00"}, "at is not a time with a time zone"),
        ({"text": "a", "at": 5}, "at is not a time with a time zone"),
        ({"text": "a", "at": "0001-01-01T00:00:00+14:00"}, "at is not a time with a time zone"),
        ({"text": "a", "at": "1969-12-31T00:00:00Z"}, "at is before 1970"),
        ({"text": "a", "at": "2026-03-02T12:00:01Z"}, "more than 1 day in the future"),
    ],
)  # fmt: skip
def test_wrong_marker_is_one_clear_line(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as wrong:
        parse_marker(given if isinstance(given, bytes) else json.dumps(given).encode(), NOW)
    assert "\n" not in str(wrong.value)

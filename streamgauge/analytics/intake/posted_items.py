"""What clients post to analytics: markers such as deployments, which charts show, and silences of alerts."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from streamgauge.analytics.intake.store_endpoint import MAX_TEXT, json_object, one_line
from streamgauge.analytics.schema.tables import MAX_SILENCE_S

MARKERS_PATH, SILENCES_PATH = "/v1/markers", "/v1/silences"
MAX_SOURCE = 64
"""Characters."""
AHEAD = dt.timedelta(days=1)
"""A marker is at most this far in the future."""
DEFAULT_SOURCE = "api"
MARKER_KEYS = ("text", "at", "source")
GLOBS = ("rule", "model", "gateway")
SILENCE_KEYS = (*GLOBS, "seconds", "reason")


@dataclass(frozen=True, slots=True)
class Marker:
    """An event outside of the streams, such as a deployment."""

    at: dt.datetime
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class NewSilence:
    """No messages about the alerts that all globs match, until it ends. A new one with the same globs replaces the one before."""

    created_at: dt.datetime
    ends_at: dt.datetime
    rule: str
    model: str
    gateway: str
    reason: str


def parse_marker(body: bytes, now: dt.datetime) -> Marker:
    """The marker of a request's JSON. Raises ValueError with one line that names the key."""
    given = json_object(body, MARKER_KEYS, '{"text": "deploy v2"}')
    source = given.get("source")
    return Marker(
        at=_instant(given.get("at"), now),
        text=one_line("text", given.get("text"), MAX_TEXT),
        source=DEFAULT_SOURCE if source is None else one_line("source", source, MAX_SOURCE),
    )


def _instant(value: object, now: dt.datetime) -> dt.datetime:
    if value is None:
        return now
    try:
        found = dt.datetime.fromisoformat(value) if isinstance(value, str) else None
        found = found.astimezone(dt.UTC) if found is not None and found.tzinfo is not None else None
    except (ValueError, OverflowError):
        found = None
    if found is None:
        raise ValueError("at is not a time with a time zone, such as 2026-11-22T07:00:00Z")
    if found.year < 1970 or found > now + AHEAD:
        raise ValueError(f"at is before 1970 or more than {AHEAD.days} day in the future")
    return found


def parse_silence(body: bytes, now: dt.datetime) -> NewSilence:
    """The silence of a request's JSON. Raises ValueError with one line that names the key."""
    given = json_object(body, SILENCE_KEYS, '{"model": "gpt-*", "seconds": 3600, "reason": "load test"}')
    seconds = given.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SILENCE_S:
        raise ValueError(f"seconds is not a number from 0 to {MAX_SILENCE_S}")
    globs = {key: one_line(key, given.get(key, "*"), MAX_TEXT) for key in GLOBS}
    reason = one_line("reason", given.get("reason", "silenced"), MAX_TEXT)
    return NewSilence(now, now + dt.timedelta(seconds=seconds), **globs, reason=reason)

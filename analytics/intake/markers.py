"""Markers such as deployments: `POST /v1/markers` stores them, and charts show them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass

from streamgauge.analytics.intake.commit_queue import CommitQueue
from streamgauge.analytics.intake.store_endpoint import MAX_TEXT, item_queue, json_object, one_line
from streamgauge.analytics.schema.tables import MARKERS

PATH = "/v1/markers"
MAX_SOURCE = 64
"""Characters."""
AHEAD = dt.timedelta(days=1)
"""A marker is at most this far in the future."""
DEFAULT_SOURCE = "api"
KEYS = ("text", "at", "source")


@dataclass(frozen=True, slots=True)
class Marker:
    """An event outside of the streams, such as a deployment."""

    at: dt.datetime
    text: str
    source: str

    def json(self) -> dict[str, str]:
        at = self.at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
        return {"at": at, "text": self.text, "source": self.source}


def parse_marker(body: bytes, now: dt.datetime) -> Marker:
    """The marker of a request's JSON. Raises ValueError with one line that names the key."""
    given = json_object(body, KEYS, '{"text": "deploy v2"}')
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


def marker_queue(clock: Callable[[], float] = time.monotonic) -> CommitQueue[Marker]:
    """The queue of markers. `clock`: seconds."""
    return item_queue(MARKERS, lambda m: (round(m.at.timestamp() * 1e6), m.text, m.source), clock)

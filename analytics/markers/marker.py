"""A marker, and its JSON. Pure."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 200
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
    try:
        given: Any = json.loads(body)
    except ValueError:  # also for bytes that are not UTF-8
        given = None
    except RecursionError:
        given = None
    if not isinstance(given, dict):
        raise ValueError('the body is not a JSON object such as {"text": "deploy v2"}')
    unknown = next((key for key in given if key not in KEYS), None)
    if unknown is not None:
        raise ValueError(f"unknown key {unknown[:MAX_SOURCE]!r}. Allowed: {', '.join(KEYS)}")
    source = given.get("source")
    return Marker(
        at=_instant(given.get("at"), now),
        text=_text("text", given.get("text"), MAX_TEXT),
        source=DEFAULT_SOURCE if source is None else _text("source", source, MAX_SOURCE),
    )


def _text(key: str, value: object, most: int) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not 0 < len(text) <= most or not text.isprintable():
        raise ValueError(f"{key} is not a text of 1 to {most} characters in one line")
    return text


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

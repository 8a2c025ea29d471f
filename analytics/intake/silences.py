"""Silences of alerts: `POST /v1/silences` stores them. A new one with the same globs replaces the one before."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, astuple, dataclass

from streamgauge.analytics.intake.commit_queue import CommitQueue
from streamgauge.analytics.intake.store_endpoint import MAX_TEXT, item_queue, json_object, one_line
from streamgauge.analytics.schema.tables import SILENCES

PATH = "/v1/silences"
GLOBS = ("rule", "model", "gateway")
KEYS = (*GLOBS, "seconds", "reason")
MAX_S = 30 * 86_400


@dataclass(frozen=True, slots=True)
class NewSilence:
    """No messages about the alerts that all globs match, until it ends."""

    created_at: dt.datetime
    ends_at: dt.datetime
    rule: str
    model: str
    gateway: str
    reason: str

    def json(self) -> dict[str, str]:
        return {name: str(value).replace("+00:00", "Z") for name, value in asdict(self).items()}


def parse_silence(body: bytes, now: dt.datetime) -> NewSilence:
    """The silence of a request's JSON. Raises ValueError with one line that names the key."""
    given = json_object(body, KEYS, '{"model": "gpt-*", "seconds": 3600, "reason": "load test"}')
    seconds = given.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_S:
        raise ValueError(f"seconds is not a number from 0 to {MAX_S}")
    globs = {key: one_line(key, given.get(key, "*"), MAX_TEXT) for key in GLOBS}
    reason = one_line("reason", given.get("reason", "silenced"), MAX_TEXT)
    return NewSilence(now, now + dt.timedelta(seconds=seconds), **globs, reason=reason)


def silence_queue() -> CommitQueue[NewSilence]:
    """The queue of silences."""
    return item_queue(SILENCES, lambda silence: [_value(v) for v in astuple(silence)])


def _value(value: dt.datetime | str) -> int | str:
    return round(value.timestamp() * 1e6) if isinstance(value, dt.datetime) else value

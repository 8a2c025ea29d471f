"""Streams changed at random, each by one or two changes that servers and gateways make: the input of `tests.e2e.test_changed_streams`.

The same seed and streams give the same changes. A change is one of `CHANGES`: an event is dropped, repeated, moved or cut, or one
of its members is removed, gets a value of another type, another index or another `type`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES
from tests.analytics.strict_streams import compact

Path = tuple[str | int, ...]
VALUES: tuple[Any, ...] = (None, 7, 1.5, True, "7", "x", [], {}, ["x"], {"x": 1})
INDICES = ("index", "output_index", "content_index", "summary_index")
TYPES = {
    CHAT: ("function", "custom", "text"),
    MESSAGES: (
        "text", "thinking", "tool_use", "server_tool_use", "text_delta", "thinking_delta", "input_json_delta", "signature_delta",
    ),
    RESPONSES: ("message", "function_call", "reasoning", "custom_tool_call", "output_text", "refusal", "reasoning_text"),
}  # fmt: skip


@dataclass(frozen=True)
class Changed:
    name: str
    dialect: str
    body: bytes
    change: str
    """What was done, for people."""


def events_of(body: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in body.replace(b"\r\n", b"\n").split(b"\n\n") if event]


def _value(event: bytes) -> Any:
    _, found, line = event.partition(b"data:")
    try:
        return json.loads(line) if found else None
    except ValueError:
        return None


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, member in members:
        yield (*path, key)
        yield from _paths(member, (*path, key))


def _with_member(
    event: bytes, rng: random.Random, suits: Callable[[Path, Any], bool], new: Callable[[Any, Any, Any], None]
) -> tuple[bytes, str] | None:
    """The event with one of its members changed by `new(holder, key, old)`."""
    value = _value(event)

    def member(path: Path) -> Any:
        found = value
        for key in path:
            found = found[key]
        return found

    paths = [path for path in _paths(value) if suits(path, member(path))]
    if not paths:
        return None
    path = rng.choice(paths)
    new(member(path[:-1]), path[-1], member(path))
    return event.partition(b"data:")[0] + b"data: " + compact(value) + b"\n\n", ".".join(map(str, path))


def _retype(event: bytes, rng: random.Random, dialect: str) -> tuple[bytes, str] | None:
    def new(holder: Any, key: Any, old: Any) -> None:
        holder[key] = rng.choice([value for value in VALUES if type(value) is not type(old)])

    return _with_member(event, rng, lambda path, old: True, new)


def _remove(event: bytes, rng: random.Random, dialect: str) -> tuple[bytes, str] | None:
    return _with_member(
        event, rng, lambda path, old: isinstance(path[-1], str), lambda holder, key, old: holder.pop(key)
    )


def _index(event: bytes, rng: random.Random, dialect: str) -> tuple[bytes, str] | None:
    def new(holder: Any, key: Any, old: Any) -> None:
        holder[key] = rng.choice([index for index in (0, 1, 2, old + 1, old - 1) if index != old])

    return _with_member(event, rng, lambda path, old: path[-1] in INDICES and isinstance(old, int), new)


def _type(event: bytes, rng: random.Random, dialect: str) -> tuple[bytes, str] | None:
    def new(holder: Any, key: Any, old: Any) -> None:
        holder[key] = rng.choice([name for name in TYPES[dialect] if name != old])

    return _with_member(event, rng, lambda path, old: path[-1] == "type" and old in TYPES[dialect], new)


def _cut(event: bytes, rng: random.Random, dialect: str) -> tuple[bytes, str] | None:
    end = rng.randrange(len(event) // 2, len(event) - 2) if len(event) > 20 else 0
    return (event[:end] + b"\n\n", f"at {end}") if end else None


OF_EVENTS = {"retyped": _retype, "removed": _remove, "index": _index, "type": _type, "cut": _cut}
CHANGES = ("dropped", "repeated", "moved", *OF_EVENTS)
WEIGHTS = (2, 2, 2, 4, 1, 2, 3, 1)


def _changed(events: list[bytes], rng: random.Random, dialect: str) -> str | None:
    change, at = rng.choices(CHANGES, WEIGHTS)[0], rng.randrange(len(events))
    if rng.random() < 0.5:  # half of the changes are at the few events that are unlike the others
        shapes = [bytes(c for c in event[:80] if chr(c).isalpha()) for event in events]
        at = rng.choice([n for n, shape in enumerate(shapes) if shapes.count(shape) <= 2] or [at])
    detail = ""
    if change == "dropped":
        del events[at]
    elif change in ("repeated", "moved"):
        event = events[at] if change == "repeated" else events.pop(at)
        to = (
            rng.choice([at + 1, at, rng.randrange(len(events) + 1)])
            if change == "repeated"
            else rng.randrange(len(events) + 1)
        )
        events.insert(min(to, len(events)), event)
        detail = f" to {to}"
    else:
        found = OF_EVENTS[change](events[at], rng, dialect)
        if found is None:
            return None
        events[at], detail = found
    return f"{at} {change} {detail}"


def changed_streams(streams: Sequence[tuple[str, str, bytes]], count: int, seed: str) -> list[Changed]:
    """`count` changed streams of these (name, dialect, body)."""
    rng = random.Random(seed)
    made: list[Changed] = []
    seen: set[bytes] = set()
    while len(made) < count:
        name, dialect, body = rng.choice(streams)
        events = events_of(body)
        done = [_changed(events, rng, dialect) for _ in range(rng.choice((1, 1, 1, 2))) if events]
        changed = b"".join(events)
        if all(done) and changed not in seen and events:
            seen.add(changed)
            made.append(Changed(name, dialect, changed, ", ".join(map(str, done))))
    return made

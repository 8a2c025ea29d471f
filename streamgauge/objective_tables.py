"""The setting `objectives`: tables of the configuration file, or the same as JSON, as `Objective`s."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from typing import Any

from streamgauge.analytics.schema.objectives import DEFAULT, MAX_OBJECTIVES, Objective
from streamgauge.values import parse_seconds

EXAMPLE = '{"model": "gpt-*", "ttft": "800ms", "goodput": 0.95}'
_GLOBS = ("model", "gateway", "client")
_LIMITS = ("ttft", "itl", "error_rate", "goodput")
KEYS = ("name", *_GLOBS, *_LIMITS)
MAX_TEXT = 256


def parse_objectives(value: object) -> tuple[Objective, ...]:
    """Tables, objectives or JSON text of them, in the order of their priority. Raises ValueError."""
    try:
        given: Any = json.loads(value) if isinstance(value, str) else value
        items = [
            json.loads(item) if isinstance(item, str) else item
            for item in ([given] if isinstance(given, Mapping) else given)
        ]
    except (ValueError, TypeError):
        items = [None]
    found: list[Objective] = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping | Objective):
            raise ValueError(f"the value is not a list of tables such as {EXAMPLE}")
        found.append(item if isinstance(item, Objective) else _objective(number, item))
    names = [objective.name for objective in found]
    twice = next((name for name in names if names.count(name) > 1 or name == DEFAULT.name), None)
    if twice is not None:
        raise ValueError(f"the name {twice!r} is taken: give each objective its own name")
    if len(found) > MAX_OBJECTIVES:
        raise ValueError(f"there are {len(found)} objectives, above the limit of {MAX_OBJECTIVES}")
    return tuple(found)


def _objective(number: int, table: Mapping[str, Any]) -> Objective:
    def wrong(key: str, allowed: str) -> ValueError:
        return ValueError(f"objective {number}: {key} = {table[key]!r} is not {allowed}")

    for key in table:
        if key not in KEYS:
            similar = difflib.get_close_matches(key, KEYS, 1)
            hint = f", did you mean {similar[0]!r}?" if similar else "."
            raise ValueError(f"objective {number}: unknown key {key!r}{hint} Allowed: {', '.join(KEYS)}")
    for key in ("name", *_GLOBS):
        text = table.get(key, "*")
        if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT or not text.isprintable():
            raise wrong(key, "text in quotes")
        if key in _GLOBS and set(text) & set("[]\\"):
            raise wrong(key, "a name with the wildcards * and ?")
    if not set(_LIMITS) & set(table):
        raise ValueError(f"objective {number}: it has no limit. Add one of {', '.join(_LIMITS)}")
    limits: dict[str, Any] = {}
    for key in ("ttft", "itl"):
        if key in table:
            seconds: Any = parse_seconds(table[key])
            if not _is_number(seconds) or not 0 < seconds <= 86_400:
                raise wrong(key, "a duration such as 800ms or 2s")
            limits[f"{key}_ns"] = round(seconds * 1e9)
    for key, most in (("error_rate", "1"), ("goodput", "less than 1")):
        if key in table:
            share = table[key]
            if not _is_number(share) or not 0 <= share <= 1 or (key == "goodput" and share == 1):
                raise wrong(key, f"a share from 0 to {most}")
            limits[key] = float(share)
    globs: dict[str, Any] = {key: table[key] for key in _GLOBS if key in table}
    name = (
        table.get("name") or " ".join(f"{key}={glob}" for key, glob in globs.items() if glob != "*") or "all"
    )
    return Objective(name, **globs, **limits)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""Settings that are tables of texts: a table of the file, JSON text of it, or flags such as `KEY=VALUE`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def text_pairs(value: Any, *, what: str) -> Iterable[tuple[Any, Any]]:
    """Keys and values. Items that are not texts are converted with `str`. Raises ValueError, which names `what` is expected."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as e:
            raise ValueError(f"the value is not JSON: {e}") from None
    if isinstance(value, Mapping):
        return value.items()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all("=" in str(item) for item in items):
        raise ValueError(f"the value is not {what}")
    return [tuple(str(item).partition("=")[::2]) for item in items]  # type: ignore[misc]

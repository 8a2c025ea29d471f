"""Rate limits of the simulator: for each API key and model, a bucket of requests and one of tokens, which fill again in a minute.

`take` returns the placeholders of the headers that a vendor reports them in (`: rate-limit` in `streams/*.sse`). No clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

TOKENS_PER_REQUEST = 20_000
"""The limit of tokens, as a multiple of that of requests."""
MAX_HOLDERS = 1_000
"""API keys and models with buckets. The one that was used least recently is evicted, and then has full ones."""
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


class RateLimits:
    """The buckets of all API keys and models."""

    def __init__(self, requests_per_min: float) -> None:
        self._limits = {"requests": requests_per_min, "tokens": requests_per_min * TOKENS_PER_REQUEST}
        self._left: dict[tuple[str, str], tuple[dict[str, float], float]] = {}
        """What is left in the buckets of a key and model, and since when."""

    def take(self, headers: Mapping[str, str], model: str, tokens: int, now_s: float) -> dict[str, Any]:
        """Take a request and its tokens. `retry_s` is 0, or the seconds to wait if one bucket has not enough: then nothing is taken.

        `now_s` is a Unix time.
        """
        holder = next((headers[name] for name in _CREDENTIALS if name in headers), ""), model
        before, since_s = self._left.pop(holder, (self._limits, now_s))
        left, values, waits_s = dict[str, float](), dict[str, Any](), [0.0]
        for kind, limit in self._limits.items():
            left[kind] = min(limit, before[kind] + (now_s - since_s) * limit / 60)
            asked = min(1 if kind == "requests" else tokens, limit)
            waits_s.append((asked - left[kind]) * 60 / limit)
            left[kind] -= asked
        if max(waits_s) > 0:
            left, now_s = before, since_s
        if len(self._left) >= MAX_HOLDERS:
            del self._left[next(iter(self._left))]
        self._left[holder] = left, now_s
        for kind, limit in self._limits.items():
            full_s = (limit - left[kind]) * 60 / limit
            values |= {
                f"limit_{kind}": int(limit), f"remaining_{kind}": int(left[kind]), f"reset_{kind}": f"{full_s:.3f}s",
                f"full_{kind}_at": f"{datetime.fromtimestamp(now_s + full_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
            }  # fmt: skip
        return {"retry_s": math.ceil(max(waits_s)), **values}

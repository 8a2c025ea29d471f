"""The dialects. A module of this folder that defines `DIALECT` (or `DIALECTS`, a tuple) is one, found by itself.

Which one reads a stream is chosen from the exchange (path, headers), then checked against the first events: scores are those
of `Dialect.claims` and `Dialect.recognises`, the highest wins, a tie goes to the name that sorts first.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache, lru_cache

from analytics.decoded.dialect import Dialect, ExchangeInfo


@cache
def all_dialects() -> tuple[Dialect, ...]:
    """Every dialect there is, by name."""
    found: list[Dialect] = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "DIALECT"):
            found.append(module.DIALECT)
        found += getattr(module, "DIALECTS", ())
    return tuple(sorted(found, key=lambda d: d.name))


def choose_by_exchange(exchange: ExchangeInfo) -> tuple[Dialect | None, int]:
    """The dialect that claims the exchange most surely, and how surely; (None, 0) when none does."""
    return _choose_by_heads(exchange.method, exchange.path, exchange.host, tuple(exchange.request_headers))


@lru_cache(4096)
def _choose_by_heads(
    method: str, path: str, host: str, headers: tuple[str, ...]
) -> tuple[Dialect | None, int]:
    exchange = ExchangeInfo(method=method, path=path, host=host, request_headers=dict.fromkeys(headers, ""))
    best, score = None, 0
    for dialect in all_dialects():
        claim = dialect.claims(exchange)
        if claim > score:
            best, score = dialect, claim
    return best, score


def choose_by_event(name: str, data: bytes) -> tuple[Dialect | None, int]:
    """The dialect that recognises one event most surely."""
    best, score = None, 0
    for dialect in all_dialects():
        sureness = dialect.recognises(name, data)
        if sureness > score:
            best, score = dialect, sureness
    return best, score

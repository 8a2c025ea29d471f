"""Prices of tokens, as the table `prices` has them and the view `wasted_tokens` applies them."""

from __future__ import annotations

from dataclasses import dataclass, fields

MAX_PRICES = 10_000


@dataclass(frozen=True, slots=True)
class Price:
    """Prices per million tokens of the models that a glob matches. The first match applies."""

    model: str
    """Glob with `*` and `?`."""
    input: float
    cached_input: float
    """Of input tokens read from the prompt cache."""
    output: float
    currency: str


COLUMNS = tuple(field.name for field in fields(Price))

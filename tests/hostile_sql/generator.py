"""Hostile SQL by number: `statement(catalog, seed, n)` is the n-th statement of a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.hostile_sql.calls import calls, casts
from tests.hostile_sql.draw import Catalog, Draw
from tests.hostile_sql.escapes import escapes
from tests.hostile_sql.malformed import malformed
from tests.hostile_sql.nesting import nesting
from tests.hostile_sql.ordinary import ordinary
from tests.hostile_sql.plans import plans
from tests.hostile_sql.sizes import sizes

VALID: dict[str, tuple[int, Callable[[Draw], str]]] = {
    "calls": (30, calls),
    "casts": (15, casts),
    "nesting": (6, nesting),
    "sizes": (5, sizes),
    "plans": (5, plans),
    "escapes": (13, escapes),
    "ordinary": (10, ordinary),
}
"""Kind → weight and function. Each statement of `nesting`, `sizes` and `plans` may cost a time limit or a process."""
MALFORMED_WEIGHT = 10


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement and where it comes from."""

    seed: str
    number: int
    kind: str
    sql: str

    def __str__(self) -> str:
        return f"seed {self.seed!r}, number {self.number} ({self.kind}): {self.sql!r}"


def statement(catalog: Catalog, seed: str, number: int) -> Statement:
    """The statement of this seed and number."""
    draw = Draw(catalog, seed, number)
    kinds = [*VALID, "malformed"]
    weights = [weight for weight, _ in VALID.values()] + [MALFORMED_WEIGHT]
    (kind,) = draw.random.choices(kinds, weights)
    return Statement(
        seed, number, kind, malformed(draw, _valid) if kind == "malformed" else VALID[kind][1](draw)
    )


def _valid(draw: Draw) -> str:
    return draw.one((calls, casts, escapes, ordinary, ordinary, plans))(draw)

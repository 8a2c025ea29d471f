"""How far one log partition is consumed: the columns of `log_positions` with the same names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogPosition:
    """All entries before `high` are consumed. A restart reads [low, high) again for the open streams."""

    high: int
    low: int
    open_stream_ids: tuple[str, ...]

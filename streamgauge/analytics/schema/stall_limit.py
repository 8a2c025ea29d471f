"""The limit above which a gap is a stall. The measures and the dashboard share it."""

from __future__ import annotations

from typing import NamedTuple


class StallLimit(NamedTuple):
    """A gap is a stall if it exceeds both `floor_ns` and `factor` × the stream's median gap."""

    floor_ns: int = 500_000_000
    factor: float = 5.0

    def of(self, median_gap_ns: float) -> float:
        """The limit in ns for a stream."""
        return max(self.floor_ns, self.factor * median_gap_ns)

"""Several witnesses of the consumer's commits as one: tables of the same name are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from analytics.assembly.stream import FinishedStream
from analytics.consumer import Witness


class Witnesses:
    """As `analytics.consumer.Witness`."""

    def __init__(self, *witnesses: Witness) -> None:
        self._witnesses = witnesses

    @property
    def waiting(self) -> bool:
        """Whether one of them has something to commit, streams or not."""
        return any(one.waiting for one in self._witnesses)

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """What they add, together."""
        found: dict[str, list[pl.DataFrame]] = {}
        for one in self._witnesses:
            for table, rows in one.rows(finished, tables).items():
                found.setdefault(table, []).append(rows)
        return {table: pl.concat(frames) for table, frames in found.items()}

    def committed(self) -> None:
        """Told to each."""
        for one in self._witnesses:
            one.committed()

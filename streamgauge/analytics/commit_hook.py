"""Callbacks that run inside each commit of the consumer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream


class CommitHook(ABC):
    """Adds rows to each transaction. After an exception in `rows` or `increments` the commit goes on without them."""

    @property
    def waiting(self) -> bool:
        """Whether it has rows to commit even if no stream has finished."""
        return False

    @abstractmethod
    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> Mapping[str, pl.DataFrame]:
        """Rows to add to this commit, by table. `tables` has the measured rows of `finished`."""

    @property
    def increments(self) -> Mapping[str, int]:
        """Increments of the store's counters in this commit. Read after `rows`."""
        return {}

    @abstractmethod
    def committed(self) -> None:
        """Called after the commit: the rows returned last are in the store."""

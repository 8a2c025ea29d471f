"""What one transaction of the store changes, and the errors of a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from analytics.assembly.log_position import LogPosition
from ingest.records import Alive


class StoreFailed(Exception):
    """The store cannot be written. Nothing of the commit was stored."""


class PartitionLost(Exception):
    """Another consumer has acquired the partition. This consumer must stop."""


@dataclass(slots=True)
class Commit:
    """Everything that one transaction changes."""

    log_id: str
    positions: Mapping[str, LogPosition] = field(default_factory=dict)
    """By partition."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Rows to append, by public table. Columns are matched by name."""
    kept_records: Sequence[tuple[str, str, bytes]] = ()
    """(partition, stream id, packed records) of long-open streams, in order."""
    finished_stream_ids: Sequence[str] = ()
    """Streams whose kept records are deleted."""
    taps: Sequence[Alive] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    """Increments of the counters."""

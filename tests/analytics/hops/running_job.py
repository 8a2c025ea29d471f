"""Analytics with the job of hops, over records in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import polars as pl

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import CommitPolicy, Consumer
from streamgauge.analytics.hops.hop_job import HopJob
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.records import AnyRecord, pack
from tests.analytics.log_entries import MemoryLog
from tests.analytics.stores import ask
from tests.deadline import DEADLINE_S


class Analytics:
    """A consumer with its job, over records in memory."""

    def __init__(
        self, store: Store, *, delays_s: Sequence[float] = (0.1, 0.1, 0.1, 0.2), partition: str = "w0"
    ) -> None:
        self.store = store
        self.log = MemoryLog({partition: []}, log_id=partition)
        self._entries = self.log.partitions_[partition]
        self.reported: list[str] = []
        """Inner streams that the job reported as stored."""
        self.job = HopJob(store, round_s=0.02, delays_s=delays_s, on_stored=self._report)
        self.consumer = Consumer(
            self.log, store, Assembler(), measure, CommitPolicy(commit_interval_s=0.0), hooks=[self.job]
        )
        self.consumer.start()
        self.job.start()

    def _report(self, rows: pl.DataFrame) -> None:
        self.reported += rows["inner_stream_id"].to_list()

    def store_records(self, records: Iterable[AnyRecord]) -> None:
        self._entries.append(pack(list(records), compress=False))
        self.consumer.step(0)
        self.consumer.finish()

    def run(self, seconds: float = 1.5, *, until_hops: int = -1) -> None:
        """Commit for a time, or until there are enough hops."""
        end_s = time.monotonic() + (20 if until_hops >= 0 else seconds)
        while time.monotonic() < end_s and len(ask(self.store, "FROM hops")) != until_hops:
            self.consumer.step(0.02)

    def counter(self, name: str) -> int:
        """The counter in the store, once it is not 0."""
        end_s = time.monotonic() + DEADLINE_S
        while not (value := self.store.totals().get(name, 0)) and time.monotonic() < end_s:
            self.run(0.1)
            self.consumer.commit()
        return value

    def close(self) -> None:
        self.job.close()

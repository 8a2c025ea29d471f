"""Runs of analytics whose calls fail while it reads, commits and writes files, and runs of the upgrade of a former store.

Each run of analytics continues the store of the run before it, so it is also the check of the restart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from tests.analytics.stores import place_empty_catalog
from tests.faults.calls import NEVER, Fault, Page
from tests.faults.forks import Forks
from tests.streamgauge.stored import outcomes, write_streams
from tests.tables import tables

IMPORTS = ()
"""None: Polars starts threads, which a fork does not have."""
STREAMS = 2
"""New streams in the log of each run."""


class AnalyticsRuns:
    """Runs of one fault on one data folder."""

    def __init__(self, forks: Forks, fault: Fault) -> None:
        self._forks, self._fault, self._streams = forks, fault, 0
        place_empty_catalog(forks.data)

    def run(self, number: int) -> None:
        """One run, whose call `number` fails. The process may end with an error, as analytics does: `up` starts it again."""
        first, self._streams = self._streams, self._streams + STREAMS
        write_streams(self._forks.data, range(first, self._streams))
        self._forks.run(f"{__name__}:analyse", *_arguments(self._forks, number, self._fault))
        self._forks.page.release()

    def check(self) -> None:
        """A run without a failure stores each stream once, with all events. The tables have all files in the folder."""
        arguments = _arguments(self._forks, NEVER, self._fault)
        assert self._forks.run(f"{__name__}:analyse", *arguments) == 0
        data = self._forks.data
        assert outcomes(data) == {"ok": self._streams, "lost": 0, "without_row": 0}
        counts = "SELECT count(DISTINCT stream_id), count(*), count(DISTINCT (stream_id, seq)) FROM events"
        ((streams, events, distinct),) = tables(data).query(counts).rows()
        assert (streams, distinct) == (self._streams, events)
        with closing(Store(locate("sqlite", data))) as store:
            upkeep = Upkeep(store, events_s=None, streams_s=None, rollups_s=None)
            upkeep.orphans(0)
            upkeep.close()
            named = {
                Path(row[0]).name
                for row in store.catalog.query(
                    "SELECT path FROM ducklake_data_file UNION ALL SELECT path FROM ducklake_delete_file"
                )
            }
        found = {path.name for path in (data / "tables").rglob("*.parquet")}
        assert found <= named, found - named


def _arguments(forks: Forks, number: int, fault: Fault) -> tuple[object, ...]:
    return str(forks.data), str(forks.page.path), number, fault.as_json()


def analyse(data: str, page: str, number: int, fault: dict[str, int]) -> None:
    """Analytics, from its ready store to the end of the log, with a flush to files and a backup."""
    store = Store(locate("sqlite", Path(data)))
    with EmbeddedReader(Path(data) / "log", "analyze") as reader:
        consumer = Consumer(reader, store, Assembler(), measure)
        consumer.start()
        Page(Path(page)).arm(number, Fault(**fault))  # type: ignore[arg-type]
        while consumer.step(0):
            pass
        consumer.finish()
    upkeep = Upkeep(store, events_s=None, streams_s=None, rollups_s=None)
    upkeep.flush(least_rows=1)
    upkeep.back_up()
    upkeep.close()
    store.close()


class UpgradeRuns:
    """Runs of one fault, each on a copy of a former store. `same`: checks the upgraded store."""

    def __init__(self, forks: Forks, fault: Fault, former: Path, same: Callable[[], None]) -> None:
        self._forks, self._fault, self._former, self._same = forks, fault, former, same

    def run(self, number: int) -> None:
        """One upgrade, whose call `number` fails. The next start completes it, if it has failed."""
        data = self._forks.data
        shutil.rmtree(data)
        shutil.copytree(self._former, data)
        self._forks.run(f"{__name__}:upgrade", *_arguments(self._forks, number, self._fault))
        self._forks.page.release()
        assert self._forks.run(f"{__name__}:upgrade", *_arguments(self._forks, NEVER, self._fault)) == 0

    def check(self) -> None:
        """Each row and figure of the last store is that of the former version."""
        self._same()


def upgrade(data: str, page: str, number: int, fault: dict[str, int]) -> None:
    """Open a store."""
    memory = Page(Path(page))
    armed = number != NEVER
    if armed:
        memory.arm(number, Fault(**fault))  # type: ignore[arg-type]
    Store(locate("sqlite", Path(data))).close()

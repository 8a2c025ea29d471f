"""Runs of `ship` whose calls fail, on the files of the log or on the sockets to a real broker.

Each run continues the log of the run before it, so it is also the check of the restart.
"""

from __future__ import annotations

import signal
import uuid
from pathlib import Path

from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.ingest.record_log.reader_cursors import lowest_cursor
from streamgauge.ingest.records import Alive, Damaged, unpack
from streamgauge.ingest.ship import run
from tests.deadline import until
from tests.faults.calls import NEVER, Fault, Page
from tests.faults.forks import Forks
from tests.ingest.record_log.entries import entry_of, frames, writer_of
from tests.options import ship_options

IMPORTS = (__name__,)
RECORDS = 3


class ShipRuns:
    """Runs of one fault with one topic."""

    def __init__(self, forks: Forks, broker: str, fault: Fault) -> None:
        self._forks, self._broker, self._fault = forks, broker, fault
        self._topic, self._streams = f"t-{uuid.uuid4()}", list[str]()

    def run(self, number: int) -> None:
        """One run, whose call `number` fails. The process may end with an error: `up` starts it again."""
        stream, data = str(uuid.uuid4()), self._forks.data
        self._streams.append(stream)
        with writer_of(data / "log") as writer:
            writer.append([entry_of(frames(stream, seq)) for seq in range(RECORDS)])
            end = writer.next_offset
        self._forks.start(
            f"{__name__}:work", str(data), self._broker, self._topic, str(self._forks.page.path), number,
            self._fault.as_json(),
        )  # fmt: skip

        def shipped() -> bool:
            # A position that could not be stored stays unstored until the next entries.
            status = read_ready_file(data / "run" / "ship.json") or {}
            return lowest_cursor(data / "log", "w0") == end or status.get("released") == {"w0": end}

        until(lambda: shipped() or self._forks.page.failed or not self._forks.running, "records or a failure")
        self._forks.page.release()
        until(lambda: shipped() or not self._forks.running, "the records, or the end of ship")
        stored = shipped()
        self._forks.signal(signal.SIGTERM)
        code = self._forks.wait()
        assert code == 0 or self._forks.page.failed
        assert number != NEVER or stored

    def check(self) -> None:
        """A run without a failure ships all. Each record is in the topic, in the order of its stream."""
        self.run(NEVER)
        reader, found = KafkaReader(self._broker, self._topic, {}), dict[str, list[int]]()

        def complete() -> bool:
            for entry in reader.poll(1.0):
                records, poison = unpack(entry.payload)
                assert not poison
                for record in records:
                    assert not isinstance(record, (Alive, Damaged)), record
                    found.setdefault(record.stream, []).append(record.seq)
            return all(RECORDS - 1 in found.get(stream, ()) for stream in self._streams)

        try:
            until(complete, "the records in the topic")
        finally:
            reader.close()
        for stream in self._streams:
            assert list(dict.fromkeys(found[stream])) == list(range(RECORDS)), stream


def work(data: str, broker: str, topic: str, page: str, number: int, fault: dict[str, int]) -> None:
    """`ship`, whose calls fail from its start on."""
    Page(Path(page)).arm(number, Fault(**fault))  # type: ignore[arg-type]
    run(ship_options(data=Path(data), kafka=broker, redactor=None, kafka_topic=topic, kafka_options={}))

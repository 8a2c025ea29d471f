"""Streamgauge's consumer as in `streamgauge analyze`, from the topic to all tables and roll-ups."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.analytics.jobs.measured import Clock, Watch
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer, tune_gc
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.record_log.kafka_reader import KafkaReader


def main(brokers: str, topic: str, database: str, streams: str) -> None:
    reader = KafkaReader(brokers, topic, {})
    store = Store(locate("sqlite", Path(database)))
    consumer = Consumer(reader, store, Assembler(), measure)
    while not reader.partitions():
        pass
    tune_gc()
    all_dialects()  # as `streamgauge analyze` does before it is ready
    watch = Watch()
    clock = Clock()
    consumer.start()
    seen = 0
    while seen == consumer.commits or store.totals().get("streams_rows", 0) < int(streams):
        seen = consumer.commits
        watch.received += consumer.step(0.05)
    consumer.finish()
    clock.report()
    reader.close()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

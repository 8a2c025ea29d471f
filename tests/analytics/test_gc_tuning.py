"""The assumption of `streamgauge.analytics.consumer.tune_gc`: consuming creates no reference cycles."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import CommitPolicy, Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.telemetry.telemetry import Telemetry
from streamgauge.ingest.record_log.interface import Entry
from tests.analytics.log_entries import MemoryLog, entries
from tests.analytics.stores import new_store
from tests.options import telemetry_options


def test_commits_leave_no_reference_cycles(tmp_path: Path) -> None:
    """The number of collected objects does not grow with the number of streams."""
    store, telemetry = new_store(tmp_path), Telemetry(telemetry_options())
    policy = CommitPolicy(commit_interval_s=3600.0)
    consumer = Consumer(MemoryLog({"w0": []}), store, Assembler(), measure, policy, hooks=[telemetry])
    consumer.start()
    offset = 0

    def found_after(first: int, end: int) -> int:
        nonlocal offset
        gc.collect()
        gc.disable()
        try:
            for payload in entries(range(first, end)):
                consumer.feed(Entry("w0", offset, payload))
                offset += 1
            consumer.commit()
            return gc.collect()
        finally:
            gc.enable()

    found_after(0, 10)  # one-time objects
    few, many = found_after(10, 20), found_after(20, 60)
    telemetry.close()
    store.close()
    assert many <= few + 20


def test_imported_objects_are_frozen() -> None:
    code = (
        "import gc; from streamgauge.analytics.consumer import tune_gc; tune_gc(); "
        "print(gc.get_freeze_count() > 0, gc.isenabled(), gc.get_threshold()[0])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["True", "True", "250000"]

"""Memory is bounded under any load.

While its log accepts nothing, the tap's memory is bounded by its queue, and drops are reported. The memory of analytics does
not grow with a backlog of millions of events.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from tests.analytics.log_entries import entries
from tests.chaos.rig import run
from tests.chaos.test_cap import audited_losses, bulky
from tests.deadline import until
from tests.small_disk import fill, small_disk
from tests.tables import tables

MIB = 2**20
QUEUE_BYTES = 64 * MIB
"""`TapOptions.queue_bytes`."""
OVERHEAD = 2.0
"""Memory per queued byte: the body, its record, and the allocator's overhead."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_is_bounded_by_the_queue_on_a_full_disk(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "96m") as disk,
        run(tmp_path, data=disk / "data", faults=0.0, rate_per_s=4) as chaos,
    ):
        chaos.wait_for_requests(5)
        pid = chaos.pid("tap")
        assert pid is not None
        bulky(chaos, 60, seed=0)
        before_bytes = resident_bytes(pid)
        filler = disk / "filler"
        fill(filler)
        bulky(chaos, 1500, seed=1)  # 90 MiB of request bodies
        grown_bytes = resident_bytes(pid) - before_bytes
        counters = chaos.tap_ledger()
        filler.unlink()
        until(lambda: not chaos.tap_ledger()["log_failing_now"] or None, "the log to accept records")
        assert counters["lost_records"] > 0, json.dumps(counters)
        assert counters["queue_bytes_now"] <= QUEUE_BYTES * 1.25
        assert grown_bytes <= QUEUE_BYTES * 1.25 * OVERHEAD, f"grown by {grown_bytes / MIB:.1f} MiB"
        chaos.wait_for_requests(5)
        audited_losses(chaos, {"log_error", "queue_full"})


BACKLOG_STREAMS, STREAM_EVENTS = 6_000, 503
"""Three million events."""
DUCKDB_BYTES = 512 * MIB
ANALYZE = f"""
import sys
from pathlib import Path
from dataclasses import replace
from streamgauge.analytics.main import run
from streamgauge.settings.process_options import analyze_options
from streamgauge.settings.model import Settings
options = analyze_options(Settings(data=sys.argv[1], retain_events="forever", retain_streams="forever", metrics=""))
sys.exit(run(replace(options, memory_limit_bytes={DUCKDB_BYTES})))
"""


@contextmanager
def analytics(data: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", ANALYZE, str(data)])
    try:

        def answering() -> bool:
            assert process.poll() is None
            found = read_ready_file(data / "run" / "analyze.json")
            return found is not None and found["pid"] == process.pid

        until(answering, "analytics", 150)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def peak_bytes(pid: int) -> int:
    line = next(
        one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_backlog_of_millions_of_events_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """The whole backlog and one sixth of it have about the same peak memory."""
    peaks = []
    for part in (6, 1):
        data, streams = tmp_path / str(part), BACKLOG_STREAMS // part
        with EmbeddedWriter(data / "log", "w0", cap_bytes=2**31) as writer:
            for payload in entries(range(streams), chunks=STREAM_EVENTS - 3, width=100):
                writer.append([payload])
        with analytics(data) as pid:

            def all_stored(data: Path = data, streams: int = streams) -> bool:
                try:
                    return bool(tables(data).query("SELECT count(*) FROM streams").item() == streams)
                except QueryError:
                    return False

            until(all_stored, "the backlog to be read", 600)
            assert tables(data).query("SELECT count(*) FROM events").item() == streams * STREAM_EVENTS
            peaks.append(peak_bytes(pid))
    print("peaks in MiB:", [peak // MIB for peak in peaks])
    assert peaks[1] < peaks[0] + DUCKDB_BYTES  # its cache fills up to its limit
    assert peaks[1] < 2**30 + DUCKDB_BYTES

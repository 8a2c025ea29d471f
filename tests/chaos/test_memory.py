"""What the tap holds while its log takes nothing is bounded by its queue, however much passes; what it gave up is told."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.chaos.rig import run
from tests.chaos.test_cap import audited_losses, bulky
from tests.chaos.test_local import fill
from tests.e2e.running import until

MIB = 2**20
QUEUE_BYTES = 8 * MIB
OVERHEAD = 2.0
"""Memory of a byte that waits: the body itself, the record around it, what the allocator keeps."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_flood_over_a_full_disk_takes_no_more_memory_than_the_queue(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        with run(
            tmp_path, "--tap-queue", str(QUEUE_BYTES), data=disk / "data", faults=0.0, rate_per_s=4
        ) as chaos:
            chaos.more(5)
            pid = chaos.pid("tap")
            assert pid is not None
            bulky(chaos, 60, seed=0)
            before_bytes = resident_bytes(pid)
            filler = disk / "filler"
            fill(filler)
            bulky(chaos, 600, seed=1)  # 36 MiB of request bodies
            grown_bytes = resident_bytes(pid) - before_bytes
            said = chaos.tap_ledger()
            filler.unlink()
            until(lambda: not chaos.tap_ledger()["log_failing_now"] or None, "the log to take records")
            assert said["lost_records"] > 0, json.dumps(said)
            assert said["queue_bytes_now"] <= QUEUE_BYTES * 1.25
            assert grown_bytes <= QUEUE_BYTES * 1.25 * OVERHEAD, f"grown by {grown_bytes / MIB:.1f} MiB"
            chaos.more(5)
            audited_losses(chaos, {"log_error", "queue_full"})
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)

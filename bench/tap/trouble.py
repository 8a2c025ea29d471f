"""Latency of the tap while a component behind it fails.

- *log read* is the base: a reader consumes the log's entries.
- *log read, again* is an identical target. The difference between these two in each round defines "within noise".
- *no reader*: analytics is down and the log only grows.
- *Kafka away*: ship runs without a reachable broker.
- *disk full*: the log is on a full file system (a tmpfs, which only root can mount; otherwise omitted). The queue in memory is
  full after one second; the tap then drops all records.

Reader and ship run on the load core with idle priority, because only the tap is measured.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.tap.servers import OTHER_CORES, Target, free_port, read_json, started, tap, wait_for

BASE, TWIN = "log read", "log read, again"
_DISK = "8m"
_SMALL_QUEUE_BYTES = 2 * 2**20
_READER = """
import sys; from pathlib import Path; from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
reader = EmbeddedReader(Path(sys.argv[1]), "bench")
while True:
    reader.partitions()
    for entry in reader.poll(1.0):
        reader.release(entry.partition, entry.offset + 1)
"""


@contextlib.contextmanager
def failures(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """Two taps with a reader, and one for each failure."""
    with contextlib.ExitStack() as stack:
        found = []
        for n, name in enumerate((BASE, TWIN)):
            found.append(stack.enter_context(tap(name, data := folder / f"read{n}", upstream)))
            reader = [sys.executable, "-c", _READER, str(data / "log")]
            stack.enter_context(started(reader, OTHER_CORES, idle=True))
        found.append(stack.enter_context(tap("no reader", folder / "unread", upstream)))
        found.append(stack.enter_context(tap("Kafka away", data := folder / "kafka", upstream)))
        ship = [sys.executable, "-m", "streamgauge", "ship", "--data", str(data)]
        ship += ["--kafka", f"127.0.0.1:{free_port()}"]
        stack.enter_context(started(ship, OTHER_CORES, stdout=subprocess.DEVNULL, idle=True))
        wait_for(functools.partial(read_json, data / "run" / "ship.json"))
        disk = folder / "disk"
        if stack.enter_context(small_disk(disk)):
            found.append(
                stack.enter_context(tap("disk full", disk / "data", upstream, queue_bytes=_SMALL_QUEUE_BYTES))
            )
            fill(disk)
        yield found


@contextlib.contextmanager
def small_disk(mount_point: Path) -> Iterator[bool]:
    """A file system of 8 MiB. Yields False if it cannot be mounted."""
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(mount_point)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(mount_point)], check=False)


def fill(disk: Path) -> None:
    """Fill the file system completely."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))

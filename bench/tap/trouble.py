"""The tap while what stands behind it is in trouble: what the clients see must not change.

*log read* is what they are compared with: a reader takes the log's entries away and does nothing with them. *log read,
again* is a second one just like it: by how much these two differ, round by round, is what "within noise" means here. *nobody
reads*: analytics is dead, the log only grows. *Kafka away*: ship runs and finds no broker. *disk full*: the log is on a small
file system that is full to the last byte (a tmpfs; only root can mount one, else it is left out), and the memory that may
wait for it is full after the first second, so that from then on all is shed.

Reader and ship run on the load's core and only when it has nothing else to do: it is the tap that is measured.
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
_SOON_FULL_BYTES = 2 * 2**20
_READER = """
import sys; from pathlib import Path; from ingest.record_log.embedded_reader import EmbeddedReader
reader = EmbeddedReader(Path(sys.argv[1]), "bench")
while True:
    reader.partitions()
    for entry in reader.poll(1.0):
        reader.release(entry.partition, entry.offset + 1)
"""


@contextlib.contextmanager
def troubled(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """Two taps whose logs are read, and one in each trouble."""
    with contextlib.ExitStack() as stack:
        found = []
        for n, name in enumerate((BASE, TWIN)):
            found.append(stack.enter_context(tap(name, data := folder / f"read{n}", upstream)))
            reader = [sys.executable, "-c", _READER, str(data / "log")]
            stack.enter_context(started(reader, OTHER_CORES, idle=True))
        found.append(stack.enter_context(tap("nobody reads", folder / "unread", upstream)))
        found.append(stack.enter_context(tap("Kafka away", data := folder / "kafka", upstream)))
        ship = [sys.executable, "-m", "streamgauge", "ship", "--data", str(data)]
        ship += ["--kafka", f"127.0.0.1:{free_port()}"]
        stack.enter_context(started(ship, OTHER_CORES, stdout=subprocess.DEVNULL, idle=True))
        wait_for(functools.partial(read_json, data / "run" / "ship.json"))
        disk = folder / "disk"
        if stack.enter_context(small_disk(disk)):
            found.append(
                stack.enter_context(tap("disk full", disk / "data", upstream, queue_bytes=_SOON_FULL_BYTES))
            )
            fill(disk)
        yield found


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    """A file system of 8 MiB; False where it cannot be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def fill(disk: Path) -> None:
    """Leave not one byte free."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))

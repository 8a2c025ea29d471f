"""The tap while what stands behind it is in trouble: what the clients see must not change.

*log read* is what they are compared with: a reader takes the log's entries away and does nothing with them, so that
no other process's work is in the figures. *nobody reads*: analytics is dead, the log only grows. *Kafka away*: ship runs and
finds no broker. *disk full*: the log is on a small file system that is full to the last byte (a tmpfs; only root can mount one,
else it is left out).
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.tap.servers import OTHER_CORES, Target, free_port, nginx, read_json, started, tap, wait_for

_DISK = "8m"
_READER = """
import sys; from pathlib import Path; from ingest.log.reader import EmbeddedReader
reader = EmbeddedReader(Path(sys.argv[1]), "bench")
while True:
    reader.partitions()
    for entry in reader.poll(1.0):
        reader.release(entry.partition, entry.offset + 1)
"""


@contextlib.contextmanager
def troubled(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """nginx for comparison, the tap without a log, and one tap in each trouble."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(nginx(folder, upstream))]
        found.append(stack.enter_context(tap("tap, log off", folder / "off", upstream, log=False)))
        found.append(stack.enter_context(tap("tap, log read", folder / "read", upstream)))
        reader = [sys.executable, "-c", _READER, str(folder / "read" / "log")]
        stack.enter_context(started(reader, OTHER_CORES))
        found.append(stack.enter_context(tap("tap, nobody reads", folder / "unread", upstream)))
        found.append(stack.enter_context(tap("tap, Kafka away", folder / "kafka", upstream)))
        ship = [sys.executable, "-m", "streamgauge", "ship", "--data", str(folder / "kafka")]
        ship += ["--kafka", f"127.0.0.1:{free_port()}"]
        stack.enter_context(started(ship, OTHER_CORES, stdout=subprocess.DEVNULL))
        wait_for(functools.partial(read_json, folder / "kafka" / "run" / "ship.json"))
        disk = folder / "disk"
        if stack.enter_context(small_disk(disk)):
            found.append(stack.enter_context(tap("tap, disk full", disk / "data", upstream)))
            fill(disk)
        yield [target for target in found if target is not None]


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

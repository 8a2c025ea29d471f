"""One run of the load client against one target, and what it cost."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from bench.tap.servers import OTHER_CORES, Target, pinned


@dataclasses.dataclass(frozen=True)
class Load:
    """What the load client does: `kind` paced, flood or short; see load.c."""

    kind: str
    connections: int
    interval_us: int = 0


def cpu_s(pids: list[int]) -> float:
    """CPU seconds used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pids: list[int]) -> int:
    """Memory that these processes have in RAM."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize()


def measure(folder: Path, target: Target, load: Load, seconds: float) -> dict[str, float]:
    """One run. Of its time (plus the ramp) the load client does not count the first fifth."""
    before_cpu, before_bytes, before = cpu_s(target.pids), resident_bytes(target.pids), target.counters()
    argv = [
        str(folder / "load"),
        load.kind,
        str(target.port),
        str(load.connections),
        str(seconds),
        str(load.interval_us),
    ]
    with tempfile.NamedTemporaryFile() as request:
        if target.request is not None:
            request.write(target.request)
            request.flush()
            argv.append(request.name)
        client = subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=pinned(OTHER_CORES))
        peak_bytes = before_bytes
        while client.poll() is None:
            peak_bytes = max(peak_bytes, resident_bytes(target.pids))
            time.sleep(0.1)
        assert client.stdout is not None
        result: dict[str, float] = json.loads(client.stdout.read())
    units = result["requests"] if load.kind == "short" else result["chunks"]
    result["per_s"] = units / result["seconds"]
    # CPU is of all that passed, the ramp and the uncounted first fifth too.
    passed = result["all_requests"] if load.kind == "short" else result["all_chunks"]
    result["cpu_s_per_million"] = (cpu_s(target.pids) - before_cpu) / max(1.0, passed) * 1e6
    result["bytes_per_stream"] = max(0, peak_bytes - before_bytes) / load.connections
    after = target.counters()
    result["shed_bytes"] = after.get("lost_bytes", 0) - before.get("lost_bytes", 0)
    result["log_append_errors"] = after.get("log_append_errors", 0) - before.get("log_append_errors", 0)
    result["forwarded_bytes"] = result["per_s"] * result["seconds"] * 220
    return result

"""One run of the load client against one target: throughput, latency, CPU, memory and byte accounting.

CPU and memory refer to the measured interval, during which all streams are open. Bytes refer to the whole run, from before
the first stream until after the last: the bytes that the client read must equal those that the tap recorded, dropped, or
excluded by rule.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import IO

from bench.tap.processes import busy_s, check_pinned, cpu_s, memory_bytes
from bench.tap.servers import OTHER_CORES, PROXY_CORE, Target, pinned, upstream_port

_OTHER_DESCRIPTORS = 100
"""Upper estimate of a proxy's descriptors in addition to its streams."""
_QUIET_SHARE = 0.1
_QUIET_WITHIN_S = 10.0


@dataclasses.dataclass(frozen=True)
class Load:
    """The load. `kind`: paced, flood, short, burst or alone; see load.c."""

    kind: str
    connections: int
    interval_us: int = 0
    chunks: int = 1
    """Chunks in one write of the upstream (paced)."""

    @property
    def interval(self) -> str:
        return f"{self.interval_us}/{self.chunks}" if self.chunks > 1 else str(self.interval_us)


class Failed(Exception):
    """The run produced no results."""


def room_for_streams() -> int:
    """The number of streams that the hard limit of descriptors allows: each needs two."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _OTHER_DESCRIPTORS) // 2


def wait_until_quiet(targets: list[Target]) -> None:
    """Wait until the targets have finished the work of the last run."""
    pids = [pid for target in targets for pid in target.pids]
    deadline_s = time.monotonic() + _QUIET_WITHIN_S
    before_s = cpu_s(pids)
    while time.monotonic() < deadline_s:
        time.sleep(0.25)
        now_s = cpu_s(pids)
        if now_s - before_s < 0.25 * _QUIET_SHARE:
            return
        before_s = now_s


def measure(folder: Path, target: Target, load: Load, seconds: float) -> dict[str, float]:
    """Do one run. Raises Failed if the load client ends early, RuntimeError if a process may run on a core of the other
    side."""
    with tempfile.NamedTemporaryFile() as request:
        argv = [
            str(folder / "load"),
            load.kind,
            str(target.port),
            str(load.connections),
            str(seconds),
            load.interval,
        ]
        if target.request is not None:
            request.write(target.request)
            request.flush()
            argv.append(request.name)
        before, bytes_before = target.counters(), memory_bytes(target.pids)
        client = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=pinned(OTHER_CORES), text=True
        )
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            _expect("counting", client.stdout, target)
            cpu_before_s, busy_before_s = cpu_s(target.pids), busy_s(OTHER_CORES)
            _expect("counted", client.stdout, target)
            used_s, busy_after_s = cpu_s(target.pids) - cpu_before_s, busy_s(OTHER_CORES)
            grown_bytes = memory_bytes(target.pids) - bytes_before
            check_pinned(target.pids, PROXY_CORE)
            check_pinned([client.pid], OTHER_CORES)
            result: dict[str, float] = json.loads(client.stdout.readline())
            client.stdin.close()
            end_streams(folder)
            run_result = json.loads(client.stdout.readline() or "{}")
        finally:
            client.stdin.close()
            client.wait()
    units = result["chunks"] if load.kind in ("paced", "flood") else result["requests"]
    result["per_s"] = units / result["seconds"]
    result["cpu_s_per_million"] = used_s / max(1.0, units) * 1e6
    result["cpu_share"] = used_s / result["seconds"]
    result["load_share"] = (
        max(busy_after_s[core] - busy_before_s[core] for core in OTHER_CORES) / result["seconds"]
    )
    result["bytes_per_stream"] = grown_bytes / load.connections
    if run_result:
        result["errors"] += run_result["unended"]
    return result | account(target, before, run_result.get("payload_bytes"))


def end_streams(folder: Path) -> None:
    """Make the mock upstream end all its event streams. Raises Failed if it does not respond."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{upstream_port(folder)}/end", timeout=30):
            pass
    except OSError as e:
        raise Failed(f"the mock upstream does not end its streams: {e}") from e


def account(target: Target, before: dict[str, int], read_bytes: int | None) -> dict[str, float]:
    """Account for the run's bytes, after the target has finished its streams. `read_bytes`: bytes that the client read.

    `unaccounted_bytes` are missing in the tap's counters (negative: counted twice).
    """
    deadline_s = time.monotonic() + _QUIET_WITHIN_S
    while True:
        after = target.counters()
        found = {name: after[name] - before[name] for name in after}
        accounted = {
            "mirrored_bytes": found.get("captured_bytes", 0),
            "shed_bytes": found.get("lost_bytes", 0),
            "left_out_bytes": found.get("uncaptured_bytes", 0),
        }
        forwarded = read_bytes if read_bytes is not None else found.get("body_bytes", 0)
        unaccounted = forwarded - sum(accounted.values()) if "queue_bytes_now" in after else 0
        if not unaccounted or time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    return {
        **accounted,
        "forwarded_bytes": forwarded,
        "unaccounted_bytes": unaccounted,
        "log_append_errors": found.get("log_append_errors", 0),
    }


def _expect(word: str, output: IO[str], target: Target) -> None:
    line = output.readline()
    if line.strip() != word:
        raise Failed(f"{target.name}: the load client printed {line!r} instead of {word!r}")

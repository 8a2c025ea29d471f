"""One run of the load client against one target, and what it cost.

CPU, memory and losses are of the seconds in which the client counts: all streams are open then, and none is opened or ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from bench.tap.servers import OTHER_CORES, Target, pinned

_OWN_DESCRIPTORS = 100
"""What a proxy holds beside its streams, rather more than less."""
_QUIET_SHARE = 0.1
_QUIET_WITHIN_S = 10.0


@dataclasses.dataclass(frozen=True)
class Load:
    """What the load client does: `kind` paced, flood or short; see load.c."""

    kind: str
    connections: int
    interval_us: int = 0
    chunks: int = 1
    """In one write of the upstream's (paced)."""

    @property
    def interval(self) -> str:
        return f"{self.interval_us}/{self.chunks}" if self.chunks > 1 else str(self.interval_us)


def room_for_streams() -> int:
    """How many streams a proxy can have here: each takes two descriptors, and the hard limit may be out of our reach."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _OWN_DESCRIPTORS) // 2


def cpu_s(pids: list[int]) -> float:
    """CPU seconds used so far, by every thread."""
    used_ns = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                used_ns += int((task / "schedstat").read_text().split()[0])
    return used_ns / 1e9


def resident_bytes(pids: list[int]) -> int:
    """Memory that these processes have in RAM."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize()


def wait_until_quiet(targets: list[Target]) -> None:
    """Let the last run's streams end: none of the targets is to work for them in the next one's time."""
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
    """One run. Raises RuntimeError when the load client ends early."""
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
        counters, bytes_before = target.counters(), resident_bytes(target.pids)
        client = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=pinned(OTHER_CORES), text=True
        )
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            _expect("counting", client.stdout.readline())
            cpu_before_s = cpu_s(target.pids)
            _expect("counted", client.stdout.readline())
            used_s = cpu_s(target.pids) - cpu_before_s
            grown_bytes = resident_bytes(target.pids) - bytes_before
            result: dict[str, float] = json.loads(client.stdout.readline())
            after = target.counters()
        finally:
            client.stdin.close()
            client.wait()
    units = result["requests"] if load.kind == "short" else result["chunks"]
    result["per_s"] = units / result["seconds"]
    result["cpu_s_per_million"] = used_s / max(1.0, units) * 1e6
    result["cpu_share"] = used_s / result["seconds"]
    result["bytes_per_stream"] = grown_bytes / load.connections
    for name, key in (("shed_bytes", "lost_bytes"), ("log_append_errors", "log_append_errors")):
        result[name] = after.get(key, 0) - counters.get(key, 0)
    result["forwarded_bytes"] = units * 220
    return result


def _expect(word: str, line: str) -> None:
    if line.strip() != word:
        raise RuntimeError(f"the load client said {line!r} instead of {word!r}")

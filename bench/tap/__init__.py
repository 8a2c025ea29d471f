"""The tap beside nginx: added latency, saturation, short requests, CPU per chunk; interleaved in one run, medians.

`python -m bench tap [--rounds 3] [--seconds 3] [--streams 500] [--only paced,flood,…] [--json FILE]`

Direct, nginx (`proxy_buffering off`, one worker), the tap with its embedded log on, and the tap with it off are measured one
after the other in each round, so that a machine whose speed drifts drifts for all of them. The proxy runs on the first
core, upstream and load client (C, compiled here) on the others. nginx is Debian's package; without it the column is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pickle
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ingest.tap_options import TapOptions
from ingest.upstreams import parse_upstreams

HERE = Path(__file__).parent
START_TIMEOUT_S = 20.0
CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE, OTHER_CORES = {CORES[0]}, set(CORES[1:]) or {CORES[0]}
TAP_PROGRAM = (
    "import pickle, sys; from ingest.tap import run; sys.exit(run(pickle.loads(bytes.fromhex(sys.argv[1]))))"
)
NGINX_CONF = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1; worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d;
  scgi_temp_path {folder}/e;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=16384;
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 300s;
    }}
  }}
}}
"""


@dataclasses.dataclass
class Target:
    """Something to send load at. `pids` are the processes whose CPU and memory count."""

    name: str
    port: int
    pids: list[int]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One kind of load, and how its result is shown."""

    name: str
    what: str
    load: tuple[str, int, int]
    shown: tuple[str, ...]


def compile_c(folder: Path) -> None:
    """Build the mock upstream and the load client."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("bench tap: a C compiler is needed (Debian: apt-get install gcc libc6-dev)")
    for name in ("upstream", "load"):
        subprocess.run([compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")], check=True)


def nginx_program() -> str | None:
    """nginx, installed when this is Debian and we may."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "nginx-light"]
        # The package starts a server of its own unless told that it may not.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment)
        found = shutil.which("nginx", path="/usr/sbin")
    return found


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_for(met: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if value := met():
                return value
        time.sleep(0.05)
    raise SystemExit("bench tap: a server did not start")


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def listening(port: int) -> bool:
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def pinned(cores: set[int]) -> Callable[[], None]:
    """For a child before it runs: keep it on these cores."""

    def pin() -> None:
        os.sched_setaffinity(0, cores)

    return pin


@contextlib.contextmanager
def started(argv: list[str], cores: set[int]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, preexec_fn=pinned(cores), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(p) for p in text.split()]


@contextlib.contextmanager
def targets(folder: Path) -> Iterator[list[Target]]:
    """Everything to be compared, running."""
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(started([str(folder / "upstream"), str(folder / "port")], OTHER_CORES))
        port = wait_for(lambda: int((folder / "port").read_text()))
        found = [Target("direct", port, [])]
        program = nginx_program()
        if program is not None:
            nginx_port = free_port()
            conf = folder / "nginx.conf"
            conf.write_text(NGINX_CONF.format(folder=folder, upstream=port, port=nginx_port))
            nginx = stack.enter_context(started([program, "-c", str(conf), "-p", str(folder)], PROXY_CORE))
            wait_for(lambda: listening(nginx_port))
            found.append(Target("nginx", nginx_port, wait_for(lambda: children(nginx.pid))))
        for name, log in (("tap", True), ("tap, log off", False)):
            data = folder / name.replace(", ", "-").replace(" ", "-")
            options = TapOptions(
                upstreams=parse_upstreams([f"bench=http://127.0.0.1:{port}"]),
                data=data,
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                log=log,
                drain_timeout_s=0.1,
            )
            tap = stack.enter_context(
                started([sys.executable, "-c", TAP_PROGRAM, pickle.dumps(options).hex()], PROXY_CORE)
            )
            said = wait_for(functools.partial(read_json, data / "run" / "tap.json"))
            found.append(Target(name, int(said["listen"].rpartition(":")[2]), [tap.pid]))
        assert upstream.poll() is None
        yield found


def cpu_s(pids: list[int]) -> float:
    """CPU seconds used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pids: list[int]) -> int:
    return (
        sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * resource.getpagesize()
    )


def measure(folder: Path, target: Target, scenario: Scenario, seconds: float) -> dict[str, float]:
    """One run of one scenario against one target."""
    kind, connections, interval_us = scenario.load
    before_cpu, before_bytes = cpu_s(target.pids), resident_bytes(target.pids)
    argv: list[str] = [
        str(folder / "load"),
        kind,
        str(target.port),
        str(connections),
        str(seconds),
        str(interval_us),
    ]
    load = subprocess.Popen(
        argv, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, OTHER_CORES)
    )
    peak_bytes = before_bytes
    while load.poll() is None:
        peak_bytes = max(peak_bytes, resident_bytes(target.pids))
        time.sleep(0.1)
    assert load.stdout is not None
    result: dict[str, float] = json.loads(load.stdout.read())
    units = result["requests"] if kind == "short" else result["chunks"]
    result["per_s"] = units / result["seconds"]
    # The load client does not count its first fifth, the CPU does: scale to what passed in all.
    result["cpu_s_per_million"] = (cpu_s(target.pids) - before_cpu) / max(1.0, units * 1.2) * 1e6
    result["bytes_per_stream"] = max(0, peak_bytes - before_bytes) / connections
    return result


SHOW: dict[str, tuple[str, Callable[[float], str]]] = {
    "p50_ns": ("p50 µs", lambda v: f"{v / 1e3:,.0f}"),
    "p99_ns": ("p99 µs", lambda v: f"{v / 1e3:,.0f}"),
    "per_s": ("per s", lambda v: f"{v:,.0f}"),
    "cpu_s_per_million": ("CPU s per million", lambda v: f"{v:.2f}"),
    "bytes_per_stream": ("KiB per stream", lambda v: f"{v / 1024:.1f}"),
    "errors": ("errors", lambda v: f"{v:.0f}"),
}


def scenarios(streams: int) -> list[Scenario]:
    latency = ("p50_ns", "p99_ns")
    paced, many = ("paced", streams, 50_000), ("paced", 10_000, 1_000_000)
    return [
        Scenario("paced", f"{streams} streams × 20 chunks/s", paced, (*latency, "cpu_s_per_million")),
        Scenario("flood", "64 streams flat out, chunks", ("flood", 64, 0), ("per_s", "cpu_s_per_million")),
        Scenario(
            "short",
            "short requests, 32 connections",
            ("short", 32, 0),
            ("per_s", "p50_ns", "cpu_s_per_million"),
        ),
        Scenario("ttfb", "time to first byte, 50 connections", ("short", 50, 20_000), latency),
        Scenario("many", "10,000 streams × 1 chunk/s", many, (*latency, "bytes_per_stream", "errors")),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench tap", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--only", default="paced,flood,short,ttfb", help="of paced,flood,short,ttfb,many")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = [s for s in scenarios(given.streams) if s.name in given.only.split(",")]
    results: dict[str, dict[str, dict[str, float]]] = {}
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        compile_c(folder)
        with targets(folder) as found:
            for scenario in chosen:
                rounds: dict[str, list[dict[str, float]]] = {t.name: [] for t in found}
                for _ in range(given.rounds):
                    for target in found:
                        rounds[target.name].append(measure(folder, target, scenario, given.seconds))
                results[scenario.name] = {
                    target: {key: statistics.median(r[key] for r in runs) for key in runs[0]}
                    for target, runs in rounds.items()
                }
                show(scenario, results[scenario.name])
    load = os.getloadavg()
    print(
        f"\n{given.rounds} rounds of {given.seconds} s; {len(CORES)} cores; load average at the end {load[0]:.1f}"
    )
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def show(scenario: Scenario, by_target: dict[str, dict[str, float]]) -> None:
    """One table, with the ratio to nginx."""
    print(f"\n{scenario.what}")
    base = by_target.get("nginx")
    header = f"{'':<14}" + "".join(f"{SHOW[k][0]:>20}{'× nginx':>9}" for k in scenario.shown)
    print(header)
    for target, values in by_target.items():
        row = f"{target:<14}"
        for key in scenario.shown:
            ratio = f"{values[key] / base[key]:.2f}" if base and base[key] else ""
            row += f"{SHOW[key][1](values[key]):>20}{ratio:>9}"
        print(row, flush=True)

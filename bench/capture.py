"""Packet capture: chunks per second without drops, the latency it adds to what it watches, and packets per second of a file.

The capture has one core, the load client and its upstream the other. *With* and *without* a capture on the upstream's port alternate;
so they do with two nginx between client and upstream, on the core of the capture, which watches the connection between them.
The rate of packets is that of a file of one stream after the other, per second of CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.tap.measure import Load, measure
from bench.tap.processes import cpu_s
from bench.tap.servers import (
    PROXY_CORE,
    Target,
    compile_c,
    mock_upstream,
    nginx,
    read_json,
    started,
    wait_for,
)
from tests.ingest.capture.packets import Talk, pcap

STREAMS, CHUNKS_PER_S = 200, 100
QUIET = Load("paced", 50, 50_000)
SETTLE_S = 2.0


@contextmanager
def capturing(data: Path, port: int) -> Iterator[tuple[int, Path]]:
    """A capture on a port of the loopback interface: its process id, and its ready file."""
    command = [sys.executable, "-P", "-m", "streamgauge", "capture", "--interface", "lo", "--port", str(port)]
    with started([*command, "--data", str(data)], PROXY_CORE) as process:
        ready = data / "run" / "capture.json"
        wait_for(lambda: read_json(ready))
        yield process.pid, ready


def rate(folder: Path, target: Target, seconds: float) -> None:
    load = Load("paced", STREAMS, 1_000_000 // CHUNKS_PER_S)
    with capturing(folder / "rate", target.port) as (pid, ready):
        before_s = cpu_s([pid])
        found = measure(folder, target, load, seconds)
        used_s = cpu_s([pid]) - before_s
        time.sleep(SETTLE_S)  # its ready file is written each second
        counted: dict[str, Any] = read_json(ready)
    print(
        f"{found['per_s']:,.0f} chunks/s: {used_s / found['seconds']:.0%} of a core; {counted['capture_packets']:,} packets, "
        f"{counted['capture_dropped']} dropped, {counted['capture_gaps']} gaps"
    )


def latency(folder: Path, target: Target, port: int, rounds: int, seconds: float) -> None:
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(rounds):
        for captured in (False, True) if number % 2 else (True, False):
            if captured:
                with capturing(folder / f"{target.name}-{number}", port):
                    found[True].append(measure(folder, target, QUIET, seconds))
            else:
                found[False].append(measure(folder, target, QUIET, seconds))
    for name in ("p50_ns", "p99_ns"):
        without, with_ = ([run[name] for run in found[captured]] for captured in (False, True))
        ratio = statistics.median(b / a for a, b in zip(without, with_, strict=True))
        medians = [statistics.median(values) / 1e3 for values in (without, with_)]
        print(
            f"{target.name}, {name[:3]} of a chunk: {medians[0]:.0f} µs without, {medians[1]:.0f} µs with, ratio {ratio:.2f}"
        )


def file(folder: Path, streams: int) -> None:
    event = (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": " word"}}]}).encode() + b"\n\n"
    )
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    packets = []
    for number in range(streams):
        talk = Talk(client_port=10_000 + number % 50_000).open()
        talk.client(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        talk.server(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(100):
            talk.server(chunk)
        packets += talk.server(b"0\r\n\r\n").packets
    path = folder / "streams.pcap"
    path.write_bytes(pcap(packets))
    command = [
        sys.executable,
        "-P",
        "-m",
        "streamgauge",
        "capture",
        "--pcap",
        str(path),
        "--data",
        str(folder / "file"),
    ]
    with started(command, PROXY_CORE) as process:
        used_s = 0.0
        while process.poll() is None:
            used_s = cpu_s([process.pid]) or used_s
            time.sleep(0.01)
    print(
        f"file of {len(packets):,} packets: {len(packets) / used_s:,.0f} packets per second of CPU, with the start of the process"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench capture", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=2000, help="streams in the file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_c(folder)
        with mock_upstream(folder) as port:
            target = Target("direct", port, [])
            rate(folder, target, options.seconds)
            latency(folder, target, port, options.rounds, options.seconds / 2)
            (folder / "inner").mkdir()
            (folder / "outer").mkdir()
            with nginx(folder / "inner", port) as inner:
                if inner is not None:
                    with nginx(folder / "outer", inner.port) as outer:
                        if outer is not None:
                            between = replace(outer, name="from nginx to nginx")
                            latency(folder, between, inner.port, options.rounds, options.seconds / 2)
        file(folder, options.streams)
    return 0

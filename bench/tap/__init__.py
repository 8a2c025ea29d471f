"""Compare the tap with nginx: added latency, saturation, short requests, memory, CPU per chunk.

`python -m bench tap [PART …] [--rounds N] [--seconds S]` runs the given parts (default: all, about 30 minutes, at most five
each). After each part it prints the table, stores the results in `bench/tap/results.json` and regenerates the tap's section of
docs/explanation/performance.md from all stored results.

Targets: direct, nginx (one worker, `proxy_buffering off`), the tap with its log on and off, in some parts also with the relay in
Python; `peers` adds other proxies and gateways (`bench.tap.peers`). Each round measures all of them, in rotating order and every
second round backwards, so drift of the machine's speed affects all alike. A ratio is the median of the ratios within the rounds.
The proxy with all its threads and child processes is pinned to the first core (checked in each run), upstream and load client
to the others. nginx is Debian's package. Without it or without LiteLLM's environment, that row is omitted. A proxy needs two
descriptors per stream: if the hard limit is too low for a part, it runs as many streams as possible and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.tap import page, peers, slow_clients
from bench.tap.measure import Failed, Load, measure, room_for_streams, wait_until_quiet
from bench.tap.profile import profile
from bench.tap.servers import Target, compile_c, litellm, mock_upstream, nginx, tap, tap_of
from bench.tap.trouble import BASE, TWIN, failures

Targets = Callable[[Path, int], contextlib.AbstractContextManager[list[Target]]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One kind of load on some targets. `title` may contain `{streams}`; `shown` are keys of `page.SHOW`."""

    name: str
    title: str
    load: Load
    shown: tuple[str, ...]
    targets: Targets
    seconds: float
    rounds: int = 5
    base: str = "nginx"
    """The target that ratios refer to."""
    twin: str | None = None
    """A second target identical to the base, to measure the noise."""
    restart: bool = False
    """Restart the targets for each round, because processes do not return memory."""
    beside: Callable[[Target], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    """What runs while a target is measured."""


@contextlib.contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """Direct, nginx, the tap with and without its log."""
    with contextlib.ExitStack() as stack:
        found = [Target("direct", upstream, []), stack.enter_context(nginx(folder, upstream))]
        found.append(stack.enter_context(tap("tap", folder / "tap", upstream)))
        found.append(stack.enter_context(tap("tap, log off", folder / "tap-off", upstream, log=False)))
        yield [target for target in found if target is not None]


@contextlib.contextmanager
def both_relays(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """The targets of `proxies` and the tap with the relay in Python."""
    with (
        proxies(folder, upstream) as found,
        tap("tap, Python relay", folder / "tap-python", upstream, relay="python") as last,
    ):
        yield [*found, last]


@contextlib.contextmanager
def with_litellm(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """The targets of `proxies` and the LiteLLM proxy, which also observes traffic."""
    with proxies(folder, upstream) as found, litellm(folder, upstream) as last:
        yield [*found, *([last] if last is not None else [])]


@contextlib.contextmanager
def with_proxies(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """The targets of `proxies` and other reverse proxies."""
    with proxies(folder, upstream) as found, peers.available(peers.PROXIES, folder, upstream) as others:
        yield [*found, *others]


@contextlib.contextmanager
def with_gateways(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """The targets of `with_litellm` and other gateways and intercepting proxies."""
    with with_litellm(folder, upstream) as found, peers.available(peers.GATEWAYS, folder, upstream) as others:
        yield [*found, *others]


def against(parent: Path) -> Targets:
    """nginx and the taps of this work tree and of `parent`, a work tree of another commit.

    The taps are started again for each round, in turns: of two identical taps, the one started first needed up to a fifth less CPU.
    """
    trees = {"parent": parent, "tap": Path.cwd()}

    @contextlib.contextmanager
    def both(folder: Path, upstream: int) -> Iterator[list[Target]]:
        names = list(trees) if int(folder.name) % 2 else list(trees)[::-1]
        with nginx(folder, upstream) as first, contextlib.ExitStack() as stack:
            found = {
                name: stack.enter_context(tap_of(trees[name], name, folder / name, upstream))
                for name in names
            }
            yield [*([first] if first is not None else []), *(found[name] for name in trees)]

    return both


LATENCY = ("p50_ns", "p99_ns")
CORES = ("cpu_share", "load_share")
SATURATION = ("per_s", "cpu_s_per_million", *CORES)
ACCOUNT = ("unaccounted_bytes",)
PARTS = [
    Part(
        "latency", "{streams} streams × 20 chunks/s", Load("paced", 500, 50_000), (*LATENCY, "cpu_s_per_million"),
        both_relays, 4,
    ),
    Part(
        "flood", "{streams} streams at full speed", Load("flood", 64), (*SATURATION, "shed_share", *ACCOUNT), proxies, 4,
    ),
    Part(
        "steady", "100,000 chunks/s: {streams} streams × 50 writes/s of 4 chunks", Load("paced", 500, 20_000, 4),
        (*LATENCY, "per_s", *CORES, "shed_bytes", *ACCOUNT), proxies, 4,
    ),
    Part(
        "single", "single chunks at saturation: {streams} streams × 200 chunks/s offered", Load("paced", 500, 5_000),
        (*SATURATION, "shed_bytes", *ACCOUNT), both_relays, 4,
    ),
    Part("short", "short requests, {streams} connections", Load("short", 32), ("p50_ns", *SATURATION), proxies, 3),
    Part(
        "ttfb", "time to first byte, 2,500 requests/s at random times, {streams} connections", Load("short", 50, 20_000),
        (*LATENCY, "cpu_s_per_million", "errors"), proxies, 4,
    ),
    Part(
        "burst", "time to first byte, {streams} requests at the same time, every 20 ms", Load("burst", 50, 20_000),
        (*LATENCY, "cpu_s_per_million", "errors"), proxies, 4,
    ),
    Part(
        "alone", "time to first byte, one stream at a time on an idle machine, about every 40 ms", Load("alone", 1, 30_000),
        (*LATENCY, "cpu_s_per_million", "errors"), proxies, 10,
    ),
    Part(
        "2000", "{streams} streams × 2 chunks/s", Load("paced", 2_000, 500_000),
        (*LATENCY, "bytes_per_stream", "errors"), proxies, 5, rounds=3, restart=True,
    ),
    Part(
        "10000", "{streams} streams × 1 chunk/s", Load("paced", 10_000, 1_000_000),
        (*LATENCY, "bytes_per_stream", "errors"), proxies, 7, rounds=3, restart=True,
    ),
    Part(
        "peers-chunks", "other proxies, {streams} streams × 20 chunks/s", Load("paced", 500, 50_000),
        (*LATENCY, "cpu_s_per_million", "bytes_per_stream", "errors"), with_proxies, 3, rounds=3, restart=True,
    ),
    Part(
        "peers-ttfb", "other proxies, time to first byte, 2,500 requests/s at random times", Load("short", 50, 20_000),
        (*LATENCY, "cpu_s_per_million", "errors"), with_proxies, 3, rounds=3,
    ),
    Part(
        "peers-gateways", "gateways, {streams} streams × 10 chunks/s", Load("paced", 25, 100_000),
        (*LATENCY, "cpu_s_per_million", "bytes_per_stream", "errors"), with_gateways, 4, rounds=3, restart=True,
    ),
    Part(
        "trouble", "{streams} streams × 20 chunks/s", Load("paced", 500, 50_000),
        (*LATENCY, "shed_bytes", "log_append_errors"), failures, 2, rounds=11, base=BASE, twin=TWIN,
    ),
    *(
        Part(
            name, f"{{streams}} streams × 20 chunks/s, with 100 slow clients{relay}", Load("paced", 20, 50_000),
            (*LATENCY, "cpu_share"), targets, 5, base=slow_clients.BASE, beside=slow_clients.clients,
        )
        for name, relay, targets in (
            ("slow", "", slow_clients.native), ("slow-python", ", relay in Python", slow_clients.python),
        )
    ),
]  # fmt: skip
PEERS = [part.name for part in PARTS if part.name.startswith("peers-")]


def run_part(part: Part, folder: Path, rounds: int, seconds: float) -> page.Result:
    """Measure every target in every round."""
    room = room_for_streams()
    load = dataclasses.replace(part.load, connections=min(part.load.connections, room))
    title = part.title.format(streams=f"{load.connections:,}")
    if load.connections < part.load.connections:
        title += f" (of {part.load.connections:,}: the hard limit of descriptors allows no more)"
    runs: dict[str, list[dict[str, float]]] = {}
    began_s = time.monotonic()
    with mock_upstream(folder) as upstream, contextlib.ExitStack() as stack:
        targets: list[Target] = []
        for n in range(rounds):
            if part.restart or not targets:
                stack.close()
                (round_folder := folder / str(n)).mkdir()
                targets = stack.enter_context(part.targets(round_folder, upstream))
            order = targets[n % len(targets) :] + targets[: n % len(targets)]
            for target in order if n % 2 == 0 else order[::-1]:
                wait_until_quiet(targets)
                with part.beside(target):
                    runs.setdefault(target.name, []).append(measure(folder, target, load, seconds))
        names = [target.name for target in targets]
    took_s = time.monotonic() - began_s
    return page.Result(
        title, part.shown, part.base, {name: runs[name] for name in names}, part.twin, round(took_s, 1)
    )


def main() -> int:
    """Run the requested parts."""
    names = [*(part.name for part in PARTS), "profile"]
    parser = argparse.ArgumentParser(prog="python -m bench tap", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"one or more of {', '.join(names)}; peers: all of peers-…; default: all",
    )
    parser.add_argument("--rounds", type=int, help="number of rounds, instead of the part's default")
    parser.add_argument("--seconds", type=float, help="duration of each run, instead of the part's default")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="only compare with nginx and the tap of this work tree; store no results",
    )
    args = parser.parse_args()
    args.parts = [n for part in args.parts for n in (PEERS if part == "peers" else [part])]
    if unknown := set(args.parts) - set(names):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}. Choose from {', '.join(names)}.")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parts = {part.name: part for part in PARTS}
    failed = 0
    for name in names:
        if args.parts and name not in args.parts:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            folder.chmod(0o755)
            compile_c(folder)
            try:
                if name == "profile":
                    text = profile(folder)
                    page.keep_profile(text)
                else:
                    part = parts[name]
                    if args.against is not None:
                        part = dataclasses.replace(
                            part, targets=against(args.against), base="parent", twin=None, restart=True
                        )
                    result = run_part(part, folder, args.rounds or part.rounds, args.seconds or part.seconds)
                    if args.against is None:
                        page.keep(name, result)
                    bases = [result.base] if args.against is None else [result.base, "nginx"]
                    tables = [page.table(dataclasses.replace(result, base=base)) for base in bases]
                    text = "\n".join([*tables, f"{name}: {result.took_s:.0f} s\n"])
            except Failed as e:
                failed += 1
                text = f"{name} failed, its earlier results are kept: {e}\n"
        page.write(names)
        print(text, flush=True)
    return 1 if failed else 0

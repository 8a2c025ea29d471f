"""The tap beside nginx: added latency, saturation, short requests, memory, CPU per chunk; interleaved, medians, ratios.

`python -m bench tap [PART …] [--rounds 3] [--seconds 3]` runs these parts (all by default), shows each, keeps the figures in
`bench/tap/results.json` and writes the tap's section of docs/performance.md from it. A part is kept until it is run again.

Direct, nginx (`proxy_buffering off`, one worker), the tap with its log on, and the tap with it off are measured one after the
other in each round, so that a machine whose speed drifts drifts for all of them. The proxy has the first core, upstream and
load client the others. nginx is Debian's package; without it, or without LiteLLM's environment, that row is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import resource
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.tap import page
from bench.tap.measure import Load, measure
from bench.tap.servers import Target, compile_c, litellm, mock_upstream, nginx, tap
from bench.tap.trouble import troubled

Targets = Callable[[Path, int], contextlib.AbstractContextManager[list[Target]]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One kind of load on some targets. `shown` are keys of `page.SHOW`."""

    name: str
    what: str
    load: Load
    shown: tuple[str, ...]
    targets: Targets
    seconds: float = 3.0


@contextlib.contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """Direct, nginx, the tap with and without its log."""
    with contextlib.ExitStack() as stack:
        found = [Target("direct", upstream, []), stack.enter_context(nginx(folder, upstream))]
        found.append(stack.enter_context(tap("tap", folder / "tap", upstream)))
        found.append(stack.enter_context(tap("tap, log off", folder / "tap-off", upstream, log=False)))
        yield [target for target in found if target is not None]


@contextlib.contextmanager
def with_litellm(folder: Path, upstream: int) -> Iterator[list[Target]]:
    """The same, and the LiteLLM proxy, which observes too."""
    with proxies(folder, upstream) as found, litellm(folder, upstream) as last:
        yield [*found, *([last] if last is not None else [])]


LATENCY = ("p50_ns", "p99_ns")
PARTS = [
    Part("latency", "500 streams × 20 chunks/s", Load("paced", 500, 50_000), (*LATENCY, "cpu_s_per_million"), proxies),
    Part("flood", "64 streams flat out", Load("flood", 64), ("per_s", "cpu_s_per_million", "shed_share"), proxies),
    Part(
        "steady", "100,000 chunks/s: 500 streams × 200 chunks/s", Load("paced", 500, 5_000),
        (*LATENCY, "per_s", "shed_bytes"), proxies,
    ),
    Part("short", "short requests, 32 connections", Load("short", 32), ("per_s", "p50_ns", "cpu_s_per_million"), proxies),
    Part("ttfb", "time to first byte, 50 connections", Load("short", 50, 20_000), LATENCY, proxies),
    Part(
        "2000", "2,000 streams × 2 chunks/s", Load("paced", 2_000, 500_000),
        (*LATENCY, "bytes_per_stream", "errors"), proxies,
    ),
    Part(
        "10000", "10,000 streams × 1 chunk/s", Load("paced", 10_000, 1_000_000),
        (*LATENCY, "bytes_per_stream", "errors"), proxies,
    ),
    Part("litellm", "10 streams × 10 chunks/s", Load("paced", 10, 100_000), (*LATENCY, "cpu_s_per_million"), with_litellm),
    Part(
        "trouble", "500 streams × 20 chunks/s", Load("paced", 500, 50_000),
        (*LATENCY, "shed_bytes", "log_append_errors"), troubled,
    ),
]  # fmt: skip


def run_part(part: Part, folder: Path, rounds: int, seconds: float | None) -> dict[str, dict[str, float]]:
    """The medians of each target."""
    with mock_upstream(folder) as upstream, part.targets(folder, upstream) as found:
        runs: dict[str, list[dict[str, float]]] = {target.name: [] for target in found}
        for _ in range(rounds):
            for target in found:
                runs[target.name].append(measure(folder, target, part.load, seconds or part.seconds))
    # Memory that was taken stays taken, and an error is an error: of these the largest counts.
    worst = ("bytes_per_stream", "errors", "shed_bytes", "log_append_errors")
    return {
        name: {
            key: max(run[key] for run in of_one)
            if key in worst
            else statistics.median(run[key] for run in of_one)
            for key in of_one[0]
        }
        for name, of_one in runs.items()
    }


def main() -> int:
    """Run the parts that were asked for."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m bench tap", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of each run")
    given = parser.parse_args()
    if wrong := set(given.parts) - set(names):
        parser.error(f"no part is named {', '.join(sorted(wrong))}; there are {', '.join(names)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for part in PARTS:
        if given.parts and part.name not in given.parts:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o755)
            compile_c(folder)
            result = page.Result(
                part.what, part.shown, given.rounds, run_part(part, folder, given.rounds, given.seconds)
            )
        print(page.table(result), flush=True)
        page.keep(part.name, result)
    page.write(names)
    return 0

"""Analytics with a store in PostgreSQL and real Kafka: one consumer against two, and live traffic at low rates.

`python -m bench scale --levels` runs only the comparison (6 minutes), `--rounds 0` only the live traffic (1.5 minutes).
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench.scale import full_topic, live, page
from bench.scale.run import servers


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--streams", type=int, default=32_000, help="streams of 100 events in the full topic")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="pairs of runs with one and two consumers (the median is reported)",
    )
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="pin each consumer to one core",
    )
    parser.add_argument("--seconds", type=float, default=20, help="duration of live traffic at each level")
    parser.add_argument(
        "--levels", type=int, nargs="*", default=[1, 10, 100], help="numbers of concurrent streams"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the results to docs/explanation/performance.md"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # run the cleanup of started processes
    results: dict[str, list[str]] = {}
    with servers() as (broker, postgres):
        if arguments.rounds:
            results["two"] = full_topic.compare(
                broker, postgres, arguments.streams, arguments.rounds, pin=arguments.pin
            )
        if arguments.levels:
            rows = [live.live(broker, postgres, level, arguments.seconds) for level in arguments.levels]
            results["live"] = page.table(live.HEAD, rows)
    for part, lines in results.items():
        print("", *lines, sep="\n")
        if arguments.write:
            page.write(part, lines)
    return 0

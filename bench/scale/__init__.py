"""Analytics on a store in PostgreSQL, with real Kafka: one consumer and two, and the small end of docs/how-to/plan-capacity.md.

`python -m bench scale --levels` is the comparison alone (six minutes), `--rounds 0` the live levels alone (one and a half).
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench.scale import full_topic, live, page
from bench.scale.run import servers


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--streams", type=int, default=32_000, help="of 100 events each, in the full topic")
    parser.add_argument(
        "--rounds", type=int, default=3, help="pairs of one consumer and two; the median counts"
    )
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="each consumer has one core of its own",
    )
    parser.add_argument("--seconds", type=float, default=20, help="of live traffic at each level")
    parser.add_argument("--levels", type=int, nargs="*", default=[1, 10, 100], help="streams at a time")
    parser.add_argument(
        "--write", action="store_true", help="put the figures into docs/explanation/performance.md"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    said: dict[str, list[str]] = {}
    with servers() as (broker, postgres):
        if arguments.rounds:
            said["two"] = full_topic.compare(
                broker, postgres, arguments.streams, arguments.rounds, pin=arguments.pin
            )
        if arguments.levels:
            rows = [live.live(broker, postgres, level, arguments.seconds) for level in arguments.levels]
            said["live"] = page.table(live.HEAD, rows)
    for part, lines in said.items():
        print("", *lines, sep="\n")
        if arguments.write:
            page.write(part, lines)
    return 0

"""Analytics on a lake, with real Kafka and PostgreSQL: one consumer and two, and the small end of docs/scaling.md.

`python -m bench scale --levels` is the comparison alone (some four minutes), `--rounds 0` the live levels alone.
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench.scale.full_topic import compare
from bench.scale.live import live
from bench.scale.run import servers


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--streams", type=int, default=32_000, help="of 100 events each, in the full topic")
    parser.add_argument(
        "--rounds", type=int, default=3, help="pairs of one consumer and two; the median counts"
    )
    parser.add_argument("--pin", action="store_true", help="each consumer has one core of its own")
    parser.add_argument("--seconds", type=float, default=20, help="of live traffic at each level")
    parser.add_argument("--levels", type=int, nargs="*", default=[1, 10, 100], help="streams at a time")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with servers() as (broker, postgres):
        if arguments.rounds:
            compare(broker, postgres, arguments.streams, arguments.rounds, pin=arguments.pin)
        for level in arguments.levels:
            live(broker, postgres, level, arguments.seconds)
    return 0

"""Benchmarks of analytics: throughput, comparison with other consumers, freshness, query times, storage size.

`python -m bench analytics [PART …]` runs these parts (default: all), prints the results, saves them in
`bench/analytics/results.json` and writes the analytics section of docs/explanation/performance.md. Saved results of other
parts are kept. On a quiet machine each part takes under four minutes:

- `stages`: CPU time of each stage from the embedded log to the commit.
- `embedded`: events per second of CPU time, end to end from the embedded log.
- `kafka`: the same from real Kafka, compared with Quix Streams and a plain script. Needs Java and Maven.
- `freshness`: time from the last byte to the row in SQL, at several loads.
- `queries`: each public view and a timeline over 1, 10 and (with --folder) 100 million generated events.
- `sizes`: bytes per event after upkeep, for chat streams and a mixture of all formats.
- `memory`: memory use during one long run from the embedded log.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def main() -> int:
    from bench.analytics.page import Section
    from bench.analytics.parts import PARTS

    parser = argparse.ArgumentParser(
        prog="bench analytics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of stages, embedded and kafka (the median is reported)"
    )
    parser.add_argument("--streams", type=int, default=4000, help="streams of 100 events per round")
    parser.add_argument("--seconds", type=float, default=25.0, help="duration of each load of `freshness`")
    parser.add_argument("--events", type=int, default=1_300_000, help="events of each kind of `sizes`")
    parser.add_argument("--long-events", type=int, default=20_000_000, help="events of `memory`")
    parser.add_argument("--folder", type=Path, help="folder for the stores of `queries` (default: temporary)")
    given = parser.parse_args()
    section = Section("analytics", Path(__file__).parent / "results.json")
    if wrong := set(given.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(wrong))}. Parts: {', '.join(PARTS)}")
    for name, part in PARTS.items():
        if not given.parts or name in given.parts:
            began_s = time.monotonic()
            lines = part(given)
            print("\n".join(lines), f"\n\n{name}: {time.monotonic() - began_s:.0f} s\n", flush=True)
            section.keep(name, lines)
    section.write(list(PARTS))
    return 0

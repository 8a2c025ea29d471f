"""From log records to committed rows, and from rows to answers: speed, peers beside it, freshness, query times, bytes.

`python -m bench analytics [PART …]` runs these parts (all by default), prints each, keeps its lines in
`bench/analytics/results.json` and writes the analytics' section of docs/explanation/performance.md from them. A part is kept until it is
run again. On a quiet machine each takes under four minutes:

- `stages`: CPU time of each stage, from the embedded log to the commit.
- `embedded`: end to end from the embedded log, events per second of CPU time.
- `kafka`: the same from real Kafka, and the same job by Quix Streams and by a plain script. Needs Java and Maven.
- `freshness`: from the last byte to the row in SQL, at several loads.
- `queries`: each public view and a timeline over 1, 10 and (where --folder keeps it) 100 million events, made by SQL.
- `sizes`: bytes an event after upkeep, of chat streams and of a mixture of all formats.
- `memory`: one long run from the embedded log, with its memory as it goes.
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
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of stages, embedded and kafka; the median counts"
    )
    parser.add_argument("--streams", type=int, default=4000, help="of 100 events each, a round")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each load of `freshness`")
    parser.add_argument("--events", type=int, default=1_300_000, help="of each kind of `sizes`")
    parser.add_argument("--long-events", type=int, default=20_000_000, help="of `memory`")
    parser.add_argument(
        "--folder", type=Path, help="where `queries` keeps its stores; default: a temporary one"
    )
    given = parser.parse_args()
    section = Section("analytics", Path(__file__).parent / "results.json")
    if wrong := set(given.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(sorted(wrong))}; there are {', '.join(PARTS)}")
    for name, part in PARTS.items():
        if not given.parts or name in given.parts:
            began_s = time.monotonic()
            lines = part(given)
            print("\n".join(lines), f"\n\n{name}: {time.monotonic() - began_s:.0f} s\n", flush=True)
            section.keep(name, lines)
    section.write(list(PARTS))
    return 0

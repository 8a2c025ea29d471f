"""From log records to committed rows, and from rows to answers: events a second, bytes, query times, peers beside it.

Parts, each of them under five minutes on a quiet machine:

- `stages`: CPU time of each stage, from the embedded log to the commit.
- `embedded`: end to end from the embedded log, events per second of CPU time, median of 5.
- `memory`: one long run from the embedded log, with the peak of memory as it goes.
- `queries`: over 1, 10 or 100 million events (made by SQL, kept in --folder): each public view, a timeline, bytes an event.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench analytics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["stages", "embedded", "memory", "queries"])
    parser.add_argument("--streams", type=int, default=4000, help="of 100 events each, a run")
    parser.add_argument("--events", type=int, default=1_000_000, help="of `queries`")
    parser.add_argument(
        "--folder", type=Path, help="where `queries` keeps its files; default: a temporary one"
    )
    arguments = parser.parse_args()
    if arguments.part == "queries":
        return _queries(arguments.folder, arguments.events)
    from bench.analytics import ours

    if arguments.part == "stages":
        ours.print_stages(arguments.streams)
    elif arguments.part == "embedded":
        rates = ours.embedded_rates(arguments.streams)
        print(
            f"embedded log to rows: {statistics.median(rates):,.0f} events/s of one core "
            f"({min(rates):,.0f} … {max(rates):,.0f})"
        )
    else:
        ours.print_memory(arguments.streams)
    return 0


def _queries(folder: Path | None, events: int) -> int:
    from bench.analytics import stored

    with tempfile.TemporaryDirectory() as temporary:
        path = (folder or Path(temporary)) / f"{events}.duckdb"
        if not path.exists():
            stored.fill(path, events)
        stored.ask(path)
    return 0

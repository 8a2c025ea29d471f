"""The DuckLake store against the DuckDB file of a parent commit: speed, freshness, bytes, query times, cost of a commit.

`python -m bench store --against PATH [PART …]` runs these parts alternately in this tree and in PATH, a work tree of the
parent commit with a `.venv`. It prints each with its gates, saves the results in `bench/store/results.json` and writes the
section of docs/explanation/performance.md, if the page has one. Without --against only this tree is measured. Parts:

- `backlog`: events per second of CPU time from an embedded log to rows.
- `live`: a real `streamgauge analyze` idle, at 10 events/s and at 20,000 events/s: freshness of rows, CPU cores.
- `bytes`: bytes per event after upkeep, of recorded streams and of chat streams.
- `queries`: each public view and a timeline. 100 million events: --events 100000000 --folder FOLDER.
- `commit`: CPU and wall time of one commit by its number of streams, and of DuckLake's own INSERT.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def main() -> int:
    from bench.analytics.page import Section
    from bench.store.parts import PARTS
    from bench.store.trees import Failed, Tree

    parser = argparse.ArgumentParser(
        prog="bench store", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default: all")
    parser.add_argument("--against", type=Path, metavar="PATH", help="work tree of the parent commit")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of backlog (live and commit run a fifth of them)"
    )
    parser.add_argument("--streams", type=int, default=4000, help="streams of backlog, 100 events each")
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 20_000], help="events/s of live")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each load of live")
    parser.add_argument(
        "--dashboard", action="store_true", help="live: run the Overview page's queries every 2 s"
    )
    parser.add_argument("--bytes-events", type=int, default=1_300_000, help="events of each kind of bytes")
    parser.add_argument("--events", type=int, default=10_000_000, help="events of queries")
    parser.add_argument("--folder", type=Path, help="folder for the stores of queries (default: temporary)")
    parser.add_argument("--commits", type=int, default=30, help="commits of each size in commit")
    given = parser.parse_args()
    if wrong := set(given.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(wrong))}. Parts: {', '.join(PARTS)}")
    try:
        trees = [Tree.of("current", Path(__file__).parents[2])]
        trees += [Tree.of("parent", given.against)] if given.against is not None else []
        section = Section("store", Path(__file__).parent / "results.json")
        for name, part in PARTS.items():
            if not given.parts or name in given.parts:
                began_s = time.monotonic()
                found = part(trees, given)
                print("\n".join(found.lines), f"\n\n{name}: {time.monotonic() - began_s:.0f} s\n", flush=True)
                commits = {tree.name: tree.commit for tree in trees}
                section.keep(found.name, found.lines, found.arguments, values=found.values, commits=commits)
        section.write([*PARTS, "live-dashboard"])
    except Failed as e:
        print(e, file=sys.stderr)
        return 1
    return 0

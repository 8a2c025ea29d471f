"""User-space instructions of a fixed amount of work, counted by callgrind, and their difference from the committed ones.

`python -m bench instructions [--only TEXT] [--accept REASON]` counts all cases in ten minutes, or those whose name contains TEXT. Needs
Debian's package `valgrind`. Two kinds of cases:

- In memory (`in_memory`, `commands`): each event of each dialect, commits, the start of commands, a script run of a page. Runs on one
  core with one thread of DuckDB and polars, without randomized hashes and addresses. Two runs differ by less than 1 %; the gate is 2 %.
- Live (`live`): a tap between a client and an upstream. The median of 5 runs, without what an idle tap does in the same time. The gate
  is 5 %. Needs a quiet machine and root (real-time priority): the number of wake-ups of the log thread depends on time.

Fails if a figure differs by more than its gate, also downwards: the figures in `bench/instructions/results.json` then hide a later
change. `--accept` writes them and docs/explanation/performance.md, with the reason. With another Python, compiler, library or
CPU nothing is compared.
"""

from __future__ import annotations

import argparse


def main() -> int:
    from bench.instructions import callgrind, table
    from bench.instructions.measured import CASES, measured

    parser = argparse.ArgumentParser(
        prog="bench instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--accept", metavar="REASON", help="write the figures; why they have changed")
    given = parser.parse_args()
    if reason := callgrind.missing():
        parser.error(reason)
    known = table.committed()
    other = known.other_key() if known else []
    if other and given.accept and given.only:
        parser.error(f"--accept needs all cases, because the key is another one: {'; '.join(other)}")
    figures, components = measured([name for name in CASES if given.only in name])
    before = known.figures if known and not other else {}
    lines, changed = table.changes(before, figures)
    print("\n".join([*lines, *(f"not compared: {line}" for line in other)]))
    if given.accept:
        if known and not other:
            components = components or known.components
        table.save(table.Committed(table.key(), before | figures, components, given.accept))
    elif changed and not other:
        print(f"\n{len(changed)} figures have changed. Find out why; --accept REASON writes the new ones.")
        return 1
    return 0

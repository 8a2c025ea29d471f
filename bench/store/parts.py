"""Each part of the bench: run its script in the trees, check its gates, format the result as Markdown."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.analytics.page import table
from bench.store.trees import Tree, run_alternately

Given = argparse.Namespace
LEAST_RATIO = 0.9
FRESH_P50_S, FRESH_P99_S = 0.6, 1.5
MOST_CPU = 1.3
"""Maximum ratio to the parent's cores at a high rate."""
MORE_CORES = 0.05
"""Maximum difference to the parent's cores at a low rate."""
CORES = ("analytics_cores", "dashboard_cores", "reader_cores")
"""Processes that are compared. The parent's analytics also runs the queries of readers."""
HIGH_RATE = 1_000
LEAST_STREAMS = 20
"""With fewer streams the percentiles of freshness are not checked."""
MOST_BYTES = 14.0
VIEW_S, TIMELINE_S = 1.0, 0.1
TIMELINE = "one stream's timeline"
SIZES = (1, 5, 30, 100, 200)
ROUNDS_EACH = 5
"""Rounds of `backlog` for one of `live` or `commit`, which take minutes."""


@dataclass(frozen=True)
class Found:
    """Result of one part."""

    lines: list[str]
    values: dict[str, Any]
    name: str = ""
    """Name under which the result is saved."""
    arguments: str = ""
    """Arguments of the command that repeats it, without PART."""


@dataclass
class Gates:
    """Checked limits and their results."""

    rows: list[list[str]] = field(default_factory=list)

    def add(self, name: str, value: str, limit: str, met: bool) -> None:
        """Add one gate."""
        self.rows.append([name, value, limit, "met" if met else "**missed**"])

    def lines(self) -> list[str]:
        """The gates as a table, empty without gates."""
        return ["", *table(["gate", "measured", "limit", "result"], self.rows)] if self.rows else []


def backlog(trees: list[Tree], given: Given) -> Found:
    """From an embedded log to rows, events per second of CPU time."""
    results = run_alternately(trees, given.rounds, "backlog", given.streams)
    rates = {name: [one["events_per_s"] for one in runs] for name, runs in results.items()}
    rows = [
        [name, f"{statistics.median(found):,.0f}", f"{min(found):,.0f} … {max(found):,.0f}"]
        for name, found in rates.items()
    ]
    gates = Gates()
    if "parent" in rates:
        ratio = statistics.median(rates["current"]) / statistics.median(rates["parent"])
        gates.add("current / parent", f"{ratio:.2f}", f"at least {LEAST_RATIO}", ratio >= LEAST_RATIO)
    lines = [*table(["backlog", "events per CPU second, median", "range"], rows), *gates.lines()]
    return Found(lines, rates, "backlog", f"--rounds {given.rounds} --streams {given.streams}")


def live(trees: list[Tree], given: Given) -> Found:
    """Freshness and CPU of a real analytics process."""
    rounds = max(1, given.rounds // ROUNDS_EACH)
    found = {
        rate: _medians(
            run_alternately(trees, rounds, "live", rate, given.seconds, int(given.dashboard and rate > 0))
        )
        for rate in (0, *given.rates)
    }
    rows = [
        [
            f"{rate:,g} events/s, {name}" if rate else f"idle, {name}",
            f"{one['streams']:,.0f}" if "streams" in one else "",
            *(f"{one[key]:.2f} s" if key in one else "" for key in ("p50_s", "p99_s", "max_s")),
            *(f"{one[key]:.3f}" if key in one else "" for key in CORES),
            f"{sum(one.get(key, 0) for key in CORES):.3f}",
        ]
        for rate, by_tree in found.items()
        for name, one in by_tree.items()
    ]
    head = [
        "live",
        "streams",
        "p50",
        "p99",
        "max",
        "cores: analytics",
        "dashboard's queries",
        "reader",
        "all three",
    ]
    lines = [*table(head, rows), *_live_gates(found).lines()]
    name = "live-dashboard" if given.dashboard else "live"
    values = {f"{rate:g}": by_tree for rate, by_tree in found.items()}
    arguments = f"--seconds {given.seconds:g}{' --dashboard' if given.dashboard else ''}"
    return Found(lines, values, name, arguments)


def _medians(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }


def _live_gates(found: dict[float, dict[str, dict[str, float]]]) -> Gates:
    gates = Gates()
    for rate, by_tree in found.items():
        at = f"at {rate:,g} events/s" if rate else "idle"
        now, before = by_tree["current"], by_tree.get("parent")
        if now.get("streams", 0) >= LEAST_STREAMS:
            for name, limit_s in (("p50", FRESH_P50_S), ("p99", FRESH_P99_S)):
                value_s = now[f"{name}_s"]
                gates.add(
                    f"freshness {name} {at}", f"{value_s:.2f} s", f"at most {limit_s} s", value_s <= limit_s
                )
        if before is None:
            continue
        cores, cores_before = now["analytics_cores"], before["analytics_cores"]
        if rate >= HIGH_RATE:
            ratio = cores / cores_before
            gates.add(
                f"cores {at}, current / parent", f"{ratio:.2f}", f"at most {MOST_CPU}", ratio <= MOST_CPU
            )
        else:
            more = cores - cores_before
            gates.add(
                f"cores {at}, more than parent", f"{more:+.3f}", f"at most +{MORE_CORES}", more <= MORE_CORES
            )
    return gates


def size(trees: list[Tree], given: Given) -> Found:
    """Bytes an event after upkeep."""
    found = {tree.name: tree.run("size", given.bytes_events)["kinds"] for tree in trees}
    rows, gates = [], Gates()
    for kind in found["current"]:
        for name, kinds in found.items():
            one = kinds[kind]
            shares = [f"{one[key]:.1f}" for key in ("in_events", "in_tables", "in_all")]
            rows.append([f"{kind}, {name}", f"{one['events']:,}", f"{one['streams']:,}", *shares])
        value = found["current"][kind]["in_all"]
        gates.add(f"bytes per event, {kind}", f"{value:.1f}", f"at most {MOST_BYTES:g}", value <= MOST_BYTES)
    head = ["stored", "events", "streams", "bytes per event: `events`", "all tables", "with the catalog"]
    return Found([*table(head, rows), *gates.lines()], found, "bytes", f"--bytes-events {given.bytes_events}")


def queries(trees: list[Tree], given: Given) -> Found:
    """Each public view and a timeline."""
    with ExitStack() as closing:
        folder = given.folder or Path(closing.enter_context(tempfile.TemporaryDirectory()))
        found = {
            tree.name: tree.run("queries", (folder / tree.name).absolute(), given.events) for tree in trees
        }
    current = found["current"]
    rows, gates = [], Gates()
    for name, seconds in current["seconds"].items():
        others = (found[tree]["seconds"].get(name) for tree in found)
        rows.append([name, *("" if s is None else f"{s * 1e3:,.0f} ms" for s in others)])
        limit_s = TIMELINE_S if name == TIMELINE else VIEW_S
        if seconds > limit_s:
            gates.add(name, f"{seconds:.2f} s", f"at most {limit_s} s", met=False)
    if not gates.rows:
        slowest_s = max(s for name, s in current["seconds"].items() if name != TIMELINE)
        gates.add("slowest view", f"{slowest_s:.2f} s", f"at most {VIEW_S} s", met=True)
        gates.add(TIMELINE, f"{current['seconds'][TIMELINE]:.3f} s", f"at most {TIMELINE_S} s", met=True)
    head = [f"over {current['events']:,} events", *found]
    return Found([*table(head, rows), *gates.lines()], found, "queries", f"--events {given.events}")


def commit(trees: list[Tree], given: Given) -> Found:
    """One commit by its number of streams."""
    rounds = max(1, given.rounds // ROUNDS_EACH)
    runs = run_alternately(trees, rounds, "commit", given.commits, *SIZES)
    found = {
        way if name == "current" else f"{name}, {way}": {
            streams: {key: statistics.median(run[way][streams][key] for run in results) for key in took}
            for streams, took in results[0][way].items()
        }
        for name, results in runs.items()
        for way in results[0]
        if name == "current" or way == "commit"
    }
    titles = {
        "commit": "`Store.commit`",
        "insert": "DuckLake's INSERT",
        "parent, commit": "parent's `Store.commit`",
    }
    rows = [
        [
            f"{streams} stream{'' if streams == '1' else 's'}",
            *(f"{by[streams]['cpu_ms']:.1f} / {by[streams]['wall_ms']:.1f}" for by in found.values()),
        ]
        for streams in found["commit"]
    ]
    head = ["one commit, ms: CPU / wall", *(titles[way] for way in found)]
    return Found(table(head, rows), found, "commit", f"--commits {given.commits}")


PARTS: dict[str, Callable[[list[Tree], Given], Found]] = {
    "backlog": backlog,
    "live": live,
    "bytes": size,
    "queries": queries,
    "commit": commit,
}

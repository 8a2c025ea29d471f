"""How often the diagnosis names the right cause of an incident, and when it began.

Twenty kinds of incidents under mixed traffic, with several seeds and rates, and healthy traffic: plain, growing, with longer prompts,
with days and nights, and with a client that always reads slowly. The streams are written to a store
as analytics does, and diagnosed by the dashboard's code. A diagnosis is right if it names the metric and exactly the dimension values
of each incident. Its onset is right within 10 s or one point of the dashboard's charts (1/60 of the range). Each run has a period of
its own, with places, onset and sizes drawn from its seed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from bench.diagnosis.incidents import INCIDENTS, Expected, Incident, healthy
from bench.diagnosis.traffic import simulate
from streamgauge.analytics.diagnosis.aggregates import metrics
from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import Cause, Diagnosis, headline
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.objectives import DEFAULT
from streamgauge.analytics.schema.tables import STREAMS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.store import Store

TRAFFIC = ((2.0, 3600.0), (10.0, 1800.0), (50.0, 900.0))
"""(requests per s, length of the range in s)."""
HEALTHY = "healthy"
FAMILIES = {name: metric.family for name, metric in metrics([DEFAULT]).items()}
LEAST_TOLERANCE_S = 10.0
POINTS = 60
LATEST = datetime(2026, 6, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Run:
    """One diagnosis of one range."""

    name: str
    seed: int
    rate: float
    length_s: float
    named: bool
    """All places and metrics are right, and no other cause is named before them."""
    errors_s: tuple[float, ...]
    """Onset errors of the causes that are right."""
    extra: int
    """Causes beyond the expected ones."""
    took_s: float
    text: str
    expected: str

    @property
    def tolerance_s(self) -> float:
        return max(LEAST_TOLERANCE_S, self.length_s / POINTS)

    @property
    def right(self) -> bool:
        return self.named and all(abs(e) <= self.tolerance_s for e in self.errors_s)


def drawn(name: str, seed: int, length_s: float) -> Incident:
    """The incident of a seed. Its onset is in the third to fifth sixth of the range."""
    if name == HEALTHY:
        return healthy(seed, length_s)
    rng = np.random.default_rng([seed, *name.encode()])
    return INCIDENTS[name](rng, rng.uniform(0.33, 0.83) * length_s, length_s)


def judge(diagnosis: Diagnosis, incident: Incident) -> tuple[bool, tuple[float, ...]]:
    """Whether the first causes are the expected ones, in any order, and the errors of their onsets."""
    first, errors_s = list(diagnosis.causes[: len(incident.expected)]), []
    for expected in incident.expected:
        match = next((c for c in first if _is(c, expected)), None)
        if match is None:
            return False, tuple(errors_s)
        first.remove(match)
        onset_s = (match.onset - diagnosis.since).total_seconds() if match.onset else float("inf")
        errors_s.append(onset_s - expected.onset_s)
    return True, tuple(errors_s)


def _is(cause: Cause, expected: Expected) -> bool:
    is_metric = FAMILIES[cause.metric] in expected.families
    has_evidence = not expected.evidence or any(expected.evidence in fact for fact in cause.evidence)
    return dict(cause.where) == dict(expected.where) and is_metric and has_evidence


def run(
    query: Callable[[str], pl.DataFrame], write: Callable[[pl.DataFrame], None], name: str, seed: int, traffic: tuple[float, float],
    until: datetime,
) -> Run:  # fmt: skip
    """Simulate, store and diagnose one range that ends at `until`."""
    rate, length_s = traffic
    since, incident = until - timedelta(seconds=length_s), drawn(name, seed, length_s)
    more = {"faults": incident.faults, "load": incident.load}
    write(simulate(seed, since=since, length_s=length_s, earlier_s=length_s, rate=rate, **more))
    began = time.perf_counter()
    diagnosis = diagnose(query, Selection(since=since, until=until))
    took_s = time.perf_counter() - began
    named, errors_s = judge(diagnosis, incident)
    expected = "; ".join(
        f"{'/'.join(e.families)} {dict(e.where)} {since + timedelta(seconds=e.onset_s):%H:%M:%S}"
        for e in incident.expected
    )
    if name == HEALTHY:
        named = diagnosis.state == "healthy"
    extra = len(diagnosis.causes) - len(incident.expected)
    return Run(
        name, seed, rate, length_s, named, errors_s, max(0, extra), took_s, headline(diagnosis), expected
    )


def table(runs: Sequence[Run]) -> str:
    """The runs by incident, as Markdown."""
    head = ("incident", "runs", "named", "and onset", "median error", "largest error", "more causes")
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    for name in INCIDENTS:
        of_name = [r for r in runs if r.name == name]
        if of_name:
            errors = [abs(e) for r in of_name for e in r.errors_s]
            middle, most = (f"{f(errors):.1f} s" if errors else "–" for f in (statistics.median, max))
            lines.append(
                f"| {name} | {len(of_name)} | {sum(r.named for r in of_name)} | {sum(r.right for r in of_name)} | {middle} | {most} "
                f"| {sum(r.extra for r in of_name)} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench diagnosis", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="seeds of each incident and rate")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--healthy", type=int, default=100, help="healthy runs")
    parser.add_argument("--only", default="", help="only incidents whose name contains this")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    planned = [(n, s, t) for s in seeds for t in TRAFFIC for n in INCIDENTS if options.only in n]
    planned += [(HEALTHY, 1000 * options.first_seed + i, TRAFFIC[i % len(TRAFFIC)]) for i in range(options.healthy)]  # fmt: skip
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        location = locate(SQLITE, Path(folder))
        store = stack.enter_context(contextlib.closing(Store(location)))
        reader = stack.enter_context(contextlib.closing(Reader(location, lock_down=False)))

        def write(frame: pl.DataFrame) -> None:
            store.commit(Commit("", tables={"streams": with_all_columns(frame, STREAMS)}))

        for number, (name, seed, traffic) in enumerate(planned):
            until = LATEST - timedelta(hours=3 * number)
            found = run(lambda sql: reader.query(sql, 20_000, 60.0), write, name, seed, traffic, until)
            runs.append(found)
            if not found.right:
                print(
                    f"{found.name}, seed {seed}, {found.rate:.0f}/s: expected {found.expected or 'nothing'}; found: {found.text}"
                    f" (onset errors: {', '.join(f'{e:.1f} s' for e in found.errors_s)})",
                    flush=True,
                )
    _print(runs)
    return 0


def _print(runs: Sequence[Run]) -> None:
    print(table(runs))
    for seed in sorted({r.seed for r in runs if r.name != HEALTHY}):
        for rate, _ in TRAFFIC:
            of_set = [r for r in runs if r.seed == seed and r.rate == rate and r.name != HEALTHY]
            print(
                f"seed {seed}, {rate:.0f} requests/s: {sum(r.right for r in of_set)} of {len(of_set)} right"
            )
    healthy = [r for r in runs if r.name == HEALTHY]
    if healthy:
        print(f"false diagnoses: {sum(not r.named for r in healthy)} of {len(healthy)} healthy runs")
    steps = [abs(e) for r in runs for e in r.errors_s if "drift" not in r.name]
    if steps:
        print(
            f"onsets of steps within 10 s: {sum(e <= 10 for e in steps)} of {len(steps)}, median {statistics.median(steps):.1f} s"
        )
    took_ms = sorted(1000 * r.took_s for r in runs)
    print(f"queries and computation: median {statistics.median(took_ms):.0f} ms, slowest {took_ms[-1]:.0f} ms")  # fmt: skip

"""How often the diagnosis names the right cause of an incident, and when it began.

`python -m bench diagnosis PART`. Parts:

- incidents: each kind of incident under mixed traffic, with several seeds and rates. A diagnosis is right if it names the metric
  and exactly the dimension values of each incident. Its onset is right within 15 s of the first affected stream, that of a drift within
  the time in which the metric rises by 5 %. Places, onset and sizes are drawn from the seed.
- healthy: plain traffic, growing traffic, longer prompts, days and nights, a client that always reads slowly, one that sleeps, a new model,
  and new server instances.
- hours: hours of healthy traffic, with a look a minute by the rule of alerts (`healthy_hours`).
- time: how long it takes to name the incidents that the demo stages (`own_incidents`).

The streams are written to a store as analytics does, and diagnosed by the dashboard's code. Each run has a period of its own. `--write`
adds the runs to `results.json` and writes the section of docs/explanation/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from bench.analytics.page import Section
from bench.analytics.page import table as page_table
from bench.diagnosis import healthy_hours, own_incidents
from bench.diagnosis.healthy_hours import Watched
from bench.diagnosis.incidents import (
    INCIDENTS,
    TOLERANCE_S,
    Expected,
    StagedIncident,
    healthy,
    is_quiet,
    judge,
    matches,
)
from bench.diagnosis.own_incidents import Naming
from bench.diagnosis.traffic import PRICES, TEAM, simulate
from streamgauge.analytics.diagnosis.aggregates import at_place, source
from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import Diagnosis, headline
from streamgauge.analytics.diagnosis.metrics import metrics
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema import tables
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.objectives import DEFAULT
from streamgauge.analytics.schema.sql_quoting import instant
from streamgauge.analytics.schema.tables import STREAMS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.store import Store

TRAFFIC = ((2.0, 3600.0), (10.0, 1800.0), (50.0, 900.0))
"""(requests per s, length of the range in s)."""
HEALTHY = "healthy"
LATEST = datetime(2026, 6, 1, 12, tzinfo=UTC)
PARTS = ("incidents", HEALTHY, "hours", "time")
RESULTS = Path(__file__).with_name("results.json")

Query = Callable[[str], pl.DataFrame]
Write = Callable[[pl.DataFrame], None]


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
    tolerances_s: tuple[float, ...]
    extra: int
    """Causes beyond the expected ones."""

    @property
    def right(self) -> bool:
        within = zip(self.errors_s, self.tolerances_s, strict=False)
        return self.named and all(abs(error) <= tolerance for error, tolerance in within)


def drawn(name: str, seed: int, length_s: float) -> StagedIncident:
    """The incident of a seed. Its onset is in the third to fifth sixth of the range."""
    if name == HEALTHY:
        return healthy(seed, length_s)
    rng = np.random.default_rng([seed, *name.encode()])
    return INCIDENTS[name](rng, rng.uniform(0.33, 0.83) * length_s, length_s)


def run(
    query: Query, write: Write, name: str, seed: int, traffic: tuple[float, float], until: datetime
) -> Run:
    """Simulate, store and diagnose one range that ends at `until`. Prints what is not right."""
    rate, length_s = traffic
    since, incident = until - timedelta(seconds=length_s), drawn(name, seed, length_s)
    more = {"faults": incident.faults, "load": incident.load}
    frame = simulate(seed, since=since, length_s=length_s, earlier_s=length_s, rate=rate, **more)
    write(frame)
    diagnosis = diagnose(query, Selection(since=since, until=until), labels=[TEAM])
    named, errors_s = judge(diagnosis, _from_first_affected(query, diagnosis, incident))
    if name == HEALTHY:
        named = is_quiet(diagnosis, incident)
    tolerances_s = tuple(one.tolerance_s for one in incident.expected)
    extra = max(0, len(diagnosis.causes) - len(incident.expected))
    found = Run(name, seed, rate, length_s, named, tuple(round(e, 1) for e in errors_s), tolerances_s, extra)
    if not found.right or (name == HEALTHY and diagnosis.causes):
        expected = "; ".join(
            f"{'/'.join(e.families)} {dict(e.where)} {since + timedelta(seconds=e.onset_s):%H:%M:%S}"
            for e in incident.expected
        )
        print(
            f"{name}, seed {seed}, {rate:.0f}/s: expected {expected or 'nothing'}; found: {headline(diagnosis)}"
            f" (onset errors: {', '.join(f'{e:.1f} s' for e in errors_s)})",
            flush=True,
        )
    return found


def _from_first_affected(query: Query, diagnosis: Diagnosis, incident: StagedIncident) -> list[Expected]:
    """The expected causes with the onsets that the data show: until the first affected stream of a place, any instant is right."""
    since, until, found = diagnosis.since, diagnosis.until, []
    compared = metrics([DEFAULT])
    for one in incident.expected:
        cause = next((c for c in diagnosis.causes if matches(c, one)), None)
        if cause is None or cause.onset is None or cause.metric not in compared:
            found.append(one)
            continue
        metric, chosen = compared[cause.metric], Selection(since=since, until=until)
        is_affected = f"({metric.x})" if metric.kind == "share" else "TRUE"
        first = query(f"""
            SELECT min(moment) FROM (
                SELECT {metric.at} AS moment FROM ({source(chosen, labelled=True)})
                WHERE {at_place(one.where)} AND ({metric.n}) AND {is_affected})
            WHERE moment >= {instant(since + timedelta(seconds=one.onset_s))}""").item()
        first_s, onset_s = ((at - since).total_seconds() for at in (first or until, cause.onset))
        found.append(replace(one, onset_s=min(max(onset_s, one.onset_s), first_s)))
    return found


def incident_lines(runs: Sequence[Run]) -> list[str]:
    """The runs by incident, and what they have in common."""
    head = ("incident", "runs", "named", "and onset", "median error", "largest error", "more causes")
    rows = []
    for name in INCIDENTS:
        of_name = [r for r in runs if r.name == name]
        if of_name:
            errors = [abs(e) for r in of_name for e in r.errors_s]
            middle, most = (f"{f(errors):.1f} s" if errors else "–" for f in (statistics.median, max))
            counts = (len(of_name), sum(r.named for r in of_name), sum(r.right for r in of_name))
            rows.append([name, *map(str, counts), middle, most, str(sum(r.extra for r in of_name))])
    named, right = sum(r.named for r in runs), sum(r.right for r in runs)
    steps = [
        abs(e) for r in runs for e, t in zip(r.errors_s, r.tolerances_s, strict=False) if t == TOLERANCE_S
    ]
    rates = ", ".join(
        f"{sum(r.right for r in runs if r.rate == rate)} of {sum(r.rate == rate for r in runs)} at {rate:.0f} requests/s"
        for rate in dict.fromkeys(r.rate for r in runs)
    )
    return [
        *page_table(head, rows),
        "",
        f"{named} of {len(runs)} are named ({named / len(runs):.1%}),",
        f"{right} also with the right onset ({right / len(runs):.1%}): {rates}.",
        f"Of {len(steps)} onsets of steps, {sum(e <= TOLERANCE_S for e in steps)} are right to {TOLERANCE_S:.0f} s.",
    ]  # fmt: skip


def healthy_lines(runs: Sequence[Run]) -> list[str]:
    false, explained = (
        sum(not r.named for r in runs),
        sum(r.named and r.extra > 0 for r in runs),
    )
    return [
        f"{false} of {len(runs)} healthy runs have a false diagnosis. In {explained} of them longer prompts alone make TTFT miss its",
        "objective, and the headline of the diagnosis says so.",
    ]


def hours_lines(watched: Sequence[Watched]) -> list[str]:
    hours, diagnoses = sum(w.hours for w in watched), sum(w.diagnoses for w in watched)
    alerts = sum(len(w.alerts) for w in watched)
    return [f"{hours} healthy hours with a look a minute ({diagnoses:,} diagnoses) have {alerts} alerts."]


def time_lines(namings: Sequence[Naming]) -> list[str]:
    within = f"named within {own_incidents.LIMIT_S:.0f} s"
    head = ("incident of the demo", "runs", within, "median", "longest", "largest error of the onset")
    return page_table(head, own_incidents.table(namings))


@contextlib.contextmanager
def _stored() -> Iterator[tuple[Query, Write]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        location = locate(SQLITE, Path(folder))
        store = stack.enter_context(contextlib.closing(Store(location)))
        reader = stack.enter_context(contextlib.closing(Reader(location, lock_down=False)))

        # With more threads, a query of the bench has waited for ever, whatever interrupts it, as in
        # https://github.com/duckdb/duckdb/issues/24961.
        reader.connection.execute("SET threads = 1")

        def write(frame: pl.DataFrame) -> None:
            store.commit(Commit("", tables={"streams": with_all_columns(frame, STREAMS)}))

        prices = with_all_columns(pl.DataFrame(PRICES), tables.PRICES)
        labels = with_all_columns(pl.DataFrame({"name": [TEAM]}), tables.LABELS)
        store.commit(Commit("", tables={"prices": prices, "labels": labels}))
        yield lambda sql: reader.query(sql, 20_000, 60.0), write


def main() -> int:
    as_written = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="bench diagnosis", description=__doc__, formatter_class=as_written)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", default=[], help=f"{', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--seeds", type=int, default=4, help="seeds of each kind of incident")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--healthy", type=int, default=100, help="healthy runs")
    parser.add_argument("--hours", type=int, default=25, help="healthy hours of each seed")
    parser.add_argument("--rates", type=int, default=0, help="only this number of TRAFFIC, from 1 on")
    parser.add_argument("--only", default="", help="only incidents whose name contains this")
    parser.add_argument(
        "--write", action="store_true", help="add the runs to results.json and write performance.md"
    )
    options = parser.parse_args()
    used = TRAFFIC[options.rates - 1 :][:1] if options.rates else TRAFFIC
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    first_healthy = 1000 * options.first_seed
    planned: dict[str, list[tuple[str, int, tuple[float, float]]]] = {
        "incidents": [(n, s, t) for s in seeds for t in used for n in INCIDENTS if options.only in n],
        HEALTHY: [(HEALTHY, first_healthy + i, used[i % len(used)]) for i in range(options.healthy)],
    }
    with _stored() as (query, write):
        periods = (LATEST - timedelta(hours=3 * number) for number in range(10**6))
        for part in options.parts or PARTS:
            if part == "time":
                kinds = [k for k in own_incidents.KINDS if options.only in k]
                found: list[Run] | list[Naming] | list[Watched] = [
                    own_incidents.name_one(query, write, kind, seed, next(periods)) for seed in seeds for kind in kinds
                ]  # fmt: skip
            elif part == "hours":
                until = LATEST - timedelta(days=30)
                found = [
                    healthy_hours.watch(query, write, seed, options.hours, until - timedelta(days=7 * number))
                    for number, seed in enumerate(seeds)
                ]
            else:
                found = [run(query, write, *one, next(periods)) for one in planned[part]]
            print("", *lines(part, [asdict(one) for one in found]), sep="\n", flush=True)
            if options.write:
                _keep(part, [asdict(one) for one in found])
    return 0


def lines(part: str, rows: Sequence[dict[str, object]]) -> list[str]:
    """The lines of a part of the page. `rows`: fields of `Run`, `Naming` or `Watched`."""
    if part == "hours":
        return hours_lines([Watched(**row) for row in rows])  # type: ignore[arg-type]
    if part == "time":
        return time_lines([Naming(**row) for row in rows])  # type: ignore[arg-type]
    found = [Run(**row) for row in rows]  # type: ignore[arg-type]
    return incident_lines(found) if part == "incidents" else healthy_lines(found)


def _keep(part: str, rows: list[dict[str, object]]) -> None:
    """Add runs to those of other seeds and rates, and write the section."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    new = {(row["seed"], row.get("rate")) for row in rows}
    kept = map(json.loads, known.get(part, {}).get("runs", []))
    rows = [row for row in kept if (row["seed"], row.get("rate")) not in new] + rows
    rows.sort(key=lambda row: row["seed"])  # type: ignore[arg-type,return-value]
    section = Section("diagnosis", RESULTS)
    section.keep(part, lines(part, rows), _arguments(part, rows), runs=[json.dumps(row) for row in rows])
    section.write(PARTS)


def _arguments(part: str, rows: Sequence[dict[str, object]]) -> str:
    """The arguments of the command, or of each command, that make these runs."""
    seeds = dict[object, set[int]]()
    for row in rows:
        seeds.setdefault(row.get("rate"), set()).add(int(str(row["seed"])))
    numbers = sorted(set.union(*seeds.values()))
    if part == HEALTHY:
        return f"--healthy {len(numbers)} --first-seed {numbers[0] // 1000}"
    if part == "hours":
        return f"--hours {rows[0]['hours']} --seeds {len(numbers)} --first-seed {numbers[0]}"
    if all(of_rate == set(numbers) for of_rate in seeds.values()):
        rates = [number for number, (rate, _) in enumerate(TRAFFIC, 1) if rate in seeds]
        only = f" --rates {rates[0]}" if len(rates) == 1 else ""
        return f"--seeds {len(numbers)} --first-seed {numbers[0]}{only}"
    return " and ".join(
        f"--seeds {len(seeds[rate])} --first-seed {min(seeds[rate])} --rates {number}"
        for number, (rate, _) in enumerate(TRAFFIC, 1) if rate in seeds
    )  # fmt: skip

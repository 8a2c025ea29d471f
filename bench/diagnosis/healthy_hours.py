"""How many alerts healthy traffic raises: a look a minute by the rule of alerts, and two more within 20 s where a look finds something.

The traffic has days and nights, a client that sleeps, a new model and new server instances, all in the same hours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from bench.diagnosis.traffic import Load, simulate
from streamgauge.analytics.alerts.incident_rule import RANGE, IncidentRule

RATE_PER_S = 2.0
LOOKS_S = (0.0, 9.6, 19.2)
"""In each minute. The rule skips the later two unless it has an unconfirmed incident."""


@dataclass(frozen=True)
class Watched:
    seed: int
    hours: int
    diagnoses: int
    alerts: list[str]


def watch(
    query: Callable[[str], pl.DataFrame],
    write: Callable[[pl.DataFrame], None],
    seed: int,
    hours: int,
    until: datetime,
) -> Watched:
    """Look at the hours before `until`. Prints each alert."""
    rng, length_s, since = np.random.default_rng(seed), 3600.0 * hours, until - timedelta(hours=hours)
    client, at_s = int(rng.integers(0, 5)), (rng.uniform(0.1, 0.6, 4) * length_s).tolist()
    asleep = client, at_s[0], at_s[0] + at_s[1] / 2
    load = Load(swing=0.35, asleep=asleep, new_model_s=at_s[2], deployed_s=at_s[3])
    earlier_s = 2 * RANGE.total_seconds()
    write(simulate(seed, since=since, length_s=length_s, earlier_s=earlier_s, rate=RATE_PER_S, load=load))
    now, diagnoses, alerts = since, 0, dict[object, str]()

    def counting(sql: str) -> pl.DataFrame:
        nonlocal diagnoses
        diagnoses += "AS MATERIALIZED" in sql and "'cube' AS part" in sql
        return query(sql)

    rule = IncidentRule(counting, lambda: int((now - since).total_seconds() * 1e9), {})
    for minute in range(1, 60 * hours):
        for second in LOOKS_S:
            now = since + timedelta(minutes=minute, seconds=second)
            rule.evaluate(now)
            for key, condition in rule.conditions.items():
                if key not in alerts:
                    print(f"healthy hours, seed {seed}, {now:%d %H:%M:%S}: {condition.message}", flush=True)
                alerts[key] = condition.message
    return Watched(seed, hours, diagnoses, [*alerts.values()])

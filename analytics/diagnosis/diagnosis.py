"""The result of a diagnosis: its state and the causes found, most important first. Values only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from streamgauge.analytics.schema.objectives import DEFAULT

State = Literal["healthy", "incident", "unclear", "no_data"]
"""`incident`: at least one cause is named. `unclear`: an objective is missed, and the data do not support a cause."""
Kind = Literal["step", "drift", "constant", "traffic"]
"""`step`: changed at `onset`. `drift`: gets worse slowly since `onset`. `constant`: it was so in the whole range. `traffic`: the
mix of requests changed, and no model, gateway or client got worse."""
Unit = Literal["share", "ns"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One metric within a cause: its value after the onset and before it."""

    metric: str
    """A key of `metrics.METRICS`."""
    value: float
    before: float | None
    unit: Unit


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A set of streams, given by dimension values, for which a metric got worse."""

    kind: Kind
    where: Mapping[str, str]
    """Dimension → value: model, gateway, client, tap or server. Empty: all streams of the selection."""
    main: Effect
    effects: tuple[Effect, ...] = ()
    """Other metrics that got worse at the same place and time."""
    evidence: tuple[str, ...] = ()
    """Short facts, such as "HTTP 429" or "prompts 4.1 times longer"."""
    surges: tuple[tuple[str, float], ...] = ()
    """(client, ratio) of clients that send several times more requests since the onset."""
    onset: datetime | None = None
    """None if it began before the data or the kind has no onset."""
    onset_earliest: datetime | None = None
    onset_latest: datetime | None = None
    """The onset is between these two with about 95 % confidence."""
    ended: datetime | None = None
    """None if it lasts until the end of the range."""
    streams: int = 0
    """Streams at this place since the onset."""
    affected: int | None = None
    """Of them, those that failed, were slow, … None if the metric is a mean."""
    unaffected: tuple[str, ...] = ()
    """Values of `unaffected_dimension` next to the affected one, with enough streams and without the change."""
    unaffected_dimension: str | None = None
    example_stream_id: str | None = None
    objective: str | None = None
    """Name of the objective that most of the affected streams have."""
    score: float = 0.0
    """Log-likelihood ratio of the change against chance. Causes are ranked by it and by how many streams they affect."""

    @property
    def metric(self) -> str:
        return self.main.metric

    @property
    def filters(self) -> dict[str, str]:
        """The values that the filters of the pages can select."""
        return {name: value for name, value in self.where.items() if name in ("model", "gateway", "client")}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One limit of an objective, and the value of its streams in the selection: a share or ns. TTFT and ITL are 95th percentiles."""

    name: Literal["error_rate", "ttft", "itl"]
    objective: str = DEFAULT.name
    value: float | None
    limit: float
    unit: Unit
    since_onset: float | None = None
    """The value since the first cause's onset. For the error rate only, and only if there is one objective."""

    @property
    def missed(self) -> bool:
        return self.value is not None and self.value > self.limit

    @property
    def state(self) -> Literal["met", "missed", "unknown"]:
        return "unknown" if self.value is None else "missed" if self.missed else "met"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is wrong in a range of time."""

    state: State
    since: datetime
    until: datetime
    causes: tuple[Cause, ...] = ()
    """Most important first, at most `search.MAX_CAUSES`."""
    measured: tuple[Measured, ...] = ()
    """By objective, the one with the most requests first."""
    streams: int = 0
    """Finished requests of the range."""
    notes: tuple[str, ...] = field(default=())
    """Why the state is unclear, or what else is worth knowing. Whole sentences."""

    def measured_of(self, name: str) -> list[Measured]:
        """The limits of one kind, the one that is missed most first, and unknown values last."""
        found = [m for m in self.measured if m.name == name]
        return sorted(found, key=lambda m: math.inf if m.value is None else m.limit / max(m.value, 1e-9))

    def limit(self, name: str) -> float | None:
        """The limit of one kind that all streams of the selection have, None if they differ in it."""
        limits = {m.limit for m in self.measured if m.name == name}
        return limits.pop() if len(limits) == 1 else None

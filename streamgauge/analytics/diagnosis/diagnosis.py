"""The result of a diagnosis: its state and the causes found, most important first; and the same as plain text without markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal

from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.dimensions import DIMENSIONS, LABEL
from streamgauge.analytics.schema.objectives import DEFAULT

State = Literal["healthy", "incident", "unclear", "no_data"]
"""`incident`: at least one cause is named. `unclear`: an objective is missed, and the data do not support a cause."""
PLACE_DIMENSIONS = (
    "gateway",
    "model",
    "session",
    "client",
    "app",
    "tap",
    "server",
    LABEL,
    "size",
    "served",
    "finish",
)
"""The dimensions of `Cause.where`, in the order in which a text names them."""
Kind = Literal["step", "drift", "constant", "traffic"]
"""`step`: changed at `onset`. `drift`: gets worse slowly since `onset`. `constant`: it was so in the whole range. `traffic`: the
mix of requests changed, and no model, gateway or client got worse."""
Unit = Literal["share", "ns", "tokens", "characters"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One metric within a cause: its value after the onset and before it."""

    metric: str
    """A key of `aggregates.metrics`."""
    value: float
    before: float | None
    unit: Unit | str
    """Of spend, its currency and "/h"."""
    statistic: str = ""
    """What the value is of the streams at the place, such as "p50". Empty: `AFFECTED` says it."""
    p95: float | None = None
    """The 95th percentile after the onset."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A set of streams, given by dimension values, for which a metric got worse."""

    kind: Kind
    where: Mapping[str, str]
    """Dimension → value: one of `PLACE_DIMENSIONS`; a label is NAME=VALUE. Empty: all streams of the selection."""
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

    def value_of(self, by: str) -> str | None:
        """The value of a dimension or of a label that is named."""
        label, _, value = self.where.get(LABEL, "").partition("=")
        return value if by == label else self.where.get(by)

    @property
    def filters(self) -> dict[str, str]:
        """The values that the filters of the pages can select."""
        return {name: value for name, value in self.where.items() if name in (*DIMENSIONS, LABEL)}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One limit of an objective, and the value of its streams in the selection: a share or ns. TTFT and ITL are 95th percentiles."""

    name: Literal["error_rate", "ttft", "itl"]
    objective: str = DEFAULT.name
    value: float | None
    limit: float
    unit: Unit

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


# As text

Name = Callable[[str, str], str]
"""(dimension, value) → the text that readers see, such as an alias of a client."""

FAILURES = (
    "rate_limited", "http_error", "refused", "dns", "tls", "upstream_down", "upstream_reset", "timeout", "inband_error", "truncated",
)  # fmt: skip
"""Metrics that count failed streams."""
TITLES = dict.fromkeys((*FAILURES, "cut"), "Error rate") | {
    "tool_failure": "Failures with tool calls",
    "lost": "Records lost by the tap",
    "slow_client": "Client reads slowly",
    "other_model": "Another model answers",
    "loop": "Agents in loops",
    "refusal": "Refusals",
    "empty": "Empty answers",
    "length": "Answers cut at the token limit",
    "finish": "Unusual finish reasons",
    "prompts": "Longer prompts",
    "reasoning": "More reasoning",
    "cost": "Cost per request",
    "spend": "Spend",
    "violation": "Streams that strict clients reject",
    "prompt_changed": "Cache misses by changed prompts",
    "tool_calls": "Fewer answers with tool calls",
    "tool_arguments": "Malformed tool calls",
    "output_tokens": "Shorter answers",
    "output_chars": "Shorter answers",
    "burst": "Buffered responses",
    "cache": "Prompt-cache hits lost",
    "stalled": "Stalls",
    "ttft": "TTFT",
    "slow_ttft": "TTFT",
    "itl": "ITL",
    "slow_itl": "ITL",
}
"""Metric → what a headline calls it."""
AFFECTED = dict.fromkeys((*FAILURES, "cut"), "failing") | {
    "tool_failure": "of the streams with a tool call fail",
    "lost": "of the streams incomplete",
    "other_model": "of the answers are by another model than requested",
    "loop": "of the requests with tool results repeat a call and its result",
    "refusal": "of the answers are refusals",
    "empty": "of the answers are empty",
    "length": "of the answers end at the limit",
    "finish": "of the answers end with an unusual reason",
    "tool_arguments": "of the streams with a tool call have malformed arguments",
    "violation": "of the streams break a rule",
    "prompt_changed": "of the answers miss the prompt cache because the prompt changed",
    "burst": "of the responses arrive in one burst",
    "stalled": "of the streams stall",
    "slow_ttft": "above the objective",
    "slow_itl": "above the objective",
}
GEOMETRIC_MEAN = "geometric mean"
NUMBERS = {
    "ttft": "TTFT", "itl": "ITL", "cache": "hit rate", "slow_client": "wait", "tool_calls": "share", "output_tokens": "output",
    "output_chars": "output", "prompts": "input", "reasoning": "reasoning", "cost": "cost in input tokens", "spend": "spend",
}  # fmt: skip
"""Metric → what its number is called."""
DIMENSION_NAMES = {"size": "request", "served": "response model", "finish": "finish reason"}
"""Dimension → its name in texts, if different."""
OBJECTIVES = {"error_rate": "Error rate", "ttft": "TTFT p95", "itl": "ITL p95"}
MAX_HEADLINE_EFFECTS = 2
MAX_UNAFFECTED = 3
"""Values without the change that are named. More of them are counted."""
MAX_SURGES = 2
"""Clients with a surge that are named. More of them are counted."""
MAX_MISSED = 3


def plain_name(dimension: str, value: str) -> str:
    """Values as they are stored. Client ids are shortened."""
    return shortened(value) if dimension == "client" else value


def headline(diagnosis: Diagnosis, zone: tzinfo = UTC, name: Name = plain_name) -> str:
    """One sentence with the first cause, or why none is named."""
    if diagnosis.state == "no_data":
        return "No requests in this range."
    if diagnosis.state == "healthy":
        return "Healthy: all objectives met, and nothing got worse."
    if diagnosis.state == "unclear":
        missed = [measured_text(m) for m in diagnosis.measured if m.missed]
        more = len(missed) - MAX_MISSED
        missed = [*missed[:MAX_MISSED], f"{more} more"] if more > 0 else missed
        return " ".join([f"Cause unclear: {', '.join(missed)}.", *diagnosis.notes])
    cause = diagnosis.causes[0]
    more = len(diagnosis.causes) - 1
    others = f" {more} more {'cause' if more == 1 else 'causes'}." if more else ""
    return cause_text(cause, zone, name, measured=diagnosis.measured, until=diagnosis.until) + others


def cause_text(
    cause: Cause, zone: tzinfo = UTC, name: Name = plain_name, *, measured: tuple[Measured, ...] = (), until: datetime | None = None
) -> str:  # fmt: skip
    """A cause in one line: what, since when, where, how much and what is not affected. All numbers are of the place.

    `measured` adds the limit of its objective. `until` adds dates to times of another day.
    """
    return "".join(cause_parts(cause, zone, name, measured=measured, until=until))


def cause_parts(
    cause: Cause, zone: tzinfo = UTC, name: Name = plain_name, *, measured: tuple[Measured, ...] = (), until: datetime | None = None
) -> tuple[str, str, str]:  # fmt: skip
    """`cause_text` before its place, the place, and the text after it."""
    parts = [size(cause, measured), *cause.evidence]
    parts += _surges(cause, name)
    parts += [f"{NUMBERS.get(e.metric, TITLES[e.metric])} {_change(e)}" for e in shown_effects(cause)]
    after = "".join(f", {p}" for p in parts if p) + "."
    if cause.unaffected and cause.unaffected_dimension:
        after += f" Unaffected: {_unaffected(cause.unaffected_dimension, cause.unaffected, name)}."
    return f"{TITLES[cause.metric]}{when(cause, zone, until)}: ", place(cause, name), after


def place(cause: Cause, name: Name = plain_name) -> str:
    """The dimension values of a cause: `gpt-sim-large @ us-gateway, client c0ffee11`, or `gateway us-gateway`."""
    where = {dimension: name(dimension, value) for dimension, value in cause.where.items()}
    served = ("model", "gateway") if "model" in where else ()
    parts = [" @ ".join(where[d] for d in served if d in where)]
    parts += [
        where[d] if d == LABEL else f"{DIMENSION_NAMES.get(d, d)} {where[d]}"
        for d in PLACE_DIMENSIONS
        if d in where and d not in served
    ]
    return ", ".join(p for p in parts if p) or "all streams"


def _unaffected(dimension: str, values: tuple[str, ...], name: Name) -> str:
    """The values by name, but the number of clients: most of them have only ids."""
    names = [] if dimension == "client" else [name(dimension, v) for v in values[:MAX_UNAFFECTED]]
    more = len(values) - len(names)
    if not names:
        return f"{more} other {dimension}{'s' if more > 1 else ''}"
    return f"{dimension}{'s' if len(values) > 1 else ''} {', '.join(names)}" + (
        f" and {more} more" if more else ""
    )


def size(cause: Cause, measured: tuple[Measured, ...] = ()) -> str:
    """How large the change is: `70 % failing (before 2 %, objective 5 %)`, `TTFT p50 263 → 738 ms, p95 2.1 s (objective 2 s)`."""
    effect = cause.main
    limits = [] if cause.kind == "traffic" else _limits(cause, measured)
    if effect.metric in AFFECTED:
        before = [f"before {_number(effect.before, effect.unit)}"] if (effect.before or 0) >= 0.005 else []
        names_it = effect.metric in ("slow_ttft", "slow_itl")
        notes = ", ".join(before + [text.removeprefix("objective ") if names_it else text for text in limits])
        is_of_all = cause.kind == "traffic" and cause.where
        of_all = "of all streams " if is_of_all else "of the streams " if names_it else ""
        text = f"{_number(effect.value, effect.unit)} {of_all}{AFFECTED[effect.metric]}"
        text = f"{text} ({notes})" if notes else text
        p95_ns = _p95_ns(cause, measured) if names_it else None
        return text if p95_ns is None else f"{text}, p95 {_number(p95_ns, 'ns')}"
    text = f"{NUMBERS.get(effect.metric, '')} {_change(effect)}".strip()
    if effect.p95 is not None and limits:
        text += f", p95 {_number(effect.p95, effect.unit)} ({limits[0]})"
    return text


def _p95_ns(cause: Cause, measured: tuple[Measured, ...]) -> float | None:
    """Of the time that misses its objective. None: only the share of the streams that miss it is known at this place."""
    time = cause.metric.removeprefix("slow_")
    found = [effect.p95 for effect in cause.effects if effect.metric == time]
    found += [
        m.value
        for m in measured
        if m.name == time and not cause.where and cause.objective in (None, m.objective)
    ]
    return next((value for value in found if value is not None), None)


def _limits(cause: Cause, measured: tuple[Measured, ...]) -> list[str]:
    """The limit of the metric in the objective of the cause's streams."""
    return [
        f"objective {_limit(m)}"
        for m in measured
        if OBJECTIVES[m.name].split(" p95")[0] == TITLES[cause.metric]
        and cause.objective in (None, m.objective)
    ][:1]


def when(cause: Cause, zone: tzinfo = UTC, until: datetime | None = None) -> str:
    """` since 07:28:44`, ` from 07:28:44 until 07:40`, or ` in the whole range`."""
    if cause.kind == "traffic":
        return ""
    if cause.kind == "constant":
        return " in the whole range"
    if cause.onset is None:
        return " since before the range"
    if cause.ended is not None:
        return f" from {clock(cause.onset, zone, until)} until {clock(cause.ended, zone, until)}"
    return f"{' rising slowly' if cause.kind == 'drift' else ''} since {clock(cause.onset, zone, until)}"


def clock(at: datetime, zone: tzinfo = UTC, until: datetime | None = None) -> str:
    """The time of day to the second, with the date if it is not that of `until`."""
    local = at.astimezone(zone)
    if until is not None and local.date() != (until - timedelta(microseconds=1)).astimezone(zone).date():
        return f"{local:%Y-%m-%d %H:%M:%S}"
    return f"{local:%H:%M:%S}"


def shown_effects(cause: Cause) -> list[Effect]:
    """Effects that the headline does not already have under the same title."""
    titles, found = {TITLES[cause.metric]}, []
    for effect in cause.effects:
        if TITLES[effect.metric] not in titles:
            titles.add(TITLES[effect.metric])
            found.append(effect)
    return found[:MAX_HEADLINE_EFFECTS]


def measured_text(m: Measured) -> str:
    """A value and its limit: `Error rate 7.4 % (objective 5 %)`. An objective from the settings has its name there."""
    return f"{OBJECTIVES[m.name]} {_number(m.value, m.unit)} (objective {_limit(m)})"


def _limit(m: Measured) -> str:
    return f"{'' if m.objective == DEFAULT.name else f'{m.objective}: '}{_number(m.limit, m.unit)}"


def _surges(cause: Cause, name: Name) -> list[str]:
    if len(cause.surges) > MAX_SURGES:
        ratios = [ratio for _, ratio in cause.surges]
        return [f"{len(ratios)} clients send {min(ratios):.1f} to {max(ratios):.1f} times more requests"]
    return [f"{_who(client, cause, name)} {ratio:.1f} times more requests" for client, ratio in cause.surges]


def _who(client: str, cause: Cause, name: Name) -> str:
    return "sends" if cause.where.get("client") == client else f"client {name('client', client)} sends"


def _change(effect: Effect) -> str:
    """`p50 263 → 738 ms`. The unit of both values stands once."""
    value = _number(effect.value, effect.unit)
    if effect.before is not None:
        before = _number(effect.before, effect.unit)
        unit = value[value.index(" ") :]
        value = f"{before.removesuffix(unit)} → {value}"
    return f"{effect.statistic} {value}".strip()


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "share":
        percent = 100 * value
        return f"{percent:.0f} %" if percent >= 9.95 or percent == round(percent) else f"{percent:.2g} %"
    if unit != "ns":
        return f"{value:.3g} {unit}"
    if value < 999.5e6:
        return f"{value / 1e6:.3g} ms"
    return f"{value / 1e9:.3g} s"

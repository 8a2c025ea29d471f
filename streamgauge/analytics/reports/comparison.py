"""Compare two groups of streams, A and B: failures, answers, and lengths and durations of `ok` streams.

- Each row has the 95 % interval of its difference: a percentile bootstrap with 10,000 resamples of both samples. The resampled
  statistics are drawn from their exact distribution instead of from resamples: order statistics of draws with replacement are beta
  distributed, and the rate of a resample is binomial. The same samples give the same interval.
- The p-value of a difference is twice the smaller share of resamples on either side of zero: at least 0.0002.
- A difference counts as clear if its p-value, adjusted by Holm's method over all rows of the page, is below 5 %. So all rows
  together report a difference of equal groups in at most 5 % of comparisons.
- No side is called better while its answers got worse (`quality`): what is shorter, refused or empty ends sooner. For this, the
  p-values of the answers are adjusted among themselves, because more rows must not hide it.
- TTFT is compared among streams of similar uncached input length (`alike`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from streamgauge.analytics.reports import Query, columns, formatting
from streamgauge.analytics.reports.blame import CLIENT_NS
from streamgauge.analytics.reports.errors import CAUSE_AND_TYPE
from streamgauge.analytics.reports.one_stream import LEAST_DELIVERY_NS
from streamgauge.analytics.reports.overview import COUNTS
from streamgauge.analytics.reports.quality import (
    INPUT_CLASS,
    IS_ANSWER,
    MEASURES,
    UNCACHED_INPUT,
    is_affected,
)
from streamgauge.analytics.reports.selection import FURTHER_DIMENSIONS, Selection
from streamgauge.analytics.schema.finish_reasons import FILTER, FINISH, LENGTH
from streamgauge.analytics.schema.outcomes import IS_COUNTED, IS_ERROR, IS_REQUEST, OK

State = Literal["worse", "better", "changed", "unclear", "few", "unknown"]
Sign = Literal[1, -1, 0]
CLIENT_WAIT, DURATION = "Wait for the client", "Duration"
MAX_CAUSES = 6
MAX_FINISH_REASONS = 3
MAX_NAMED = 6
"""Rows of one state that the summary names."""


@dataclass(frozen=True)
class Row:
    """One metric of the comparison. `is_rate`: its effect is a difference in points, else the ratio B / A."""

    label: str
    is_rate: bool
    direction: Sign
    """1: more is worse, -1: less is worse, 0: neither is."""
    to_text: Callable[[float | None], str]
    found: Difference | None
    adjusted_p: float | None = None
    worse_answers: Sign = 0
    """Of rows about answers. 1: the answers of the side with more are worse, -1: those of the side with less."""
    answers_of: str | None = None
    """The side that would be called better although its answers got worse."""

    @property
    def state(self) -> State:
        if self.found is None:
            return "unknown"
        if not self.found.enough:
            return "few"
        if self.adjusted_p is None or self.adjusted_p >= 1 - LEVEL:
            return "unclear"
        if self.direction == 0 or self.answers_of is not None:
            return "changed"
        return "better" if (self.found.difference < 0) == (self.direction > 0) else "worse"

    @property
    def result(self) -> str:
        """The state as text."""
        if self.found is not None and self.state == "few":
            return f"too few streams ({self.found.a_count} and {self.found.b_count})"
        if self.found is not None and self.state == "changed":
            word = "higher" if self.found.difference > 0 else "lower"
            return f"B is {word}" + (
                f", but {self.answers_of}'s answers are worse or shorter" if self.answers_of else ""
            )
        texts: dict[State, str] = {
            "unknown": "no comparable streams",
            "unclear": "no clear difference",
            "better": "B is better",
            "worse": "B is worse",
        }
        return texts[self.state]

    @property
    def values(self) -> str:
        """The label with both values."""
        if self.found is None:
            return self.label
        return f"{self.label} {self.to_text(self.found.a)} → {self.to_text(self.found.b)}"

    @property
    def effect(self) -> tuple[float, float, float] | None:
        """(effect, low, high): points of a rate, or the ratio B / A. None if unknown."""
        if self.found is None:
            return None
        if self.is_rate:
            return self.found.difference * 100, self.found.low * 100, self.found.high * 100
        ratio, low, high = self.found.ratio, self.found.ratio_low, self.found.ratio_high
        if ratio is None or low is None or high is None or low <= 0:
            return None
        return ratio, low, high

    @property
    def texts(self) -> dict[str, str | None]:
        """The row of `TABLE`."""
        found = {
            "label": self.label,
            "result": self.result,
            "a": None,
            "b": None,
            "difference": None,
            "interval": None,
        }
        if self.found is None:
            return found
        return found | {
            "a": self.to_text(self.found.a),
            "b": self.to_text(self.found.b),
            "difference": self.signed(self.found.difference),
            "interval": f"{self.signed(self.found.low)} … {self.signed(self.found.high)}",
        }

    def signed(self, value: float) -> str:
        """A difference with its sign. Differences of shares are in percentage points."""
        text = self.to_text(abs(value)).replace(" %", " points")
        return ("+" if value > 0 else "−" if value < 0 else "±") + text


TABLE = columns.table(
    "{title}: differences between A and B",
    columns.text("label", "Metric"),
    columns.text("result", "Result"),
    columns.text("a", "A", number=True),
    columns.text("b", "B", number=True),
    columns.text("difference", "B − A", number=True),
    columns.text("interval", "95 % interval", number=True),
)


def table(rows: Sequence[Row]) -> pl.DataFrame:
    """The texts of `TABLE`."""
    return pl.DataFrame([row.texts for row in rows])


def failure_rows(
    a: Mapping[str, int], b: Mapping[str, int], a_causes: Mapping[str, int], b_causes: Mapping[str, int]
) -> list[Row]:
    """Rates of failures: all, the most frequent causes, client aborts and stalled streams.

    `a` and `b` are counts (`reports.comparison.counts`).
    """

    def rate(label: str, cases: tuple[int, int], of: str) -> Row:
        return _rate_row(label, 1, cases, both(of))

    def both(name: str) -> tuple[int, int]:
        return a[name], b[name]

    cases = {name: (a_causes.get(name, 0), b_causes.get(name, 0)) for name in sorted({*a_causes, *b_causes})}
    counted = [max(side["counted"], 1) for side in (a, b)]
    names = sorted(cases, key=lambda name: -max(n / of for n, of in zip(cases[name], counted, strict=True)))
    return [
        rate("Error rate", both("errors"), "counted"),
        *(rate(name, cases[name], "counted") for name in names[:MAX_CAUSES]),
        rate("Client aborts", both("aborts"), "requests"),
        rate("Streams with a stall", both("stalled"), "stall_known"),
    ]


def answer_rows(
    a: Mapping[str, int], b: Mapping[str, int], a_finishes: Mapping[str, int], b_finishes: Mapping[str, int]
) -> list[Row]:
    """Shares of answers: cut, refused, empty, with a tool call, and by finish reason.

    `a` and `b` are counts (`reports.comparison.counts`).
    """
    rows = []
    for measure in MEASURES.values():
        if measure.unit == "share":
            cases, of = ((a[f"{measure.name}_{c}"], b[f"{measure.name}_{c}"]) for c in ("x", "n"))
            row = _rate_row(measure.label, measure.direction, cases, of)
            rows.append(replace(row, worse_answers=measure.direction))
    of = sum(a_finishes.values()), sum(b_finishes.values())
    names = [name for name in {**a_finishes, **b_finishes} if name not in (LENGTH, FILTER)]
    return rows + [
        _rate_row(f"Finish reason {name}", 0, (a_finishes.get(name, 0), b_finishes.get(name, 0)), of)
        for name in names[:MAX_FINISH_REASONS]
    ]


def _rate_row(label: str, direction: Sign, cases: tuple[int, int], of: tuple[int, int]) -> Row:
    return Row(label, True, direction, formatting.share, rate_difference(cases, of))


def ok_rows(a: pl.DataFrame, b: pl.DataFrame) -> list[Row]:
    """Quantiles of the lengths and durations of `ok` streams (`reports.comparison.ok_sample`)."""
    output = (
        "output_tokens" if all(side["output_tokens"].count() >= MIN_N for side in (a, b)) else "output_chars"
    )
    metrics: list[tuple[str, str, Sign, tuple[float, ...], Callable[[float | None], str]]] = [
        ("Uncached input tokens", "uncached_input", 0, (0.5,), formatting.count),
        (MEASURES[output].label, output, 0, (0.5, 0.95), formatting.count),
        ("TTFT", "ttft_ns", 1, (0.5, 0.95), formatting.duration),
        ("ITL", "itl_ns", 1, (0.5, 0.95), formatting.duration),
        ("Tokens per second", "tps_user", -1, (0.5,), formatting.rate),
        (CLIENT_WAIT, "client_ns", 1, (0.5, 0.95), formatting.duration),
        (DURATION, "end_ns", 1, (0.5, 0.95), formatting.duration),
    ]
    rows = []
    for name, column, direction, quantiles, to_text in metrics:
        compared = alike(a, b, column) if column == "ttft_ns" else (a, b)
        samples = [side[column].drop_nulls().cast(pl.Float64).to_numpy() for side in compared]
        for q in quantiles:
            found = quantile_difference(samples[0], samples[1], q)
            worse = MEASURES[output].direction if column == output else 0
            rows.append(Row(f"{name} p{100 * q:.0f}", False, direction, to_text, found, worse_answers=worse))
    return rows


def alike(a: pl.DataFrame, b: pl.DataFrame, column: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The streams of both sides with a known value, so many of each input class that it has the same share of both sides."""
    a, b = a.drop_nulls(column), b.drop_nulls(column)
    sizes = (
        a.group_by("input_class").agg(a=pl.len())
        .join(b.group_by("input_class").agg(b=pl.len()), on="input_class", nulls_equal=True)
        .with_columns(share=pl.min_horizontal(pl.col("a") / a.height, pl.col("b") / b.height))
    )  # fmt: skip
    found = [
        side.join(sizes, on="input_class", nulls_equal=True, maintain_order="left").filter(
            pl.int_range(pl.len()).over("input_class") < (pl.col("share") * side.height).round()
        )
        for side in (a, b)
    ]
    return found[0], found[1]


def adjusted(rows: Sequence[Row]) -> list[Row]:
    """The rows with their adjusted p-values. Rows with too few streams are no tests."""
    p_values = _adjusted_p(rows)
    answers = [row for row in rows if row.worse_answers]
    worse_answers = {
        "B" if (row.found.difference > 0) == (row.worse_answers > 0) else "A"
        for row, p in zip(answers, _adjusted_p(answers), strict=True)
        if row.found is not None and p is not None and p < 1 - LEVEL
    }
    found = []
    for row, p in zip(rows, p_values, strict=True):
        row = replace(row, adjusted_p=p)
        if row.state == "better" and "B" in worse_answers:
            row = replace(row, answers_of="B")
        elif row.state == "worse" and not row.is_rate and "A" in worse_answers:
            row = replace(row, answers_of="A")
        found.append(row)
    return found


def _adjusted_p(rows: Sequence[Row]) -> list[float | None]:
    p_values = iter(holm([row.found.p_value for row in rows if row.found is not None and row.found.enough]))
    return [next(p_values) if row.found is not None and row.found.enough else None for row in rows]


def summary(rows: Sequence[Row]) -> list[str]:
    """What differs, with the values of A and B, in sentences.

    Of what is no rate, the wait for the client is named first if it is at least half of the difference of the duration.
    """
    found = []
    by_label = {row.label: row.found for row in rows}

    def is_of_client(row: Row) -> bool:
        duration = by_label.get(row.label.replace(CLIENT_WAIT, DURATION))
        if not row.label.startswith(CLIENT_WAIT) or row.found is None or duration is None:
            return False
        return abs(row.found.difference) >= abs(duration.difference) / 2

    ordered = sorted(rows, key=lambda row: 0 if row.is_rate else 1 if is_of_client(row) else 2)
    for state, words in (("worse", "B is worse"), ("better", "B is better"), ("changed", "B differs")):
        named = [row.values for row in ordered if row.state == state]
        if len(named) > MAX_NAMED:
            named[MAX_NAMED:] = [f"{len(named) - MAX_NAMED} more"]
        if named:
            found.append(f"{words}: {', '.join(named)}.")
    sides = sorted({row.answers_of for row in rows if row.answers_of is not None})
    found += [f"{side} is not called better, because its answers are worse or shorter." for side in sides]
    if not found:
        is_tested = any(row.state == "unclear" for row in rows)
        found.append("No clear difference." if is_tested else "Too few streams for a comparison.")
    return found


# Counts and samples of one side

SAMPLE_STREAMS = 4000
"""Maximum streams of a sample. Streams are sampled by a hash of their id, so the same streams give the same sample."""


def ok_sample(query: Query, selection: Selection) -> pl.DataFrame:
    """`ttft_ns, itl_ns, tps_user, end_ns, client_ns, uncached_input, input_class, output_tokens, output_chars` of at most
    SAMPLE_STREAMS streams that ended `ok`. `client_ns`: as in `blame`, 0 below `LEAST_DELIVERY_NS`.

    A failed stream is shorter than a complete one, so mixing both would hide slower answers behind more failures.
    """
    lengths = ", ".join(
        f"CASE WHEN {m.known} THEN {m.value} END AS {m.name}" for m in MEASURES.values() if m.unit != "share"
    )
    return query(f"""
        SELECT ttft_ns, itl_ns, tps_user, end_ns,
            CASE WHEN {CLIENT_NS} >= {LEAST_DELIVERY_NS} THEN {CLIENT_NS} WHEN waited_client_ns IS NOT NULL THEN 0 END AS client_ns,
            {UNCACHED_INPUT} AS uncached_input, {INPUT_CLASS} AS input_class, {lengths}
        FROM streams WHERE {selection.where()} AND outcome = '{OK}' AND {IS_REQUEST}
        ORDER BY hash(stream_id) LIMIT {SAMPLE_STREAMS:d}""")


def counts(query: Query, selection: Selection) -> dict[str, Any]:
    """The columns of `overview.COUNTS`, `ok`, `counted` (of the error rate), `stall_known` and `stalled`.

    `stall_known` and `stalled` are `ok` streams with a known number of stalls, and with at least one. For each share of
    `quality.MEASURES`, `…_n` has the streams with a known value and `…_x` those with it.
    """
    of_answers = ", ".join(
        f"count(*) FILTER ({m.known}) AS {m.name}_n, count(*) FILTER ({is_affected(m.name)}) AS {m.name}_x"
        for m in MEASURES.values()
        if m.unit == "share"
    )
    return query(f"""
        SELECT {COUNTS}, count(*) FILTER (outcome = '{OK}' AND {IS_REQUEST}) AS ok,
            count(*) FILTER ({IS_COUNTED} AND {IS_REQUEST}) AS counted,
            count(stall_count) FILTER (outcome = '{OK}') AS stall_known,
            count(*) FILTER (outcome = '{OK}' AND stall_count > 0) AS stalled, {of_answers}
        FROM streams WHERE {selection.where()}""").to_dicts()[0]


def finishes(query: Query, selection: Selection) -> dict[str, int]:
    """Meaning of the finish reason → number of answers, most frequent first."""
    return _numbers(query, selection, f"coalesce({FINISH}, '(none)')", IS_ANSWER)


def causes(query: Query, selection: Selection) -> dict[str, int]:
    """Cause of failure → number of streams, most frequent first."""
    return _numbers(query, selection, CAUSE_AND_TYPE, f"{IS_ERROR} AND {IS_REQUEST}")


def values(query: Query, selection: Selection, dimension: str) -> list[str]:
    """The values of a further dimension, most frequent first."""
    return list(_numbers(query, selection, FURTHER_DIMENSIONS[dimension], IS_REQUEST, most=200))


def _numbers(query: Query, selection: Selection, name: str, where: str, *, most: int = 20) -> dict[str, int]:
    return dict(
        query(f"""
        SELECT {name} AS name, count(*) AS n FROM streams WHERE {selection.where()} AND {where}
        GROUP BY ALL ORDER BY n DESC, name LIMIT {most:d}""").iter_rows()
    )


# Differences of two samples. Pure.

RESAMPLES = 10_000
LEVEL = 0.95
MIN_N = 30
"""Smallest sample for which a difference is judged."""
MIN_TAIL_N = 10
"""Smallest number of values beyond a quantile for which its difference is judged."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The difference B − A of one statistic and its confidence interval."""

    a: float
    b: float
    low: float
    high: float
    a_count: int
    b_count: int
    enough: bool
    p_value: float
    ratio_low: float | None
    ratio_high: float | None
    """The interval of B / A. None if a resample of A, or B itself, is not positive."""

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        """B / A, or None without an interval."""
        return self.b / self.a if self.ratio_low is not None else None


def quantile_difference(a: Values, b: Values, quantile: float, *, seed: int = 7) -> Difference | None:
    """The difference of a quantile (`np.quantile`, linear). None if a sample is empty."""
    if not len(a) or not len(b):
        return None
    rng = np.random.default_rng(seed)
    needed = max(MIN_N, int(np.ceil(MIN_TAIL_N / min(quantile, 1 - quantile))))
    a, b = np.sort(a), np.sort(b)
    return _difference(
        (float(np.quantile(a, quantile)), float(np.quantile(b, quantile))),
        (_quantiles(a, quantile, rng), _quantiles(b, quantile, rng)),
        (len(a), len(b)),
        needed,
    )


def rate_difference(cases: tuple[int, int], of: tuple[int, int], *, seed: int = 7) -> Difference | None:
    """The difference of two rates, cases / of. None if one is of nothing."""
    if not all(of):
        return None
    rng = np.random.default_rng(seed)
    values = cases[0] / of[0], cases[1] / of[1]
    resampled = [rng.binomial(n, value, RESAMPLES) / n for n, value in zip(of, values, strict=True)]
    return _difference(values, (resampled[0], resampled[1]), of, MIN_N)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted by Holm's method, in the same order.

    If all null hypotheses hold, the probability that any adjusted value is below a level is at most that level.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _quantiles(ordered: Values, quantile: float, rng: np.random.Generator) -> Values:
    """The quantile of RESAMPLES resamples of sorted values.

    A resample draws n uniform positions. The k-th smallest is the k-th order statistic: beta(k, n − k + 1). The next one is
    the minimum of the remaining n − k draws on the rest of the interval.
    """
    n = len(ordered)
    position = quantile * (n - 1)
    k = int(position)
    lower = rng.beta(k + 1, n - k, RESAMPLES)
    found: Values = ordered[np.minimum((lower * n).astype(int), n - 1)]
    if position == k:
        return found
    upper = lower + (1 - lower) * rng.beta(1, n - k - 1, RESAMPLES)
    upper_values = ordered[np.minimum((upper * n).astype(int), n - 1)]
    result: Values = found + (upper_values - found) * (position - k)
    return result


def _difference(
    values: tuple[float, float], resampled: tuple[Values, Values], counts: tuple[int, int], needed: int
) -> Difference:
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    differences = resampled[1] - resampled[0]
    low, high = np.quantile(differences, ends)
    beyond = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    has_ratio = resampled[0].min() > 0 and values[0] > 0 and values[1] > 0
    ratio_low, ratio_high = np.quantile(resampled[1] / resampled[0], ends) if has_ratio else (None, None)
    return Difference(
        *values,
        float(low),
        float(high),
        *counts,
        enough=min(counts) >= needed,
        p_value=min(1.0, 2 * (int(beyond) + 1) / (RESAMPLES + 1)),
        ratio_low=None if ratio_low is None else float(ratio_low),
        ratio_high=None if ratio_high is None else float(ratio_high),
    )

"""Rows of the comparison: states after Holm's correction, effects, and hostile or missing values."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from streamgauge.analytics.reports import comparison
from streamgauge.analytics.reports.quality import MEASURES
from streamgauge.dashboard.charts.group_charts import forest

COUNTS = {
    "requests": 1000,
    "ok": 900,
    "counted": 1000,
    "errors": 20,
    "aborts": 5,
    "stall_known": 900,
    "stalled": 10,
    **{f"{measure.name}_n": 900 for measure in MEASURES.values()},
    **{f"{measure.name}_x": 20 for measure in MEASURES.values()},
}
FINISHES = {"stop": 700, "tool_calls": 180, "length": 20}


def sample(
    scale: float, count: int = 600, seed: int = 1, *, tokens: float = 50, input_tokens: float = 1000
) -> pl.DataFrame:
    """Streams whose TTFT, ITL and duration are `scale` times the usual. Prefill takes as long as the prompt is."""
    rng = np.random.default_rng(seed)
    values, prompts = (rng.lognormal(0, spread, count) for spread in (0.1, 0.4))
    output = rng.lognormal(0, 0.4, count) * tokens
    return pl.DataFrame(
        {
            "ttft_ns": values * prompts * input_tokens * scale, "itl_ns": values * scale / 10, "tps_user": 1e9 / values / scale,
            "end_ns": output * scale, "output_tokens": output.round(), "output_chars": output.round() * 4,
            "client_ns": np.zeros(count), "uncached_input": (prompts * input_tokens).round(),
            "input_class": (np.log(prompts * input_tokens) / np.log(1.25)).astype(int),
        }
    )  # fmt: skip


def compared(
    a: pl.DataFrame, b: pl.DataFrame, b_counts: dict[str, int] | None = None
) -> dict[str, comparison.Row]:
    """All rows by label. `b_counts` differ from those of A."""
    counts = COUNTS | (b_counts or {})
    rows = [
        *comparison.failure_rows(COUNTS, counts, {}, {}),
        *comparison.answer_rows(COUNTS, counts, FINISHES, FINISHES),
        *comparison.ok_rows(a, b),
    ]
    return {row.label: row for row in comparison.adjusted(rows)}


def test_more_failures_of_one_cause_are_worse() -> None:
    b = COUNTS | {"errors": 220}
    rows = comparison.adjusted(
        comparison.failure_rows(COUNTS, b, {"HTTP 500": 20}, {"HTTP 500": 20, "HTTP 429": 200})
    )
    states = {row.label: row.state for row in rows}
    assert states["Error rate"] == states["HTTP 429"] == "worse"
    assert states["HTTP 500"] == states["Client aborts"] == "unclear"
    assert rows[1].label == "HTTP 429"  # the most frequent cause first


def test_wait_for_the_client_is_named_first_if_it_is_the_difference() -> None:
    def named(client_ns: float, more_ns: float) -> str:
        b = sample(1e9, seed=2).with_columns(
            pl.lit(client_ns).alias("client_ns"), pl.col("end_ns") + client_ns + more_ns, pl.col("itl_ns") * 2
        )
        return comparison.summary(list(compared(sample(1e9), b, {"errors": 220}).values()))[0]

    assert named(50e9, 1e9).startswith(
        "B is worse: Error rate 2.00 % → 22.0 %, Wait for the client p50 0 s → 50.0 s, Wait for the client p95 0 s → 50.0 s, ITL p50"
    )
    assert named(50e9, 900e9).startswith("B is worse: Error rate 2.00 % → 22.0 %, ITL p50")


def test_effect_of_a_duration_is_a_ratio() -> None:
    rows = comparison.adjusted(comparison.ok_rows(sample(1e9), sample(2e9, seed=2)))
    ratio = next(row for row in rows if row.label == "TTFT p50").effect
    assert ratio is not None
    assert ratio[1] < 2.0 < ratio[2]
    assert {row.label: row.state for row in rows}["Tokens per second p50"] == "worse"
    assert comparison.summary(rows)[0].startswith("B is worse: TTFT p50 ")


def test_a_faster_side_with_equal_answers_is_better() -> None:
    rows = compared(sample(2), sample(1, seed=2))
    assert rows["Duration p50"].state == rows["TTFT p50"].state == "better"


@pytest.mark.parametrize(
    ("row", "b_counts", "tokens"),
    [
        ("Output tokens p50", {}, 25),
        ("Cut at the token limit", {"length_x": 400}, 50),
        ("Refusals", {"refusal_x": 60}, 50),
        ("Empty answers", {"empty_x": 60}, 50),
        ("Malformed tool arguments", {"tool_arguments_x": 60}, 50),
        ("Failures with a tool call", {"tool_failure_x": 60}, 50),
    ],
)
def test_no_side_with_worse_or_shorter_answers_is_better(
    row: str, b_counts: dict[str, int], tokens: int
) -> None:
    rows = compared(sample(2), sample(1, seed=2, tokens=tokens), b_counts)
    assert rows[row].state == ("changed" if row.startswith("Output") else "worse")
    assert rows["Duration p50"].state == rows["ITL p50"].state == "changed"
    assert rows["Duration p50"].result == "B is lower, but B's answers are worse or shorter"
    sentences = comparison.summary(list(rows.values()))
    assert not [s for s in sentences if s.startswith("B is better")]
    assert any(row in sentence for sentence in sentences)
    assert sentences[-1].startswith("B is not called better")


def test_a_side_with_longer_answers_is_not_worse_because_they_take_longer() -> None:
    rows = compared(sample(1), sample(1, seed=2, tokens=100))
    assert rows["Duration p50"].state == rows["Output tokens p50"].state == "changed"
    assert comparison.summary(list(rows.values()))[-1].startswith("A is not called better")


def test_other_tool_calls_and_finish_reasons_are_a_change_for_neither_side() -> None:
    rows = compared(sample(2), sample(1, seed=2), {"tool_calls_x": 400})
    assert rows["Answers with a tool call"].state == "changed"
    assert rows["Duration p50"].state == "better"
    other = comparison.answer_rows(COUNTS, COUNTS, FINISHES, {"stop": 200, "tool_calls": 700})
    states = {row.label: row.state for row in comparison.adjusted(other)}
    assert states["Finish reason stop"] == states["Finish reason tool_calls"] == "changed"
    assert "Finish reason length" not in states  # the row "Cut at the token limit" has it


def test_longer_prompts_are_no_regression_of_ttft() -> None:
    rows = compared(sample(1, 2000), sample(1, 2000, seed=2, input_tokens=1500))
    assert rows["Uncached input tokens p50"].state == "changed"
    assert rows["TTFT p50"].state == "unclear"
    slower = compared(sample(1, 2000), sample(1.3, 2000, seed=2, input_tokens=1500))
    assert slower["TTFT p50"].state == "worse"
    apart = compared(sample(1), sample(1, seed=2, input_tokens=1e6))
    assert apart["TTFT p50"].state in ("few", "unknown")


def test_characters_stand_in_for_unknown_tokens() -> None:
    a, b = (
        sample(1, seed=seed, tokens=tokens).with_columns(output_tokens=pl.lit(None, pl.Float64))
        for seed, tokens in ((1, 50), (2, 25))
    )
    rows = compared(a, b)
    assert rows["Output characters p50"].state == rows["Duration p50"].state == "changed"
    assert "Output tokens p50" not in rows


def test_holm_covers_all_rows() -> None:
    found = [
        any(row.state in ("worse", "better") for row in rows)
        for seed in range(20)
        for rows in [
            comparison.adjusted(comparison.ok_rows(sample(1, 300, seed), sample(1, 300, 1000 + seed)))
        ]
    ]
    assert sum(found) <= 4  # 5 % are expected of 20; the seeds are fixed


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_streams_are_not_judged(count: int) -> None:
    rows = comparison.adjusted(comparison.ok_rows(sample(1, count), sample(9, count)))
    assert {row.state for row in rows} == {"unknown" if count == 0 else "few"}
    assert all(row.adjusted_p is None for row in rows)
    assert comparison.summary(rows) == ["Too few streams for a comparison."]


def test_forest_of_extreme_effects_is_drawn() -> None:
    rows = comparison.adjusted(comparison.ok_rows(sample(1e-3), sample(1e12, seed=3)))
    plot = forest(rows)
    assert plot is not None
    assert plot.to_dict()["layer"]
    assert forest(comparison.ok_rows(sample(1, 0), sample(1, 0))) is None

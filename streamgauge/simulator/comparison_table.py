"""The table at the end of a demo: measured and simulated values by model. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import quantiles
from typing import Any

from streamgauge.analytics.schema.outcomes import NOT_ERRORS
from streamgauge.simulator.ledger import LedgerRow


def comparison_table(ledger: Iterable[LedgerRow], streams: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines with requests, errors, TTFT p50 and p95, ITL p50 and tokens per second of each model."""
    measured: dict[str | None, Mapping[str, Any]] = {stream["request_id"]: stream for stream in streams}
    by_model: dict[str, list[tuple[LedgerRow, Mapping[str, Any]]]] = defaultdict(list)
    for row in ledger:
        if row.speaker is not None and row.request_id in measured:
            by_model[row.model or "?"].append((row, measured[row.request_id]))
    header = (
        "model", "dialect", "requests", "errors", "TTFT p50 ms", "sim", "TTFT p95 ms", "sim", "ITL p50 ms", "sim", "tok/s"
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [header, *(_line(model, by_model[model]) for model in sorted(by_model))]
    if len(by_model) > 1:
        lines.append(_line("all", [pair for pairs in by_model.values() for pair in pairs]))
    return _aligned(lines)


def _line(model: str, pairs: Sequence[tuple[LedgerRow, Mapping[str, Any]]]) -> tuple[str, ...]:
    streams = [stream for _, stream in pairs]
    dialects = sorted({stream["dialect"] or "?" for stream in streams})
    errors = sum(stream["outcome"] not in NOT_ERRORS for stream in streams)
    timed = [(row, s) for row, s in pairs if row.first_output_ns is not None and s["ttft_ns"] is not None]
    simulated_ttft_ns = [(row.first_output_ns or 0) - row.complete_ns for row, _ in timed]
    paced = [
        (sent_ns, s["itl_ns"])
        for row, s in timed
        if s["itl_ns"] is not None and (sent_ns := simulated_itl_ns(row))
    ]
    rates = [1e9 / s["itl_ns"] for s in streams if s["itl_ns"]]
    return (
        model,
        dialects[0] if len(dialects) == 1 else f"{len(dialects)} dialects",
        str(len(pairs)),
        str(errors),
        _ms([s["ttft_ns"] for _, s in timed], 50),
        _ms(simulated_ttft_ns, 50),
        _ms([s["ttft_ns"] for _, s in timed], 95),
        _ms(simulated_ttft_ns, 95),
        _ms([itl for _, itl in paced], 50, 2),
        _ms([sent_ns for sent_ns, _ in paced], 50, 2),
        f"{_quantile(rates, 50):.0f}" if rates else "–",
    )


def simulated_itl_ns(row: LedgerRow) -> float | None:
    """The inter-token latency of the sent response, or None if it is undefined."""
    n = row.visible_tokens
    if row.first_output_ns is None or row.last_output_ns is None or n is None:
        return None
    if n < 2 or row.output_events < 2 or row.choices > 1:
        return None
    return (row.last_output_ns - row.first_output_ns) / (n - 1)


def _ms(values_ns: Sequence[float], percent: int, digits: int = 0) -> str:
    return f"{_quantile(values_ns, percent) / 1e6:.{digits}f}" if values_ns else "–"


def _quantile(values: Sequence[float], percent: int) -> float:
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]  # fmt: skip
    return [text[0], "─" * len(text[0]), *text[1:]]

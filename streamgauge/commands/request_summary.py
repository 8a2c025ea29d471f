"""The summary of the requests of a time range as lines of text, for `streamgauge run` and `open`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.reports import Query, formatting, prompt_context, run_summary
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import StoreLocation

MAX_ROWS, TIMEOUT_S = 10_000, 20.0


class Summary(NamedTuple):
    lines: list[str]
    """Empty without requests."""
    stored: int
    """Exchanges of the range in the tables, as a tap counts them: a WebSocket is one."""


def summarize(location: StoreLocation, selection: Selection) -> Summary:
    """The requests of a range. Raises QueryError."""
    with contextlib.closing(Reader(location)) as reader:
        query = partial(reader.query, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
        return Summary(_lines(query, selection), run_summary.exchanges(query, selection))


def _lines(query: Query, selection: Selection) -> list[str]:
    rows = run_summary.by_group(query, selection).to_dicts()
    if not rows:
        return []
    duration, count = formatting.duration, formatting.count
    model_ns, tool_ns, sessions = run_summary.times(query, selection)
    total = rows[0]
    lost = f", {count(total['lost'])} lost by the recording" if total["lost"] else ""
    tools = f", {duration(tool_ns)} in tools" if sessions else ""
    lines = [
        ("requests", f"{count(total['requests'])}, {count(total['errors'])} failed{lost}"),
        ("time", f"{duration(model_ns)} in requests{tools}"),
        *((row["name"], _measures(row)) for row in rows[1:]),
    ]
    lines += [
        ("failed", f"{count(row['n'])} × {row['cause']} ({row['error_phase']})")
        for row in run_summary.failures(query, selection, most=3).to_dicts()
    ]
    lines += [
        ("stalls", f"{count(row['stalls'])} of {row['cause']}, longest {duration(row['longest_ns'])}")
        for row in run_summary.stalls(query, selection).to_dicts()
    ]
    if (carried := prompt_context.carried(query, selection)) is not None:
        lines.append(("tools", prompt_context.carried_text(carried)))
    for row in run_summary.cost(query, selection).to_dicts():
        rest = f", {count(row['estimated'])} without reported tokens: estimated" if row["estimated"] else ""
        priced = f"{_requests(row['requests'])} with a price{rest}"
        lines.append(("cost", f"{row['cost']:.4f} {row['currency']} ({priced})"))
    lines += [
        ("agent cost", f"{row['cost']:.4f} USD ({_requests(row['requests'])}, as {row['agent']} estimates)")
        for row in run_summary.cost_of_agents(query, selection).to_dicts()
    ]
    width = max(len(name) for name, _ in lines)
    return [f"  {name:<{width}}  {text}" for name, text in lines]


def _measures(row: Mapping[str, Any]) -> str:
    duration = formatting.duration
    return (
        f"{_requests(row['requests'])} · TTFT p50 {duration(row['ttft_p50_ns'])}, p95 {duration(row['ttft_p95_ns'])} · "
        f"ITL p50 {duration(row['itl_p50_ns'])}, p95 {duration(row['itl_p95_ns'])} · "
        f"{formatting.count(row['output_tokens'])} tokens out, {formatting.rate(row['tps_user_p50'])}"
    )


def _requests(number: int) -> str:
    return f"{formatting.count(number)} {formatting.plural(number, 'request')}"

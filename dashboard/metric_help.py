"""What each number means, in one or two sentences: the help text beside it. docs/explanation/measurement.md has the long form.

These speak of many streams. What a single column means is said by the database's own comments (`queries.catalog`), where
single streams and tables are shown.
"""

from __future__ import annotations

HELP: dict[str, str] = {
    "requests": "Finished requests whose start lies in the time range. Those still running are counted under active streams.",
    "active": "Streams in flight now: opened at the tap and not yet ended (`open_streams`). Not bound to the time range.",
    "error_rate": "Streams with an error outcome / (finished − client aborts − streams lost by the tap). "
    "Aborts and losses are shown apart.",
    "aborts": "The client left before the stream's end was told (`client_abort`). No error of the upstream.",
    "tap_lost": "The tap died or dropped data, so the outcome is unknown (`tap_lost`). No error of the upstream.",
    "ttft": "Time to first token: from the tap turning to the upstream to the arrival of the first output event, text, "
    "reasoning, refusal, tool call or audio. Role-only and empty chunks do not count. Quantiles are over streams.",
    "ttfb": "First byte of the response body − t0.",
    "ttfc": "First chunk: the first dispatched event with data − t0, whether or not it holds output.",
    "ttfo": "First non-reasoning output − t0.",
    "itl": "Inter-token latency of one stream: (last output − first output) / (output tokens − 1). Unknown without token "
    "counts, or with fewer than two output events. Quantiles are over streams.",
    "icl": "Inter-chunk latency: the gap between two output events of one choice. A chunk is not a token. "
    "A time line shows the median over streams of each stream's own quantile.",
    "icl_pooled": "Inter-chunk latency: every gap between two output events of one choice, of all streams together, with the "
    "minute in which its stream began. From roll-ups by the minute, model and gateway; a quantile is within 1 %.",
    "tps_user": "Tokens per second that one user sees: 1 / ITL. The quantile is over streams.",
    "tps_e2e": "Output tokens / (last output − t0): waiting for the first token included.",
    "tps_total": "Output tokens of the streams that started in the time range / its length, where usage was reported.",
    "goodput": "Streams that meet every SLO / second. An unknown TTFT or ITL counts as a miss, and so does any outcome but ok.",
    "stall": "A gap between output events above max(500 ms, 5 × the stream's median gap); both numbers are configurable.",
    "burstiness": "Share of output bytes that came in the largest read or in reads ≤ 1 ms apart. Near 1: not really streamed.",
    "wasted": "Output tokens that came from the upstream for a client who had left and never got them: the tokens of an "
    "aborted stream × the part of its bytes that was not delivered. Known where tokens were told before the stream broke off.",
    "left_tokens": "Output tokens of aborted streams, delivered or not, where they were told: paid for, and read to no end.",
    "cached": "Input tokens served from the prompt cache / input tokens, of the streams that report both.",
    "concurrency": "Streams open at once, counted from their starts and ends.",
    "end": "t0 to the end of the response body.",
}


def described(name: str, *, more: str = "") -> str:
    """The help text of a measure; an unknown name is a bug and raises KeyError."""
    return f"{HELP[name]} {more}".strip()

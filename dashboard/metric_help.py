"""Help texts of metrics over many streams. docs/reference/metrics.md has the full definitions.

The database's column comments (`queries.table_columns`) describe single columns.
"""

from __future__ import annotations

HELP: dict[str, str] = {
    "requests": "Finished requests that started in the time range, without those refused by the tap. "
    "Requests in flight are counted under Active.",
    "active": "Streams in flight: opened at the tap and not yet ended (`open_streams`), regardless of the time range.",
    "error_rate": "Streams with an error outcome / (finished − client aborts − streams lost − refused by the tap). "
    "These three are shown separately.",
    "aborts": "The client disconnected before the terminal event (`client_abort`). Not an error of the upstream.",
    "refused": "The tap refused the request (`refused`): see `error_type`. Not an error of the upstream.",
    "tap_lost": "The tap died or dropped data, so the outcome is unknown (`tap_lost`). Not an error of the upstream.",
    "ttft": "Time to first token: first output event − t0. t0 is when the tap starts to contact the upstream, before it "
    "reuses or opens a connection. Output is text, reasoning, refusal, tool call or audio. Role-only and empty chunks do not count. "
    "Quantiles are over streams.",
    "ttfb": "Time to first byte: first byte of the response body − t0.",
    "ttfc": "Time to first chunk: first dispatched event with data − t0, whether or not it contains output.",
    "ttfo": "Time to first answer token: first non-reasoning output − t0.",
    "itl": "Inter-token latency of a stream: (last output − first output) / (output tokens − 1). Unknown without token "
    "counts, with fewer than two output events, or with several choices. Quantiles are over streams.",
    "icl": "Inter-chunk latency: the gap between two output events of one choice. A chunk is not a token. "
    "Quantiles are over streams, with one value per stream.",
    "icl_pooled": "Inter-chunk latency: the gaps between two output events of one choice, of all streams together, by the minute "
    "in which their stream started. From roll-ups by minute, model and gateway. Quantiles are within 1 %.",
    "tps_user": "Tokens per second of one stream: 1 / ITL. Quantiles are over streams.",
    "tps_e2e": "Output tokens / (last output − t0), which includes the wait for the first token.",
    "tps_total": "Output tokens / length of the time range, over the streams that started in it and reported usage.",
    "goodput": "Streams per second that meet every SLO. An unknown TTFT or ITL counts as a miss, and so does any outcome "
    "except ok.",
    "stall": "A gap between output events above max(500 ms, 5 × the median gap of the stream). Both numbers are configurable.",
    "burstiness": "Share of output bytes that arrived in the largest read or in reads ≤ 1 ms apart. "
    "Near 1: the response arrived almost at once.",
    "wasted": "Output tokens from the upstream that were not delivered, because the client had disconnected: the output "
    "tokens of an aborted stream × the undelivered share of its bytes. Known only if tokens were reported before the abort.",
    "aborted_tokens": "Output tokens of aborted streams, delivered or not, where they were reported.",
    "cached": "Input tokens served from the prompt cache / input tokens, over the streams that report both.",
    "concurrency": "Streams open at the same time, counted from their starts and ends.",
    "end": "End to end: end of the response body − t0.",
}


def metric_help(name: str, *, more: str = "") -> str:
    """The help text of a metric. Raises KeyError for an unknown name."""
    return f"{HELP[name]} {more}".strip()

"""Help texts of metrics over many streams. docs/reference/metrics.md has the full definitions.

The database's column comments (`reports.table_columns`) describe single columns. Metrics of one column have the help that it declares.
"""

from __future__ import annotations

from streamgauge.analytics.schema.dimensions import LEAST_LOOP
from streamgauge.analytics.schema.stream_columns import STREAM_COLUMNS

HELP: dict[str, str] = {
    **{name.removesuffix("_ns"): column.help for name, column in STREAM_COLUMNS.items() if column.help},
    "requests": "Finished requests that started in the time range, without those refused by the tap. "
    "Requests in flight are counted under In flight.",
    "diagnosis": "The places (model, gateway, client, tap, server instance) whose errors, answers, TTFT, ITL, stalls, losses, cache hits "
    "or waits for clients got worse than in the rest of the range and the period before it, and when that began. Red: an objective is "
    "missed. Orange: something got worse, and the objectives are met.",
    "active": "Streams in flight: opened at the tap and not yet ended (`open_streams`), regardless of the time range.",
    "error_rate": "Streams with an error outcome / (finished − client aborts − streams lost − refused by the tap). "
    "These three are shown separately.",
    "aborts": "The client disconnected before the terminal event (`client_abort`). Not an error of the upstream.",
    "refused": "The tap refused the request (`refused`): see `error_type`. Not an error of the upstream.",
    "tap_lost": "The tap died or dropped data, so the outcome is unknown (`tap_lost`). Not an error of the upstream.",
    "icl": "Inter-chunk latency: the gap between two output events of one choice. A chunk is not a token. "
    "Quantiles are over streams, with one value per stream.",
    "icl_pooled": "Inter-chunk latency: the gaps between two output events of one choice, of all streams together, by the minute "
    "in which their stream started. From roll-ups by minute, model and gateway. Quantiles are within 1 %.",
    "typical_answer": "TTFT p50 + ITL p50 × the remaining tokens of an answer of median length: that of all answers of the model.",
    "typical_cost": "Cost of 1,000 requests with the mean input and output tokens of the model, at what a token costs at this place, reads "
    "of the prompt cache included. So places with other prompts can be compared.",
    "tps_total": "Output tokens / seconds of the time range since the first stored data, over the streams that started in it and "
    "reported usage.",
    "goodput": "Streams per second that meet their objective (table `objectives`), as it was when they were stored. An unknown "
    "TTFT or ITL counts as a miss, and so does any outcome except ok.",
    "stall": "A gap between output events above max(500 ms, 5 × the median gap of the stream). Both numbers are configurable.",
    "undelivered": "Output tokens from the upstream that were not delivered, because the client had disconnected: the output "
    "tokens of an aborted stream × the undelivered share of its bytes. Known only if tokens were reported before the abort. "
    "Wasted tokens (Throughput, `wasted_tokens`) also have failed attempts, repeated requests and errors after output.",
    "wasted_tokens": "Tokens of answers without use: failed attempts of a gateway (`failed_attempt`), answers that the client requested "
    "again within 60 s (`retried`), output not delivered because the client disconnected (`client_left`), errors after output. Each token "
    "counts once. Only reported tokens are known; the cost of others is an estimate.",
    "cost": "Tokens × your prices (`spend`): an estimate, not a bill. In parentheses: the range, where tokens were not reported "
    "or a report contradicts itself. "
    "A hop counts once, at the model server.",
    "cost_estimate": "Share of the cost from requests whose tokens were not all reported: they are estimated from bytes and characters, as "
    "in other requests to the model. Low and high cover 90 % of those.",
    "cost_agent": "Cost in USD as the agent estimates it, with side calls (`turn_events`). Only Claude Code reports one.",
    "cost_reported": "Cost in USD that providers report for requests with a price in USD (`reported_cost`). The difference is how much "
    "it is above the cost of the same requests by your prices: it shows an old price, a missing one, or a discount.",
    "budget_forecast": "Spent + what the rest of the period costs like the same hours of the last 28 days. In parentheses: the range for "
    "90 %. Needs 3 days of data.",
    "budget_burn": "Spend of the last hour / the budget's mean per hour. 1 spends the budget exactly in its period.",
    "cache_money": "Saved: tokens read from the cache × (price of input - price of cached input). Paid for writes: tokens written × "
    "(price of the write - price of input). Wasted: the part for writes that no later request of the session (else client) read within "
    "5 min or 1 h.",
    "cache_misses": "The reason for most of the input tokens that the prompt cache missed (`cache_missed_tokens`): as the provider reports "
    "it, else by comparing prompts. Money: their price - the price of cached input.",
    "aborted_tokens": "Output tokens of aborted streams, delivered or not, where they were reported.",
    "cached": "Input tokens served from the prompt cache / input tokens, over the streams that report both.",
    "answer_tokens": "Output tokens of the answers of a model that ended ok, where reported. The number is the median over streams.",
    "length": "Share of the answers that ended at the limit of tokens, of those with a finish reason.",
    "refusal": "Share of the answers with a refusal, or that a content filter ended.",
    "empty": "Share of the answers without output, or, if they are streamed, without output that is not reasoning.",
    "tool_calls": "Share of the answers with a tool call.",
    "tool_arguments": "Share of the streams with a tool call whose arguments are no valid JSON.",
    "tool_failure": "Share of the streams with a tool call that failed, or one of whose tool calls failed.",
    "violation": "Streams that break a rule of clients with strict parsers, which fail or misread them: official SDKs, Vercel AI SDK, "
    "Codex, Claude Code. Most are no errors of the upstream: their outcome may be ok.",
    "hop_ttft": "TTFT of the stream between client and gateway − TTFT of the stream between gateway and model server. It includes "
    "the time before the gateway forwards the request, and failed attempts.",
    "hop_event": "Arrival of an output event at the client's tap − arrival of the same output from the model server, aligned by "
    "cumulative characters, because gateways merge and split chunks. Each stream has its own p50, p95 and maximum; the number "
    "is the median over streams.",
    "hop_tail": "From the end of the model server's response to the end of the gateway's.",
    "hop_buffered": "Share of the model server's output events that the gateway sent only after the next one had arrived. "
    "Median over streams.",
    "hop_lost": "From the start of a failed attempt to the start of the next one.",
    "hop_clock": "Bound of the error of the numbers that compare the clocks of two hosts. 0 if one tap process observed both "
    "streams.",
    "hop_matched": "Requests to a gateway for which the stream to the model server is known. A stream stays unmatched if no tap "
    "observes its other side, if the gateway answered without the model server, or if several streams fit equally well.",
    "blame_server": "Parts of the upstream's time as the server reports them, in the response or in its spans (`server_timing`).",
    "blame": "Time from t0 to the delivery of the response, by part. Upstream: the model server, and the network to it. Gateway: "
    "its time before forwarding and after the model server's end. Tap: from reading to writing. Client: sending its request, "
    "reading slowly, or receiving the rest after the end. The client of a stream behind a gateway is the gateway.",
    "session_time": "Model time + tool time + subagent time + user wait is the time from the first request to the end of the last one.",
    "session_model": "Time with a request of the session in flight.",
    "session_tool": "Pauses before requests of the same turn, mostly after tool calls: the client ran tools. Without subagent time.",
    "session_subagent": "The part of the pauses for tools in which a subagent was active. Its model and tool time are its own session's.",
    "session_user": "Pauses before the first request of a turn: waiting for the user.",
    "critical_path": "Time in which the turn waited for it: it was the last to end before the turn went on. The parts add up to the turn.",
    "reuse_available": "Share of the input tokens that a prompt cache could have had: within the lifetime of the cache, an earlier prompt "
    "to the same provider and model with the same key had the same prefix. Estimated.",
    "context": "Tokens of a part of the prompt: the reported input tokens are divided among the parts by bytes. Images and files "
    "weigh less than text. Without reported tokens: bytes × the median tokens per byte of the model.",
    "context_cost": "Tokens × the mean price of the session's input tokens (`spend`), including reads of the prompt cache.",
    "session_loop": f"The tool that a turn called most often with the same arguments and result, from {LEAST_LOOP} times on.",
    "session_unfinished": "Output tokens of requests that did not end ok.",
    "burn_rate": "Share of bad streams / error budget of the objective (`objectives`). 1 spends the budget exactly in its 30 days. "
    "Shown if a short and a long window burn too fast: page above 14.4 (1 h) or 6 (6 h), ticket above 1 (3 d).",
    "rate_limit": "What responses report as left of the provider's rate limit. Of several windows, the one with the smallest share left. A "
    "quota is a subscription's, of which only the used share is known.",
    "rate_limit_forecast": "When nothing is left at the rate of the last minutes. A window that resets before is no forecast, and there is "
    "none while traffic falls.",
    "concurrency": "Streams open at the same time, counted from their starts and ends.",
}


UNKNOWN = {
    "ttft": "has output",
    "itl": "has two output events and a reported number of output tokens",
    "tps_user": "has two output events and a reported number of output tokens",
    "tps_total": "reports its output tokens",
    "cached": "reports cached input tokens",
    "icl": "has two output events of one choice",
    "answer_tokens": "ended ok and reports its output tokens",
    "length": "ended ok with a finish reason",
    **dict.fromkeys(("refusal", "empty", "tool_calls"), "is an answer of a model that ended ok"),
    **dict.fromkeys(("tool_arguments", "tool_failure"), "has a tool call"),
    "error_rate": "ended by itself: all were aborted, lost or refused",
}
"""Metric → what all streams lack if the metric is unknown."""


def why_unknown(name: str) -> str:
    """Why a metric has no value in a selection with streams."""
    return f"No stream of this selection {UNKNOWN.get(name, 'has this value')}."


def metric_help(name: str, *, more: str = "") -> str:
    """The help text of a metric. Raises KeyError for an unknown name."""
    return f"{HELP[name]} {more}".strip()

"""Mixed traffic with known faults, as rows of `streams`. Deterministic for a seed.

Models, gateways and clients have different rates, latencies, prompts and failures. Load varies over the day and wanders at random, by
gateway. Without faults the traffic meets the default objectives. A fault acts at its time: it changes streams in flight from then on,
not only those that start later.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import polars as pl

from streamgauge.analytics.schema.prices import RATES

Array = npt.NDArray[np.float64]
S = 1e9


@dataclass(frozen=True)
class Model:
    name: str
    weight: float
    ttft_s: float
    itl_s: float
    tokens: float
    failing: float
    cached: float
    """Share of input tokens from the prompt cache. 0: the provider does not report it."""


MODELS = (
    Model("gpt-sim-large", 5, 0.6, 0.018, 220, 0.01, 0.6),
    Model("gpt-sim-mini", 8, 0.25, 0.007, 120, 0.005, 0.5),
    Model("claude-sim", 4, 0.9, 0.022, 300, 0.015, 0.75),
    Model("llama-sim-70b", 2, 0.4, 0.03, 180, 0.02, 0.0),
    Model("reasoner", 1.5, 0.9, 0.015, 600, 0.03, 0.4),
)
GATEWAYS = {"eu-gateway": 5.0, "us-gateway": 4.0, "direct": 2.0}
PRICES = [
    {
        "priority": 0,
        "model": "gpt-sim-mini",
        "currency": "USD",
        **dict.fromkeys(RATES, 0.0),
        "input": 0.3,
        "output": 1.5,
    },
    {
        "priority": 1,
        "model": "*",
        "currency": "USD",
        **dict.fromkeys(RATES, 0.0),
        "input": 3.0,
        "output": 15.0,
    },
]
"""Rows of the table `prices`."""
TEAM = "team"
"""Name of the label."""
TEAMS = {"search": 3.0, "ads": 2.0, "core": 2.0, "mobile": 2.0, "o'brien & co": 1.0}
"""Values of the label `team`."""
SUBSTITUTE = "other-sim-small"
"""The model that answers instead of the requested one."""
CLIENTS = 12
SERVERS = {"eu-gateway": 8, "us-gateway": 3, "direct": 4}
"""Server instances of each gateway."""
APPS = ("editor", "agent", "batch", "support", "web")
"""Programs. Most requests of a client are of one of them."""
OTHER_FAILURES = (
    ("http_error", 429, "rate_limit_exceeded"),
    ("http_error", 500, "server_error"),
    ("inband_error", 200, "overloaded_error"),
    ("upstream_reset", 200, "upstream_reset"),
    ("truncated", 200, "stream_truncated"),
)


def main_client(i: int) -> str:
    return uuid.uuid5(uuid.NAMESPACE_OID, f"client {i}").hex


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What changes at a place from `onset_s` on, in s from the begin of the range. Factors and shares of streams."""

    where: Mapping[str, str]
    onset_s: float
    ttft: float = 1.0
    itl: float = 1.0
    ramp_s: float = 0.0
    """Time until the factor of ITL is reached."""
    requests: float = 1.0
    outcome: str | None = None
    status: int = 200
    share: float = 0.0
    timeout_s: float = 0.0
    code: str = ""
    """The error type, if it is not that of the outcome."""
    with_tools: bool = False
    """Only streams with a tool call are affected."""
    stalled: float | None = None
    burst: float | None = None
    cached: float | None = None
    tokens: float = 1.0
    cut: float = 0.0
    """Share of the answers that end at the limit of tokens."""
    refused: float = 0.0
    wait_s: float = 0.0
    """Median time that a stream waits for its client."""
    is_hidden: bool = False
    """The waits are hidden by buffers: the tap's writes do not wait."""
    broken: float = 0.0
    """Share of the answers that break a rule of strict clients."""
    looping: float = 0.0
    """Share of the requests with tool results whose turn repeats a call and its result."""
    reordered: float = 0.0
    """Share of the requests whose prompt has its tools in another order than the one before, so the cache misses."""
    swapped: float = 0.0
    """Share of the answers that another model gives."""
    prompts: float = 1.0
    """Factor of the prompts at the end of the range. It grows from the onset on."""
    longer: float = 1.0
    """Factor of the prompts from the onset on."""
    reasoning: float = 1.0
    cut_at_s: float = 0.0
    """Age at which longer streams are reset."""
    finish: str = ""
    """Finish reason of `share` of the answers."""
    message: str = ""
    """The tap's exception."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How the number of requests changes, which is no fault."""

    growth: float = 1.0
    """Factor from the begin to the end."""
    day_s: float = 86400.0
    swing: float = 0.25
    asleep: tuple[int, float, float] | None = None
    """A client, and from when until when it sends nothing."""
    new_model_s: float | None = None
    """From when on a new model has half of the requests of another."""
    deployed_s: float | None = None
    """From when on each gateway has new server instances."""


def simulate(
    seed: int, *, since: datetime, length_s: float, earlier_s: float, rate: float, faults: Sequence[Fault] = (), load: Load = Load(),
) -> pl.DataFrame:  # fmt: skip
    """Rows of `streams` that started in [since − earlier_s, since + length_s) and ended before the end."""
    rng = np.random.default_rng(seed)
    streams = _requests(rng, length_s, earlier_s, rate, faults, load)
    _measure(rng, streams, faults)
    frame = _rows(rng, streams, since)
    end = since + timedelta(seconds=length_s)
    return frame.filter(pl.col("started_at") + pl.duration(nanoseconds="end_ns") < end).sort("started_at")


Streams = dict[str, npt.NDArray[np.generic]]


def _requests(
    rng: np.random.Generator, length_s: float, earlier_s: float, rate: float, faults: Sequence[Fault], load: Load
) -> Streams:  # fmt: skip
    """Start, model, gateway, client and tap of each request. Each client has favourite models."""
    peak = 1.35
    count = rng.poisson(rate * peak * (length_s + earlier_s))
    at = np.sort(rng.uniform(-earlier_s, length_s, count))
    day = 1 + load.swing * np.sin(2 * np.pi * (at / load.day_s + rng.uniform(0, 1)))
    day *= 1 + (load.growth - 1) * ((at + earlier_s) / (length_s + earlier_s) - 0.5)
    at = at[rng.uniform(0, peak, count) < day]
    clients = np.array([main_client(i) for i in range(CLIENTS)])
    weights = 1 / np.arange(1, CLIENTS + 1) ** 0.8
    client = rng.choice(CLIENTS, len(at), p=weights / weights.sum())
    extra = [
        (f, rng.uniform(f.onset_s, length_s, rng.poisson((f.requests - 1) * (length_s - f.onset_s) * rate * weights[c] / weights.sum())), c)
        for f in faults if f.requests > 1 for c in [int(np.flatnonzero(clients == f.where["client"])[0])]
    ]  # fmt: skip
    for _, times, c in extra:
        at, client = np.concatenate([at, times]), np.concatenate([client, np.full(len(times), c)])
    taste = rng.dirichlet(np.array([m.weight for m in MODELS]) * 1.5, CLIENTS)
    model = (rng.random(len(at))[:, None] > np.cumsum(taste[client], 1)).sum(1).clip(0, len(MODELS) - 1)
    shares = np.array(list(GATEWAYS.values())) / sum(GATEWAYS.values())
    gateway = rng.choice(len(GATEWAYS), len(at), p=shares)
    tap = np.where(rng.random(len(at)) < 0.55, "tap-1", "tap-2")
    if load.asleep is not None:
        c, begin, end = load.asleep
        awake = (client != c) | (at < begin) | (at >= end)
        at, client, model, gateway, tap = (a[awake] for a in (at, client, model, gateway, tap))
    names = np.array([m.name for m in MODELS], dtype="U16")[model], np.array(list(GATEWAYS))[gateway]
    if load.new_model_s is not None:
        names[0][(model == 1) & (at >= load.new_model_s) & (np.arange(len(at)) % 2 == 0)] = "new-model"
    server = np.array([f"{name}-{i % SERVERS[name]}" for i, name in enumerate(names[1])])
    if load.deployed_s is not None:
        server = np.where(at >= load.deployed_s, np.char.add(server, "-v2"), server)
    found: Streams = {
        "at": at,
        "model": names[0],
        "gateway": names[1],
        "client": clients[client],
        "tap": tap,
        "server": server,
    }
    # From numbers of its own: those of the other columns stay the same.
    team = np.random.default_rng(len(at)).choice(
        list(TEAMS), len(at), p=np.array(list(TEAMS.values())) / sum(TEAMS.values())
    )
    found["label"] = np.char.add("team=", team)
    draws = np.random.default_rng(len(at) + 1).random((2, len(at)))
    favourite = np.where(draws[0] < 0.8, client, (draws[1] * len(APPS)).astype(int)) % len(APPS)
    found["app"] = np.array(APPS)[favourite]
    return found | {"m": model, "g": gateway, "c": client}


def _at_place(streams: Streams, fault: Fault) -> npt.NDArray[np.bool_]:
    found = np.ones(len(streams["at"]), dtype=bool)
    for dimension, value in fault.where.items():
        if dimension == "size":
            number, unit = value.removeprefix("≥ ").split()
            found &= _request_bytes(streams) >= int(number) * {"KiB": 2**10, "MiB": 2**20}[unit]
        else:
            found &= streams[dimension] == value
    return found


def _request_bytes(streams: Streams) -> Array:
    return 4.5 * streams["input_tokens"].astype(float) + 300


def _load(rng: np.random.Generator, at: Array, gateway: npt.NDArray[np.int64]) -> Array:
    """A factor of latencies: it varies over the day, and wanders by gateway."""
    grid = np.arange(at.min() - 60, at.max() + 120, 60.0)
    load = 1 + 0.12 * np.sin(2 * np.pi * (at / 86400 + rng.uniform(0, 1)))
    for g in range(len(GATEWAYS)):
        noise, walk = rng.normal(0, 0.02, len(grid)), np.zeros(len(grid))
        for i in range(1, len(grid)):
            walk[i] = 0.9 * walk[i - 1] + noise[i]
        load = np.where(gateway == g, load * np.exp(np.interp(at, grid, walk)), load)
    return load


def _measure(rng: np.random.Generator, s: Streams, faults: Sequence[Fault]) -> None:
    """Latencies, tokens and outcomes, with the faults."""
    at: Array = s["at"].astype(float)
    n, m = len(at), s["m"]

    def of_model(name: str) -> Array:
        return np.array([getattr(model, name) for model in MODELS], dtype=float)[m]

    load = _load(rng, at, s["g"].astype(int))
    prompts = np.exp(np.random.default_rng(1).normal(0, 0.5, CLIENTS))[s["c"].astype(int)]
    s["input_tokens"] = np.maximum(8, 900 * prompts * rng.lognormal(0, 0.9, n)).astype(np.int64)
    for fault in faults:
        if fault.prompts != 1:
            grown = np.clip((at - fault.onset_s) / np.maximum(at.max() - fault.onset_s, 1), 0, 1)
            longer = np.where(_at_place(s, fault), fault.prompts**grown, 1)
            s["input_tokens"] = (s["input_tokens"] * longer).astype(np.int64)
        if fault.longer != 1:
            here = _at_place(s, fault) & (at >= fault.onset_s)
            s["input_tokens"] = np.where(here, s["input_tokens"] * fault.longer, s["input_tokens"]).astype(
                np.int64
            )
    noise = rng.lognormal(0, 0.35, n)
    itl = of_model("itl_s") * load * rng.lognormal(0, 0.2, n)
    tokens = np.maximum(3, of_model("tokens") * rng.lognormal(0, 0.7, n)).astype(np.int64)
    cached = np.clip(of_model("cached") + rng.normal(0, 0.25, n), 0, 1)
    uncached = s["input_tokens"] * (1 - cached)
    ttft = of_model("ttft_s") * load * (0.88 + 0.12 * uncached / 360) * noise
    # Its own draws: the other values of a seed do not depend on it.
    answers = rng.spawn(1)[0]
    finish, refused, tools, tokens = _answers(answers, s, at, tokens, faults)
    stalled, burst = rng.random(n) < 0.015, rng.random(n) < 0.01
    fault_at, outcome = np.full(n, np.nan), np.full(n, "ok", dtype="U16")
    status, kind = np.full(n, 200), np.full(n, "", dtype="U24")
    for fault in faults:
        here = _at_place(s, fault)
        late = here & (at + ttft / 2 >= fault.onset_s)
        ttft = np.where(late, ttft * fault.ttft, ttft)
        if fault.cached is not None:
            cached = np.where(here & (at >= fault.onset_s), cached * fault.cached, cached)
        begin, length = at + ttft, itl * tokens
        # the mean of the factor over the output: streams in flight at the onset are affected in part
        points = begin[:, None] + length[:, None] * np.linspace(0, 1, 9)
        factor = np.clip((points - fault.onset_s) / max(fault.ramp_s, 1e-6), 0, 1).mean(1)
        itl = np.where(here, itl * (1 + (fault.itl - 1) * factor), itl)
        affected = np.clip((begin + length - fault.onset_s) / np.maximum(length, 1e-6), 0, 1)
        if fault.stalled is not None:
            stalled |= here & (rng.random(n) < fault.stalled * affected)
        if fault.burst is not None:
            burst |= here & (at + ttft >= fault.onset_s) & (rng.random(n) < fault.burst)
    end = ttft + itl * tokens
    # usual failures, then those of faults
    fails = rng.random(n) < of_model("failing")
    which = rng.integers(0, len(OTHER_FAILURES), n)
    for i, (name, code, error) in enumerate(OTHER_FAILURES):
        chosen = fails & (which == i)
        outcome[chosen], status[chosen], kind[chosen] = name, code, error
        fault_at[chosen] = np.where(name == "http_error", 0.1, ttft * 0 + end * rng.uniform(0.2, 0.9, n))[
            chosen
        ]
    outcome[(outcome == "ok") & (rng.random(n) < 0.03)] = "client_abort"
    for fault in faults:
        if fault.outcome is None:
            continue
        here = _at_place(s, fault) & (rng.random(n) < fault.share) & (tools | (not fault.with_tools))
        if fault.outcome in ("http_error", "connect_error"):
            here &= at >= fault.onset_s
            when = rng.uniform(0.01, 0.12, n)
        elif fault.outcome == "tap_lost":
            here &= at + end >= fault.onset_s
            when = end
        else:
            here &= at + end >= fault.onset_s
            low = np.maximum(0, fault.onset_s - at)
            when = low + rng.uniform(0, 1, n) * np.maximum(end - low, 0.01)
            if fault.timeout_s:  # silent from the onset on
                when = low + fault.timeout_s
                s["silent_from"] = np.where(here, low, np.nan)
        outcome[here], status[here], fault_at[here] = fault.outcome, fault.status, when[here]
        kind[here] = fault.code or ("rate_limit_exceeded" if fault.status == 429 else fault.outcome)
    for fault in faults:
        if fault.cut_at_s:
            here = _at_place(s, fault) & (end > fault.cut_at_s) & (at + fault.cut_at_s >= fault.onset_s)
            outcome[here], kind[here] = "upstream_reset", "upstream_reset"
            fault_at[here] = fault.cut_at_s + 0.2 * rng.random(n)[here]
    draws = np.random.default_rng(4).random((2, n))
    reasoning = np.where(
        np.isin(s["model"], ["reasoner", "claude-sim"]),
        np.exp(5 + 0.5 * np.sqrt(-2 * np.log(1 - draws[0])) * np.cos(6.283 * draws[1])),
        0,
    )
    message = np.full(n, "", dtype="U24")
    for fault in faults:
        here = _at_place(s, fault) & (at >= fault.onset_s)
        reasoning = np.where(here, reasoning * fault.reasoning, reasoning)
        message[here] = fault.message
        if fault.finish:
            finish = np.where(here & (draws[0] < fault.share), fault.finish, finish)
    s |= {"reasoning": reasoning, "message": message}
    s["served"] = np.char.add(s["model"].astype(str), np.where(s["m"].astype(int) % 2, "-2026-01-05", ""))
    draws = np.random.default_rng(3).random(n)
    repeats = np.where(draws < 0.004, 3, 1 + (draws > 0.95))
    for fault in faults:
        here = _at_place(s, fault) & (at >= fault.onset_s)
        repeats = np.where(here & (draws < fault.looping), 3 + (20 * draws).astype(int), repeats)
        s["served"] = np.where(here & (draws < fault.swapped), SUBSTITUTE, s["served"])
    usual = draws < 0.01
    changed = np.where(usual, "message 3", "")
    for fault in faults:
        here = _at_place(s, fault) & (at >= fault.onset_s) & (draws < fault.reordered)
        changed = np.where(here, "order of tools", changed)
        cached = np.where(here, cached * 0.05, cached)
    s["changed"] = changed
    broken = draws < 0.005
    for fault in faults:
        broken |= _at_place(s, fault) & (at + end >= fault.onset_s) & (draws < fault.broken)
    s |= {"broken": broken, "repeats": np.where(tools, repeats, 0), "ttft": ttft, "itl": itl, "tokens": tokens,
          "cached": cached, "stalled": stalled, "burst": burst, "end": end,
          "outcome": outcome, "status": status, "kind": kind, "fault_at": fault_at, "finish": finish, "refused": refused, "tools": tools,
          **_waits(answers, s, at + end, faults), "malformed": tools & (answers.random(n) < 0.01)}  # fmt: skip


def _answers(
    rng: np.random.Generator, s: Streams, at: Array, tokens: npt.NDArray[np.int64], faults: Sequence[Fault]
) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Finish reason, refusal, tool call and tokens of each answer. Each client has its own use of tools."""
    n, length = len(at), tokens.astype(float)
    uses_tools = np.random.default_rng(2).beta(0.6, 0.8, CLIENTS)[s["c"].astype(int)]
    tools, cut, refused = rng.random(n) < uses_tools, rng.random(n) < 0.05, rng.random(n) < 0.01
    for fault in faults:
        here = _at_place(s, fault) & (at >= fault.onset_s)
        length = np.where(here, length * fault.tokens, length)
        cut |= here & (rng.random(n) < fault.cut)
        refused |= here & (rng.random(n) < fault.refused)
    length = np.where(refused, rng.uniform(15, 60, n), np.where(cut, length * 0.6, length))
    tools &= ~refused
    finish = np.select([refused, cut, tools], ["content_filter", "length", "tool_calls"], "stop")
    return finish, refused, tools, np.maximum(3, length).astype(np.int64)


def _waits(rng: np.random.Generator, s: Streams, ended_s: Array, faults: Sequence[Fault]) -> Streams:
    """Time in s that the tap waits for the client of each stream, usually some ms, and that buffers still hold the answer after its end."""
    waits = np.where(rng.random(len(ended_s)) < 0.02, rng.exponential(1.0, len(ended_s)), 0.002)
    hidden = np.zeros(len(ended_s))
    for fault in faults:
        if fault.wait_s:
            here = _at_place(s, fault) & (ended_s >= fault.onset_s)
            wait = fault.wait_s * rng.lognormal(0, 0.7, len(ended_s))
            waits = np.where(here & (not fault.is_hidden), wait, waits)
            hidden = np.where(here & fault.is_hidden, wait, hidden)
    return {"waits": waits, "hidden": hidden}


def _rows(rng: np.random.Generator, s: Streams, since: datetime) -> pl.DataFrame:
    n = len(s["at"])
    at, ttft, itl, end = (s[c].astype(float) for c in ("at", "ttft", "itl", "end"))
    ended = np.where(np.isnan(s["fault_at"].astype(float)), end, s["fault_at"].astype(float))
    got = np.minimum(ended, end)
    silent = s.get("silent_from")
    if silent is not None:
        got = np.where(np.isnan(silent.astype(float)), got, silent.astype(float))
    burst = s["burst"].astype(bool)
    has_output = (ttft < got) & (s["outcome"] != "tap_lost")
    ttft = np.where(burst, end, ttft)
    has_output &= ~burst | (s["outcome"] == "ok")
    share = np.clip((got - ttft) / np.maximum(end - ttft, 1e-9), 0, 1)
    tokens = np.where(burst, s["tokens"], np.maximum(2, s["tokens"].astype(float) * share)).astype(np.int64)
    ids = [uuid.UUID(bytes=b).hex for b in np.frombuffer(rng.bytes(16 * n), dtype="V16").tolist()]
    ids = [f"{i[:8]}-{i[8:12]}-7{i[13:16]}-8{i[17:20]}-{i[20:]}" for i in ids]
    stalled = s["stalled"].astype(bool) & ~burst
    output = pl.Series(has_output)

    def ns(seconds: Array) -> pl.Series:
        return pl.Series((seconds * S).astype(np.int64))

    start_us = (at * 1e6).astype(np.int64)
    frame = pl.DataFrame({
        "stream_id": ids, "gateway": s["gateway"], "tap": s["tap"], "server_instance": s["server"],
        "client_id": s["client"], "dialect": ["openai_chat"] * n,
        "operation": ["chat"] * n, "path": ["/v1/chat/completions"] * n, "request_model": s["model"], "response_model": s["served"],
        "outcome": s["outcome"],
        "http_status": s["status"].astype(np.int16), "error_type": s["kind"], "streamed": np.full(n, True),
        "started_at": pl.Series(start_us + int(since.timestamp() * 1e6)).cast(pl.Datetime("us", "UTC")),
        "request_sent_ns": np.full(n, 500_000), "end_ns": ns(ended), "input_tokens": s["input_tokens"],
        "ttft_ns": ns(ttft), "last_output_ns": ns(np.maximum(got, ttft)), "itl_ns": np.where(burst, 20_000.0, itl * S),
        "output_tokens": tokens, "output_event_count": tokens, "event_count": tokens + 3,
        "cached_input_tokens": (s["cached"].astype(float) * s["input_tokens"].astype(float)).astype(np.int64),
        "stall_count": stalled.astype(np.int32), "burstiness": np.where(burst, 0.98, rng.uniform(0.01, 0.2, n)),
        "client_app": s["app"], "request_bytes": _request_bytes(s).astype(np.int64), "error_message": s["message"],
        "reasoning_tokens": s["reasoning"].astype(np.int64),
        "objective": ["default"] * n, "finish_reason": s["finish"], "refusal_chars": np.where(s["refused"], 80, 0), "ttfo_ns": ns(ttft),
        "tool_call_count": s["tools"].astype(np.int32), "tool_failure_count": np.zeros(n, np.int32),
        "tool_repeats": s["repeats"].astype(np.int32), "repeated_tool": ["read_file"] * n,
        "malformed_tool_call_count": s["malformed"].astype(np.int32), "waited_client_ns": ns(s["waits"].astype(float)),
        "delivered_ns": ns(ended + s["hidden"].astype(float)),
        "cache_miss_segment": s["changed"],
        "cache_miss_reason": np.where(s["changed"] == "message 3", "messages_changed", "tools_changed"),
        "cache_missed_tokens": (0.6 * s["input_tokens"].astype(float)).astype(np.int64),
        "labels": pl.Series([{"team": text.partition("=")[2]} for text in s["label"].tolist()], dtype=pl.Map(pl.String, pl.String)),
        "violations": pl.Series([["missing_choices"] if b else [] for b in s["broken"]], dtype=pl.List(pl.String)),
    })  # fmt: skip
    reports_cache = [m.name for m in MODELS if m.cached]
    blank = [
        "ttft_ns", "last_output_ns", "itl_ns", "output_tokens", "output_event_count", "event_count", "stall_count", "burstiness",
        "cached_input_tokens", "refusal_chars", "ttfo_ns", "tool_call_count", "tool_failure_count", "malformed_tool_call_count",
    ]  # fmt: skip
    frame = frame.with_columns(
        pl.when(pl.col("tool_repeats") > 0).then(pl.col("tool_repeats", "repeated_tool"))
    )
    frame = frame.with_columns(pl.when(pl.col("cache_miss_segment") != "").then(pl.col("^cache_miss.*$")))
    ok = pl.col("outcome") == "ok"
    return frame.with_columns(
        *(pl.when(output).then(pl.col(c)).alias(c) for c in blank),
        pl.when(~ok).then("error_type").alias("error_type"),
        pl.when(pl.col("outcome") == "connect_error").then("error_message").alias("error_message"),
        pl.when(ok & (pl.col("reasoning_tokens") > 0)).then("reasoning_tokens").alias("reasoning_tokens"),
        pl.when(ok).then("finish_reason").alias("finish_reason"),
        pl.when(ok).then(None).when(~output).then(pl.lit("pre_headers")).otherwise(pl.lit("mid_stream")).alias("error_phase"),
        pl.when(pl.col("outcome").is_in(["connect_error", "tap_lost"])).then(None).otherwise("http_status").alias("http_status"),
    ).with_columns(
        pl.when(pl.col("request_model").is_in(reports_cache)).then("cached_input_tokens").alias("cached_input_tokens"),
        (ok & (pl.col("ttft_ns") <= 2e9) & (pl.col("itl_ns") <= 1e8)).alias("meets_objective"),
        (1e9 / pl.col("itl_ns")).alias("tps_user"),
    )  # fmt: skip

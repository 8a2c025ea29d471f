"""The incidents of the bench: what fails or gets slow, where and how much, and whether a diagnosis names it.

Places and sizes are drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import numpy as np

from bench.diagnosis.traffic import (
    APPS,
    GATEWAYS,
    MODELS,
    SERVERS,
    SUBSTITUTE,
    TEAMS,
    Fault,
    Load,
    main_client,
)
from streamgauge.analytics.diagnosis.diagnosis import Cause, Diagnosis
from streamgauge.analytics.diagnosis.metrics import metrics
from streamgauge.analytics.schema.objectives import DEFAULT

TOLERANCE_S = 15.0
"""Largest error of an onset."""
LEAST_RISE = 0.05
"""Of a drift, the onset is not known better than this rise, because load wanders as much."""


@dataclass(frozen=True)
class Expected:
    """What a diagnosis has to name: one of the metrics' families, the place, and the onset in s from the begin of the range."""

    families: tuple[str, ...]
    where: Mapping[str, str]
    onset_s: float
    evidence: str = ""
    """Part of one of the evidences."""
    tolerance_s: float = TOLERANCE_S


@dataclass(frozen=True)
class StagedIncident:
    faults: tuple[Fault, ...]
    expected: tuple[Expected, ...]
    load: Load = field(default_factory=Load)


Draw = np.random.Generator


def _model(rng: Draw) -> str:
    return str(rng.choice([m.name for m in MODELS]))


def _gateway(rng: Draw) -> str:
    return str(rng.choice(list(GATEWAYS)))


def _one(family: str, where: dict[str, str], onset_s: float, **fault: float | str) -> StagedIncident:
    return StagedIncident(
        (Fault(where=where, onset_s=onset_s, **fault),),  # type: ignore[arg-type]
        (Expected((family,), where, onset_s),),
    )


def rate_limited_model(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": _model(rng)} | ({"gateway": _gateway(rng)} if rng.random() < 0.7 else {})
    return _one("failure", where, onset_s, outcome="http_error", status=429, share=rng.uniform(0.3, 0.9))


def slow_gateway(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    factor = rng.uniform(1.8, 4)
    incident = _one(
        "ttft", {"gateway": _gateway(rng)}, onset_s, ttft=factor, itl=1 + (factor - 1) * rng.uniform(0.5, 1)
    )
    return StagedIncident(incident.faults, (Expected(("ttft", "itl"), incident.faults[0].where, onset_s),))


def hammering_client(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"client": main_client(int(rng.integers(1, 8)))}
    return _one(
        "failure", where, onset_s, outcome="http_error", status=429, share=rng.uniform(0.4, 0.8), requests=rng.uniform(6, 15),
    )  # fmt: skip


def ttft_step(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one("ttft", {"model": _model(rng)}, onset_s, ttft=rng.uniform(1.6, 4))


def itl_drift(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": _model(rng)} if rng.random() < 0.5 else {"gateway": _gateway(rng)}
    return _drift(where, onset_s / 2, itl=rng.uniform(2, 3.5), ramp_s=length_s - onset_s / 2)


def _drift(where: dict[str, str], onset_s: float, *, itl: float, ramp_s: float) -> StagedIncident:
    tolerance_s = max(TOLERANCE_S, LEAST_RISE * ramp_s / (itl - 1))
    return StagedIncident(
        (Fault(where=where, onset_s=onset_s, itl=itl, ramp_s=ramp_s),),
        (Expected(("itl",), where, onset_s, tolerance_s=tolerance_s),),
    )


def stalls(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"gateway": _gateway(rng)} if rng.random() < 0.5 else {"model": _model(rng)}
    return _one("stall", where, onset_s, stalled=rng.uniform(0.2, 0.5))


def truncations(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": _model(rng)} | ({"gateway": _gateway(rng)} if rng.random() < 0.5 else {})
    return _one("failure", where, onset_s, outcome="truncated", share=rng.uniform(0.2, 0.6))


def dead_upstream(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    is_silent = rng.random() < 0.5
    return _one(
        "failure", {"gateway": _gateway(rng)}, onset_s, outcome="idle_timeout" if is_silent else "connect_error", share=1.0,
        timeout_s=30.0,
    )  # fmt: skip


def losing_tap(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"tap": f"tap-{rng.integers(1, 3)}"}
    return _one("loss", where, onset_s, outcome="tap_lost", share=rng.uniform(0.05, 0.3))


def fake_streaming(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"gateway": _gateway(rng)} | ({"model": _model(rng)} if rng.random() < 0.3 else {})
    return _one("burst", where, onset_s, burst=rng.uniform(0.7, 1))


def lost_cache(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": str(rng.choice([m.name for m in MODELS if m.cached]))}
    where |= {"gateway": _gateway(rng)} if rng.random() < 0.5 else {}
    return _one("cache", where, onset_s, cached=rng.uniform(0, 0.2), ttft=rng.uniform(1.1, 1.6))


def two_at_once(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    first = rate_limited_model(rng, onset_s, length_s)
    second = slow_gateway(rng, min(onset_s * rng.uniform(0.6, 1.3), 0.9 * length_s), length_s)
    return StagedIncident(first.faults + second.faults, first.expected + second.expected)


def _model_and_gateway(rng: Draw) -> dict[str, str]:
    return {"model": _model(rng)} | ({"gateway": _gateway(rng)} if rng.random() < 0.5 else {})


def cut_answers(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one("length", _model_and_gateway(rng), onset_s, cut=rng.uniform(0.2, 0.6))


def shorter_answers(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one("output", _model_and_gateway(rng), onset_s, tokens=rng.uniform(0.35, 0.6))


def refusals(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one("refusal", _model_and_gateway(rng), onset_s, refused=rng.uniform(0.1, 0.5))


def tool_failures(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": _model(rng)}
    fault = Fault(
        where=where, onset_s=onset_s, outcome="inband_error", share=rng.uniform(0.4, 0.9), code="tool_parser_error", with_tools=True,
    )  # fmt: skip
    return StagedIncident((fault,), (Expected(("failure",), where, onset_s, "only with a tool call"),))


def error_code(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where, code = _model_and_gateway(rng), f"code_{rng.integers(1000)}"
    outcome, status = (("http_error", 400), ("http_error", 503), ("inband_error", 200))[rng.integers(3)]
    fault = Fault(
        where=where, onset_s=onset_s, outcome=outcome, status=status, share=rng.uniform(0.15, 0.6), code=code
    )
    return StagedIncident((fault,), (Expected(("failure",), where, onset_s, code),))


def slow_client(rng: Draw, onset_s: float, length_s: float, *, is_hidden: bool = False) -> StagedIncident:
    where = {"client": main_client(int(rng.integers(1, 8)))}
    return _one("slow_client", where, onset_s, wait_s=rng.uniform(3, 10), is_hidden=is_hidden)


def lost_cache_same_ttft(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": str(rng.choice([m.name for m in MODELS if m.cached]))}
    return _one("cache", where, onset_s, cached=rng.uniform(0, 0.2))


def strict_clients(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"gateway": _gateway(rng)}
    fault = Fault(where=where, onset_s=onset_s, broken=rng.uniform(0.3, 1.0))
    return StagedIncident(
        (fault,), (Expected(("violation",), where, onset_s, "breaks OpenAI SDK for Python"),)
    )


def one_server(
    rng: Draw, onset_s: float, length_s: float, *, gateway: str = "", fails: bool
) -> StagedIncident:
    gateway = gateway or _gateway(rng)
    where = {"server": f"{gateway}-{rng.integers(SERVERS[gateway])}"}
    if not fails:
        return _one("ttft", where, onset_s, ttft=rng.uniform(1.8, 4))
    return _one("failure", where, onset_s, outcome="http_error", status=503, share=rng.uniform(0.15, 0.6))


def unreachable(rng: Draw, onset_s: float, length_s: float, *, error: str) -> StagedIncident:
    where = {"gateway": _gateway(rng)} | ({"model": _model(rng)} if rng.random() < 0.3 else {})
    fault = Fault(
        where=where, onset_s=onset_s, outcome="connect_error", share=rng.uniform(0.4, 1.0), message=error
    )
    return StagedIncident((fault,), (Expected(("failure",), where, onset_s, "connect_error"),))


def resets(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one(
        "failure", _model_and_gateway(rng), onset_s, outcome="upstream_reset", share=rng.uniform(0.3, 0.7)
    )


def silence(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one(
        "failure",
        {"gateway": _gateway(rng)},
        onset_s,
        outcome="idle_timeout",
        share=rng.uniform(0.3, 0.8),
        timeout_s=30.0,
    )


def cut_at_one_age(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    """Connections are cut at one age, besides resets at other ages that are usual."""
    where = {"gateway": _gateway(rng)}
    usual = Fault(where={}, onset_s=-length_s, outcome="upstream_reset", share=0.02)
    age_s = float(rng.choice([5, 8, 10]))
    fault = Fault(where=where, onset_s=onset_s, cut_at_s=age_s)
    return StagedIncident((usual, fault), (Expected(("failure",), where, onset_s, f"end at {age_s:.0f} s"),))


def at_app(rng: Draw, onset_s: float, length_s: float, *, with_model: bool = False) -> StagedIncident:
    where = {"app": str(rng.choice(APPS))} | ({"model": _model(rng)} if with_model else {})
    return _one("failure", where, onset_s, outcome="http_error", status=400, share=rng.uniform(0.3, 0.8))


def server_and_model(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    gateway = _gateway(rng)
    where = {"server": f"{gateway}-{rng.integers(SERVERS[gateway])}", "model": MODELS[rng.integers(3)].name}
    return _one("failure", where, onset_s, outcome="http_error", status=500, share=rng.uniform(0.6, 1.0))


def at_label(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"label": f"team={rng.choice(list(TEAMS))}"}
    return _one("failure", where, onset_s, outcome="http_error", status=403, share=rng.uniform(0.3, 0.8))


def at_size(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"size": f"≥ {rng.choice([8, 16])} KiB"}
    return _one("failure", where, onset_s, outcome="http_error", status=413, share=rng.uniform(0.7, 1.0))


def finish_reason(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one(
        "finish",
        _model_and_gateway(rng),
        onset_s,
        finish="malformed_function_call",
        share=rng.uniform(0.15, 0.6),
    )


def more_reasoning(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"model": str(rng.choice(["reasoner", "claude-sim"]))}
    return _one("reasoning", where, onset_s, reasoning=rng.uniform(2, 4))


def long_prompts(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"app": str(rng.choice(APPS))}
    return _one("prompts", where, onset_s, longer=rng.uniform(3, 8))


def cost_step(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"label": f"team={rng.choice(list(TEAMS))}"}
    return _one("cost", where, onset_s, tokens=rng.uniform(3, 6))


def spending_client(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    return _one(
        "spend", {"client": main_client(int(rng.integers(0, 8)))}, onset_s, requests=rng.uniform(8, 15)
    )


def slow_rise(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    """1 % a minute, or so much that the end is above the least change."""
    where = {"gateway": _gateway(rng)}
    ramp_s = 0.8 * length_s
    return _drift(where, 0.2 * length_s, itl=max(1 + 0.01 * ramp_s / 60, 1.6), ramp_s=ramp_s)


def two_failures(rng: Draw, onset_s: float, length_s: float, *, same: bool) -> StagedIncident:
    """Two places fail at nearly the same time, in the same way or not."""
    first, second = rng.choice(list(GATEWAYS), 2, replace=False)
    at_model = {"model": MODELS[rng.integers(3)].name}
    places = [{"gateway": str(first)}, {"gateway": str(second)} if same else at_model]
    statuses = (503, 503 if same else 429)
    faults = [
        Fault(
            where=w,
            onset_s=onset_s + k * rng.uniform(0, 20),
            outcome="http_error",
            status=status,
            share=rng.uniform(0.4, 0.7),
        )
        for k, (w, status) in enumerate(zip(places, statuses, strict=True))
    ]
    return StagedIncident(tuple(faults), tuple(Expected(("failure",), f.where, f.onset_s) for f in faults))


def two_kinds(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    """A server instance fails, and a model is slow."""
    first = one_server(rng, onset_s, length_s, fails=True)
    second = ttft_step(rng, onset_s + rng.uniform(0, 30), length_s)
    return StagedIncident(first.faults + second.faults, first.expected + second.expected)


def other_model(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = _model_and_gateway(rng)
    fault = Fault(where=where, onset_s=onset_s, swapped=rng.uniform(0.3, 1.0), tokens=rng.uniform(0.5, 1.0))
    return StagedIncident((fault,), (Expected(("other_model",), where, onset_s, f"by {SUBSTITUTE}"),))


def looping_agent(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"client": main_client(int(rng.integers(0, 5)))}
    fault = Fault(where=where, onset_s=onset_s, looping=rng.uniform(0.4, 1.0))
    return StagedIncident((fault,), (Expected(("loop",), where, onset_s, "read_file called"),))


def reordered_tools(rng: Draw, onset_s: float, length_s: float) -> StagedIncident:
    where = {"app": str(rng.choice(APPS))}
    fault = Fault(where=where, onset_s=onset_s, reordered=rng.uniform(0.3, 1.0))
    return StagedIncident(
        (fault,), (Expected(("prompt_changed",), where, onset_s, "order of tools (tools_changed)"),)
    )


def healthy(number: int, length_s: float) -> StagedIncident:
    """Traffic without an incident: plain, with growth, longer prompts, day and night, a client that always reads slowly, a client that
    sleeps, a new model, or new server instances."""
    rng, kind = np.random.default_rng(number), number % 8
    begin_s = -length_s
    faults = {
        2: Fault(where={}, onset_s=begin_s, prompts=rng.uniform(1.5, 2.5)),
        4: Fault(
            where={"client": main_client(int(rng.integers(0, 5)))}, onset_s=begin_s, wait_s=rng.uniform(1, 10)
        ),
    }
    at_s = rng.uniform(-0.5, 0.8) * length_s
    loads = {
        1: Load(growth=rng.uniform(1.3, 1.7)), 3: Load(day_s=length_s * rng.uniform(0.7, 3), swing=0.35),
        5: Load(asleep=(int(rng.integers(0, 5)), begin_s, at_s)), 6: Load(new_model_s=at_s), 7: Load(deployed_s=at_s),
    }  # fmt: skip
    return StagedIncident((faults[kind],) if kind in faults else (), (), loads.get(kind, Load()))


INCIDENTS: dict[str, Callable[[Draw, float, float], StagedIncident]] = {
    "one model's 429s": rate_limited_model,
    "one gateway slow": slow_gateway,
    "one client hammering": hammering_client,
    "TTFT step": ttft_step,
    "slow drift of ITL": itl_drift,
    "stalls": stalls,
    "truncations after a deploy": truncations,
    "upstream dead": dead_upstream,
    "tap losing data": losing_tap,
    "fake streaming": fake_streaming,
    "cache lost": lost_cache,
    "two at once": two_at_once,
    "answers cut at the limit": cut_answers,
    "shorter answers": shorter_answers,
    "refusals": refusals,
    "tool failures": tool_failures,
    "error code": error_code,
    "slow client, large answers": slow_client,
    "slow client, small answers": partial(slow_client, is_hidden=True),
    "cache lost, same TTFT": lost_cache_same_ttft,
    "strict clients break": strict_clients,
    "another model answers": other_model,
    "agent in a loop": looping_agent,
    "tools reordered": reordered_tools,
    "one server slow": partial(one_server, fails=False),
    "one server fails": partial(one_server, fails=True),
    "one of 3 servers slow": partial(one_server, gateway="us-gateway", fails=False),
    "one of 3 servers fails": partial(one_server, gateway="us-gateway", fails=True),
    "one of 8 servers slow": partial(one_server, gateway="eu-gateway", fails=False),
    "one of 8 servers fails": partial(one_server, gateway="eu-gateway", fails=True),
    "connections refused": partial(unreachable, error="ConnectionRefusedError"),
    "names not resolved": partial(unreachable, error="gaierror"),
    "TLS fails": partial(unreachable, error="SSLCertVerificationError"),
    "resets": resets,
    "silence": silence,
    "cut at one age": cut_at_one_age,
    "one app fails": at_app,
    "one app with a model fails": partial(at_app, with_model=True),
    "one server with a model fails": server_and_model,
    "one label fails": at_label,
    "large requests fail": at_size,
    "unusual finish reason": finish_reason,
    "more reasoning": more_reasoning,
    "long prompts of an app": long_prompts,
    "cost of a label": cost_step,
    "spend of a client": spending_client,
    "1 % a minute": slow_rise,
    "two failures, one kind": partial(two_failures, same=True),
    "two failures, two kinds": partial(two_failures, same=False),
    "server fails, model slow": two_kinds,
}


FAMILIES = {name: metric.family for name, metric in metrics([DEFAULT]).items()} | {
    "cut": "failure",
    "spend": "spend",
}


def judge(
    diagnosis: Diagnosis, expected: Sequence[Expected], begin: datetime | None = None
) -> tuple[bool, tuple[float, ...]]:
    """Whether the first causes are the expected ones, in any order, and the errors of their onsets.

    `begin`: onsets are in s from it. None: from the begin of the range.
    """
    first, errors_s = list(diagnosis.causes[: len(expected)]), []
    for one in expected:
        match = next((c for c in first if matches(c, one)), None)
        if match is None:
            return False, tuple(errors_s)
        first.remove(match)
        onset_s = (match.onset - (begin or diagnosis.since)).total_seconds() if match.onset else float("inf")
        errors_s.append(onset_s - one.onset_s)
    return True, tuple(errors_s)


def is_quiet(diagnosis: Diagnosis, incident: StagedIncident) -> bool:
    """Whether the diagnosis of healthy traffic names no change for the worse. Longer prompts that make TTFT miss its objective are
    named as what they are."""
    has_longer_prompts = any(fault.prompts > 1 for fault in incident.faults)
    return diagnosis.state == "healthy" or (
        has_longer_prompts
        and all(c.kind == "traffic" and "prompts" in c.evidence[0] for c in diagnosis.causes)
    )


def matches(cause: Cause, expected: Expected) -> bool:
    """Whether a cause is the expected one, whenever it began."""
    is_metric = FAMILIES[cause.metric] in expected.families
    has_evidence = not expected.evidence or any(expected.evidence in fact for fact in cause.evidence)
    return dict(cause.where) == dict(expected.where) and is_metric and has_evidence

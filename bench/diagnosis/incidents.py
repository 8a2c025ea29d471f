"""The twelve incidents of the bench: what fails or gets slow, where and how much. Places and sizes are drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bench.diagnosis.traffic import GATEWAYS, MODELS, Fault, main_client


@dataclass(frozen=True)
class Expected:
    """What a diagnosis has to name: one of the metrics' families, the place, and the onset in s from the begin of the range."""

    families: tuple[str, ...]
    where: Mapping[str, str]
    onset_s: float


@dataclass(frozen=True)
class Incident:
    faults: tuple[Fault, ...]
    expected: tuple[Expected, ...]


Draw = np.random.Generator


def _model(rng: Draw) -> str:
    return str(rng.choice([m.name for m in MODELS]))


def _gateway(rng: Draw) -> str:
    return str(rng.choice(list(GATEWAYS)))


def _one(family: str, where: dict[str, str], onset_s: float, **fault: float | str) -> Incident:
    return Incident(
        (Fault(where=where, onset_s=onset_s, **fault),),  # type: ignore[arg-type]
        (Expected((family,), where, onset_s),),
    )


def rate_limited_model(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"model": _model(rng)} | ({"gateway": _gateway(rng)} if rng.random() < 0.7 else {})
    return _one("failure", where, onset_s, outcome="http_error", status=429, share=rng.uniform(0.3, 0.9))


def slow_gateway(rng: Draw, onset_s: float, length_s: float) -> Incident:
    factor = rng.uniform(1.8, 4)
    incident = _one(
        "ttft", {"gateway": _gateway(rng)}, onset_s, ttft=factor, itl=1 + (factor - 1) * rng.uniform(0.5, 1)
    )
    return Incident(incident.faults, (Expected(("ttft", "itl"), incident.faults[0].where, onset_s),))


def hammering_client(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"client": main_client(int(rng.integers(1, 8)))}
    return _one(
        "failure", where, onset_s, outcome="http_error", status=429, share=rng.uniform(0.4, 0.8), requests=rng.uniform(6, 15),
    )  # fmt: skip


def ttft_step(rng: Draw, onset_s: float, length_s: float) -> Incident:
    return _one("ttft", {"model": _model(rng)}, onset_s, ttft=rng.uniform(1.6, 4))


def itl_drift(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"model": _model(rng)} if rng.random() < 0.5 else {"gateway": _gateway(rng)}
    return _one("itl", where, onset_s / 2, itl=rng.uniform(2, 3.5), ramp_s=length_s - onset_s / 2)


def stalls(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"gateway": _gateway(rng)} if rng.random() < 0.5 else {"model": _model(rng)}
    return _one("stall", where, onset_s, stalled=rng.uniform(0.2, 0.5))


def truncations(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"model": _model(rng)} | ({"gateway": _gateway(rng)} if rng.random() < 0.5 else {})
    return _one("failure", where, onset_s, outcome="truncated", share=rng.uniform(0.2, 0.6))


def dead_upstream(rng: Draw, onset_s: float, length_s: float) -> Incident:
    is_silent = rng.random() < 0.5
    return _one(
        "failure", {"gateway": _gateway(rng)}, onset_s, outcome="idle_timeout" if is_silent else "connect_error", share=1.0,
        timeout_s=30.0,
    )  # fmt: skip


def losing_tap(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"tap": f"tap-{rng.integers(1, 3)}"}
    return _one("loss", where, onset_s, outcome="tap_lost", share=rng.uniform(0.05, 0.3))


def fake_streaming(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"gateway": _gateway(rng)} | ({"model": _model(rng)} if rng.random() < 0.3 else {})
    return _one("burst", where, onset_s, burst=rng.uniform(0.7, 1))


def lost_cache(rng: Draw, onset_s: float, length_s: float) -> Incident:
    where = {"model": str(rng.choice([m.name for m in MODELS if m.cached]))}
    where |= {"gateway": _gateway(rng)} if rng.random() < 0.5 else {}
    return _one("cache", where, onset_s, cached=rng.uniform(0, 0.2), ttft=rng.uniform(1.1, 1.6))


def two_at_once(rng: Draw, onset_s: float, length_s: float) -> Incident:
    first = rate_limited_model(rng, onset_s, length_s)
    second = slow_gateway(rng, min(onset_s * rng.uniform(0.6, 1.3), 0.9 * length_s), length_s)
    return Incident(first.faults + second.faults, first.expected + second.expected)


INCIDENTS: dict[str, Callable[[Draw, float, float], Incident]] = {
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
}

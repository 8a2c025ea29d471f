"""Incidents force valid values, for the requests of their place only."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from streamgauge.analytics.reports.limit_forecast import Sample, seconds_left
from streamgauge.commands.demo_run import LIMIT_OF_RATE
from streamgauge.simulator.incidents import INCIDENTS, SimulatedIncident
from streamgauge.simulator.profiles import PROFILES
from streamgauge.simulator.rate_limits import RateLimits
from streamgauge.simulator.response_plan import ForcedValues, draw_plan, read_simulate_header
from streamgauge.simulator.traffic import KEYS, Traffic, TrafficOptions

HALF = SimulatedIncident(
    text="", dimension="model", value="edge-sim", share=0.5, forced={"fault": "truncate"}
)


@pytest.mark.parametrize("incident", INCIDENTS.values(), ids=INCIDENTS)
def test_place_exists_and_values_are_valid(incident: SimulatedIncident) -> None:
    assert incident.value in (PROFILES if incident.dimension == "model" else KEYS)
    assert incident.more or read_simulate_header(json.dumps(incident.forced)) != ForcedValues()


def test_share_of_the_place_is_affected() -> None:
    rng = Random(1)
    affected = [HALF.header(rng, model="edge-sim", key="k") is not None for _ in range(1000)]
    assert 400 < sum(affected) < 600
    assert all(HALF.header(rng, model="other", key="edge-sim") is None for _ in range(100))


def test_client_of_a_surge_sends_more_with_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    surge = SimulatedIncident(text="", dimension="client", value=KEYS[2], more=3, model="edge-sim")
    traffic = Traffic(TrafficOptions(base_url="http://127.0.0.1:1", concurrency=10**6))
    sent: list[Any] = []
    monkeypatch.setattr(traffic, "_begin", lambda request, key, *_: sent.append((request, key)))
    for incident in (None, surge):
        traffic.incident = incident
        for _ in range(100):
            traffic._start()
    usual, during = sent[:100], sent[100:]
    assert [key for _, key in usual].count(KEYS[2]) > 5
    assert len(during) == 400
    for n in range(0, 400, 4):
        assert [(request.model, key) for request, key in during[n + 1 : n + 4]] == [("edge-sim", KEYS[2])] * 3
    assert len({request.request_id for request, _ in sent}) == len(sent)
    assert all(dict(request.headers)["x-request-id"] == request.request_id for request, _ in sent)


@pytest.mark.parametrize("seed", range(3))
def test_forecast_comes_before_the_limit_that_nears_is_used_up(seed: int) -> None:
    """At the demo's rate: the requests of the client and model, and what the responses report."""
    per_s, began_s, length_s = 6.0, 300.0, 120
    rng, limits = Random(seed), RateLimits(LIMIT_OF_RATE * per_s)
    limit, samples, forecasts, at_s = LIMIT_OF_RATE * per_s, dict[int, Sample](), list[float | None](), 0.0
    incident = INCIDENTS["limit-nears"]
    for second in range(int(began_s), int(began_s) + length_s):
        while at_s <= second:
            rate = 0.24 + (incident.more * per_s if at_s > began_s else 0.0)
            at_s += rng.expovariate(rate)
            values = limits.take({"authorization": "k"}, incident.model, 500, at_s)
            full_s = float(values["reset_requests"].rstrip("s"))
            samples[int(at_s // 5)] = Sample(at_s, values["remaining_requests"], at_s + full_s)
        forecasts.append(seconds_left(sorted(samples.values()), limit, at_s))
    known = [forecast for forecast in forecasts if forecast is not None]
    assert len(known) > 10
    assert known[0] > 10
    assert forecasts[:20] == [None] * 20


def test_traffic_differs_only_in_the_requests_of_the_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    def requests(incident: SimulatedIncident | None) -> list[Any]:
        sent: list[Any] = []
        traffic = Traffic(TrafficOptions(base_url="http://127.0.0.1:1", models=("edge-sim", "gemma-sim")))
        traffic.incident = incident

        class Loop:
            def create_task(self, coroutine: Any) -> Any:
                sent.append(coroutine.cr_frame.f_locals["request"])
                coroutine.close()
                return Task()

        class Task:
            def add_done_callback(self, _: Any) -> None: ...

        monkeypatch.setattr("streamgauge.simulator.traffic.asyncio.get_running_loop", Loop)
        for _ in range(200):
            traffic._start()
        return sent

    healthy, staged = requests(None), requests(HALF)
    changed = [b for a, b in zip(healthy, staged, strict=True) if a != b]
    assert {request.model for request in changed} == {"edge-sim"}
    assert 30 < len(changed) < 80
    for request in changed:
        assert [v for name, v in request.headers if name == "x-simulate"] == ['{"fault":"truncate"}']


def test_factors_multiply_drawn_times() -> None:
    def plan(**forced: float) -> Any:
        return draw_plan(
            seed="s", request_id="r", profile=PROFILES["edge-sim"], body={"messages": []}, streamed=True,
            forced=ForcedValues(**forced), rate_faults=0, time_scale=0.5,
        )  # fmt: skip

    usual, slow = plan(), plan(ttft_factor=4, gap_factor=3)
    assert slow.ttft_s == pytest.approx(4 * usual.ttft_s)
    assert slow.gap_s == pytest.approx(3 * usual.gap_s)
    assert (slow.text_tokens, slow.gap_sigma) == (usual.text_tokens, usual.gap_sigma)

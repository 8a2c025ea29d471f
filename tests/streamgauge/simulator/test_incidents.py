"""Incidents force valid values, for the requests of their place only."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from streamgauge.simulator.incidents import INCIDENTS, SimulatedIncident
from streamgauge.simulator.profiles import PROFILES
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


def test_client_of_a_surge_sends_each_request_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    surge = SimulatedIncident(text="", dimension="client", value=KEYS[2], more=3)
    traffic = Traffic(TrafficOptions(base_url="http://127.0.0.1:1", concurrency=10**6))
    sent: list[Any] = []
    monkeypatch.setattr(traffic, "_begin", lambda request, key, *_: sent.append((request, key)))
    for incident in (None, surge):
        traffic.incident = incident
        for _ in range(100):
            traffic._start()
    by_client = [key for _, key in sent]
    usual, more = by_client[:100], by_client[100:]
    assert usual.count(KEYS[2]) > 5
    assert len(more) == 100 + 3 * (more.count(KEYS[2]) // 4)
    assert more.count(KEYS[2]) % 4 == 0
    assert len({request.request_id for request, _ in sent}) == len(sent)
    assert all(dict(request.headers)["x-request-id"] == request.request_id for request, _ in sent)


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

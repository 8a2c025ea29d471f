"""A limit falls with each request, fills again in a minute, and refuses what is above it; the headers are those of the vendor."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from streamgauge.ingest.header_fields import recorded_value, response_field
from streamgauge.simulator.rate_limits import TOKENS_PER_REQUEST, RateLimits
from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.deadline import DEADLINE_S
from tests.streamgauge.simulator.simulator_thread import simulator_thread

A, B = {"authorization": "Bearer a"}, {"x-api-key": "b"}


def test_remaining_falls_and_fills_again() -> None:
    limits = RateLimits(60)
    found = [limits.take(A, "m", 1000, 100.0) for _ in range(3)]
    assert [one["remaining_requests"] for one in found] == [59, 58, 57]
    assert [one["remaining_tokens"] for one in found] == [
        60 * TOKENS_PER_REQUEST - 1000 * n for n in (1, 2, 3)
    ]
    assert found[2]["reset_requests"] == "3.000s"
    assert found[2]["full_requests_at"] == "1970-01-01T00:01:43Z"
    assert limits.take(A, "m", 0, 102.0)["remaining_requests"] == 58
    assert limits.take(A, "m", 0, 1e6)["remaining_requests"] == 59


def test_request_above_a_limit_takes_nothing_and_says_when_to_try_again() -> None:
    limits = RateLimits(2)
    assert [limits.take(A, "m", 0, 0.0)["retry_s"] for _ in range(4)] == [0, 0, 30, 30]
    assert limits.take(A, "m", 0, 30.0)["retry_s"] == 0
    tokens = RateLimits(2)
    assert tokens.take(A, "m", 2 * TOKENS_PER_REQUEST, 0.0)["retry_s"] == 0
    assert tokens.take(A, "m", TOKENS_PER_REQUEST, 0.0)["retry_s"] == 30


def test_each_key_has_a_limit_for_each_model() -> None:
    limits = RateLimits(60)
    for headers, model in ((A, "m"), (A, "n"), (B, "m"), ({}, "m")):
        assert limits.take(headers, model, 0, 0.0)["remaining_requests"] == 59


@pytest.fixture(scope="module")
def limited() -> Iterator[Simulator]:
    with simulator_thread(
        SimulatorOptions(listen="127.0.0.1:0", rate_faults=0, time_scale=0.01, rate_limit=3)
    ) as running:
        yield running


def ask(simulator: Simulator, path: str, model: str, key: str, **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "How high?"}], "stream": True}
    headers = {"x-api-key": key, **headers}
    return httpx.post(simulator.url + path, json=body, headers=headers, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("path", "model", "remaining", "prefix"),
    [
        ("/v1/chat/completions", "gpt-sim-mini", "x-ratelimit-remaining-requests", "x-ratelimit-"),
        (
            "/v1/messages",
            "claude-sim-large",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-",
        ),
    ],
)
def test_headers_fall_until_429_and_the_tap_records_them(
    limited: Simulator, path: str, model: str, remaining: str, prefix: str
) -> None:
    found = [ask(limited, path, model, "k") for _ in range(4)]
    assert [(one.status_code, one.headers[remaining]) for one in found] == [
        (200, "2"),
        (200, "1"),
        (200, "0"),
        (429, "0"),
    ]
    assert 1 <= int(found[3].headers["retry-after"]) <= 20
    fields = [(name, value) for name, value in found[0].headers.items() if name.startswith(prefix)]
    assert len(fields) == 6
    for name, value in fields:
        assert response_field(name.encode(), value.encode()) == (name, value)
        assert recorded_value(name, value) == value


def test_forced_429_is_not_one_of_the_limit(limited: Simulator) -> None:
    forced = {"x-simulate": '{"fault":"http_429"}'}
    found = ask(limited, "/v1/chat/completions", "gpt-sim-large", "k", **forced)
    assert found.status_code == 429
    assert "x-ratelimit-remaining-requests" not in found.headers
    assert (
        ask(limited, "/v1/chat/completions", "gpt-sim-large", "k").headers["x-ratelimit-remaining-requests"]
        == "2"
    )


def test_without_a_limit_no_header_is_sent(simulator: Simulator) -> None:
    assert (
        "x-ratelimit-remaining-requests"
        not in ask(simulator, "/v1/chat/completions", "gpt-sim-mini", "k").headers
    )

"""Expiry of the tap's time limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.tap.exchanges.timeouts import Timeouts, expired
from tests.options import tap_options

SECOND_NS = 10**9
FOREVER_NS = 10**18


def timeouts(**options: float) -> Timeouts:
    every = ("head", "body", "keep_alive", "headers", "idle", "idle_output")
    none = {f"{name}_timeout_s": 0.0 for name in every}
    return Timeouts(
        tap_options(upstreams=parse_upstreams(["http://h"]), data=Path(), **{**none, **options})  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("option", "limit"),
    [
        ("head_timeout_s", "request_head_ns"),
        ("body_timeout_s", "request_body_ns"),
        ("keep_alive_timeout_s", "keep_alive_ns"),
        ("headers_timeout_s", "response_head_ns"),
    ],
)
def test_a_limit_expires_after_the_later_of_last_byte_and_readiness(option: str, limit: str):
    limit_ns = getattr(timeouts(**{option: 2.0}), limit)
    assert not expired(limit_ns, 2 * SECOND_NS, 0, 0)
    assert expired(limit_ns, 2 * SECOND_NS + 1, 0, 0)
    assert not expired(limit_ns, 2 * SECOND_NS + 1, 1, 0)
    assert not expired(limit_ns, 2 * SECOND_NS + 1, 0, 1)
    assert not expired(getattr(timeouts(), limit), FOREVER_NS, 0, 0)


def test_a_silent_body_exceeds_the_byte_limit_and_heartbeats_only_the_output_limit():
    limits = timeouts(idle_timeout_s=2.0, idle_output_timeout_s=3.0)
    now_ns = 4 * SECOND_NS
    assert expired(limits.idle_ns, now_ns, 0, 0)
    assert not expired(limits.idle_ns, now_ns, now_ns, 0)
    assert not expired(limits.idle_ns, now_ns, 0, 2 * SECOND_NS)
    assert expired(limits.idle_output_ns, now_ns, 0, 0)
    assert not expired(limits.idle_output_ns, now_ns, 2 * SECOND_NS, 0)
    assert not expired(timeouts().idle_ns, FOREVER_NS, 0, 0)
    assert not expired(timeouts().idle_output_ns, FOREVER_NS, 0, 0)


def test_connections_check_four_times_within_the_shortest_limit_and_never_without_limits():
    assert timeouts(idle_timeout_s=2.0, keep_alive_timeout_s=60.0).check_interval_s == 0.5
    assert timeouts().check_interval_s == 0.0

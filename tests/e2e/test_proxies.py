"""Proxies before and behind a tap, configured as the how-to guides say, do not change what is measured."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e import proxies
from tests.e2e.proxies import CASES, PROXIES, Case, differences, measured, proxy, rows
from tests.ingest.running_tap import running_tap
from tests.ports import free_port

PLACES = [
    ("front", "--http1.1"),
    ("behind", "--http1.1"),
    ("behind", "--http2-prior-knowledge"),
]
GATEWAY_ERROR = {"envoy": 503, "nginx": 502, "haproxy": 502, "caddy": 502}
"""The proxy's own answer when its upstream does not respond."""
FEW = {
    name: CASES[name]
    for name in ("complete", "http_429", "inband_error", "cut", "reset_before_head", "abort")
}
SILENCE = {"silence": Case({"fault": "stall", "stall_ms": 61_000})}
"""Longer than the default limits of Envoy (15 s) and nginx (60 s)."""


def expected_differences(name: str, where: str) -> dict[str, dict[str, object]]:
    if where != "front":
        return {}
    status = GATEWAY_ERROR[name]
    changed = {"outcome": "http_error", "error_type": str(status), "http_status": status, "streamed": False}
    return {"reset_before_head": changed}


async def test_envoy_with_http2_clients_changes_no_outcome(tmp_path: Path) -> None:
    alone = await measured("alone", "", tmp_path, cases=FEW)
    found = await measured("behind", "envoy", tmp_path / "envoy", "--http2-prior-knowledge", FEW)
    assert alone["complete"]["outcome"] == "ok"
    assert differences(found, alone, FEW) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("where", "version"), PLACES)
@pytest.mark.parametrize("name", PROXIES)
async def test_proxies_change_only_what_the_guides_say(
    name: str, where: str, version: str, tmp_path: Path
) -> None:
    if name == "nginx" and "http2" in version:
        pytest.skip("the guide's nginx serves HTTP/1.1")
    alone = await measured("alone", "", tmp_path)
    assert {row["outcome"] for row in alone.values()} == {
        "ok", "http_error", "inband_error", "truncated", "malformed", "upstream_reset", "client_abort",
    }  # fmt: skip
    found = await measured(where, name, tmp_path / name, version)
    assert differences(found, alone) == expected_differences(name, where)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROXIES)
async def test_upstream_that_refuses_connections_is_an_error_of_the_proxy(name: str, tmp_path: Path) -> None:
    with proxy(name, tmp_path / name, free_port()) as port:
        async with running_tap(None, upstreams=[f"a=http://127.0.0.1:{port}"]) as tap:
            await proxies.request(tap.worker.address[1], "complete", CASES["complete"], "--http1.1")
            ((status, outcome),) = [
                (row["http_status"], row["outcome"]) for row in await proxies.finished(tap, 1)
            ]
    assert (status in (502, 503), outcome) == (True, "http_error")


@pytest.mark.slow
async def test_a_minute_of_silence_ends_no_stream(tmp_path: Path) -> None:
    found = await asyncio.gather(
        *(measured("behind", name, tmp_path / name, cases=SILENCE) for name in PROXIES)
    )
    assert [(rows["silence"]["outcome"], rows["silence"]["stall_count"]) for rows in found] == [
        ("ok", 1)
    ] * len(PROXIES)


@pytest.mark.slow
async def test_envoy_without_the_guide_s_timeout_ends_a_silent_stream(tmp_path: Path) -> None:
    async with proxies.simulator() as url, running_tap(None, upstreams=[f"a={url}"]) as tap:
        with proxy(
            "envoy", tmp_path / "envoy", tap.worker.address[1], lambda text: text.replace(", timeout: 0s", "")
        ) as port:
            found = await rows(tap, port, SILENCE, "--http1.1")
    assert found["silence"]["outcome"] == "client_abort"

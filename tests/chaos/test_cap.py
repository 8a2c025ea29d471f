"""The local log reaches its cap: the oldest unread data is dropped, and all its streams are reported."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamgauge.ingest.record_log.segments import log_bytes
from streamgauge.simulator.measurement_check import check_measurements, streams_since
from tests.chaos.rig import BOUNDS, LONG_AGO, Run, run
from tests.deadline import DEADLINE_S
from tests.kafka import Broker
from tests.tables import tables

MIB = 2**20
QUICK = json.dumps({"tokens": 3, "gap_ms": 1, "ttft_ms": 1, "fault": "none"})


def bulky(chaos: Run, requests: int, *, seed: int) -> None:
    """Send requests with incompressible bodies and wait for the responses. 64 KiB of each body are captured."""
    rng = random.Random(seed)
    content = [base64.b85encode(rng.randbytes(60_000)).decode() for _ in range(8)]

    async def send() -> None:
        async with httpx.AsyncClient(timeout=DEADLINE_S, limits=httpx.Limits(max_connections=8)) as client:

            async def one(number: int) -> None:
                body = {
                    "model": "m",
                    "stream": True,
                    "messages": [{"role": "user", "content": content[number % 8]}],
                }
                headers = {"x-request-id": f"bulky-{seed}-{number}", "x-simulate": QUICK}
                url = f"{chaos.running.tap}/v1/chat/completions"
                answer = await client.post(url, json=body, headers=headers)
                assert answer.status_code == 200

            await asyncio.gather(*(one(number) for number in range(requests)))

    asyncio.run(send())


def audited_losses(chaos: Run, causes: set[str]) -> dict[str, Any]:
    """Check that every request has one row, that rows with losses are marked, and that all others are correct."""
    chaos.stop_traffic()
    status = chaos.wait_until_stored()
    streams, rows = streams_since(tables(chaos.data), LONG_AGO), chaos.ledger.rows()
    found = check_measurements(
        rows, streams, clients=chaos.traffic.rows.values(), bounds=BOUNDS, tap_may_lose=True
    )
    assert not found, "\n".join(map(str, found[:20]))
    stored_ids = [s["request_id"] for s in streams if s["request_id"] is not None]
    assert len(set(stored_ids)) == len(stored_ids)
    lost = tables(chaos.data).query(
        "SELECT stream_id::VARCHAR AS id, request_id FROM streams WHERE outcome = 'tap_lost'"
    )
    reported = tables(chaos.data).query("SELECT stream_id::VARCHAR AS id, cause FROM losses")
    assert set(lost["id"]) == set(reported["id"])
    # A drop is reported after the kept records. A stream that ended before the report has a gap without a cause (`missing`),
    # and `ship` has not seen its beginning.
    assert causes & set(reported["cause"])
    assert set(reported["cause"]) <= {*causes, "missing", "redaction_state_lost"}
    # A stream without its beginning has no request id, so as many rows lack one as requests are missing.
    missing = {row.request_id for row in rows} - set(stored_ids)
    without_id = lost["request_id"].null_count()
    aborted = sum(c.aborted for c in chaos.traffic.rows.values())
    assert len(missing) <= without_id <= len(missing) + aborted
    measured = tables(chaos.data).query(
        "SELECT count(*) FROM streams WHERE outcome = 'tap_lost' AND coalesce(ttft_ns, itl_ns, output_tokens) IS NOT NULL"
    )
    assert measured.item() == 0
    assert status["reconciles"], json.dumps(status, indent=1)
    assert status["lost"] == lost.height
    return status


def audited(chaos: Run, cause: str) -> None:
    """As `audited_losses`, for segments that the log dropped."""
    status = audited_losses(chaos, {cause})
    assert status["tap"]["log_dropped_segments"] > 0
    assert status["tap"]["log_dropped_records"] > 0


@pytest.mark.slow
def test_losses_at_the_cap_are_reported_while_analytics_hangs(tmp_path: Path) -> None:
    with run(tmp_path, "--record-log-max-bytes", str(MIB), faults=0.0) as chaos:
        chaos.wait_for_requests(10)
        analytics = chaos.pid("analyze")
        assert analytics is not None
        os.kill(analytics, signal.SIGSTOP)
        try:
            for seed in range(60):
                bulky(chaos, 20, seed=seed)
                if chaos.tap_ledger()["log_dropped_segments"] > 1:
                    break
            assert log_bytes(chaos.data / "log") < MIB * 1.3
        finally:
            os.kill(analytics, signal.SIGCONT)
        chaos.wait_for_requests(5)
        audited(chaos, "log_full")


@pytest.mark.slow
@pytest.mark.kafka
def test_losses_at_the_cap_are_reported_while_kafka_is_unreachable(
    tmp_path: Path, own_broker: Callable[..., Broker]
) -> None:
    broker = own_broker()
    with run(tmp_path, "--record-log-max-bytes", str(2 * MIB), kafka=broker.address, faults=0.0) as chaos:
        chaos.wait_for_requests(10)
        broker.stop()
        for seed in range(60):
            bulky(chaos, 20, seed=seed)
            if chaos.tap_ledger()["log_dropped_segments"] > 1:
                break
        broker.start()
        chaos.wait_for_requests(10)
        audited(chaos, "log_full")

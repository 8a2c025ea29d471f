"""Faults of a pipeline with a real broker between ship and analytics."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from kafka import KafkaProducer

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.ingest.records import pack
from streamgauge.simulator.measurement_check import check_measurements, streams_since
from tests.analytics.log_entries import stream
from tests.chaos.rig import BOUNDS, LONG_AGO, Run, run, topic_read, wipe
from tests.deadline import DEADLINE_S, until
from tests.kafka import Broker
from tests.proxy import Proxy, proxy
from tests.tables import tables

pytestmark = pytest.mark.kafka


def test_kill_9_of_everything_behind_the_tap(tmp_path: Path, own_broker: Callable[..., Broker]) -> None:
    broker = own_broker()
    with run(tmp_path, kafka=broker.address) as chaos:
        chaos.wait_for_requests(15)
        chaos.kill("ship")
        chaos.wait_for_requests(10)
        broker.kill()
        chaos.wait_for_requests(10)
        chaos.kill("analyze")  # while the broker is down
        broker.start()
        chaos.wait_for_requests(10)
        chaos.check_measurements()


@pytest.mark.slow
def test_repeated_kill_9_of_the_broker(tmp_path: Path, own_broker: Callable[..., Broker]) -> None:
    broker = own_broker()
    with run(tmp_path, kafka=broker.address, rate_per_s=20) as chaos:
        for _ in range(3):
            chaos.wait_for_requests(30)
            broker.kill()
            chaos.wait_for_requests(10)
            broker.start()
        chaos.wait_for_requests(20)
        chaos.check_measurements()


@pytest.mark.slow
def test_kill_9_of_ship_and_analytics_in_every_phase(
    tmp_path: Path, own_broker: Callable[..., Broker]
) -> None:
    broker = own_broker()
    with run(tmp_path, kafka=broker.address, rate_per_s=20) as chaos:
        for part in ("ship", "analyze", "ship", "analyze"):
            chaos.wait_for_requests(15)
            chaos.kill(part)
        broker.stop()
        chaos.wait_for_requests(20)
        chaos.kill("ship")  # started again without a broker
        broker.start()
        chaos.kill("ship")  # while it catches up
        chaos.wait_for_requests(15)
        chaos.check_measurements()


@pytest.mark.slow
def test_the_broker_is_unreachable_for_a_minute(tmp_path: Path, own_broker: Callable[..., Broker]) -> None:
    broker = own_broker()
    with run(tmp_path, kafka=broker.address, rate_per_s=15) as chaos:
        chaos.wait_for_requests(20)
        broker.stop()
        threading.Event().wait(60)  # the outage itself
        chaos.wait_for_requests(1)
        broker.start()
        chaos.wait_for_requests(20)
        chaos.check_measurements()


@pytest.mark.slow
def test_broker_restarts_with_a_new_log_dir(tmp_path: Path, own_broker: Callable[..., Broker]) -> None:
    """Analytics has read everything that the old disk had acknowledged. Later records are in the local log."""
    broker = own_broker()
    with run(tmp_path, kafka=broker.address, rate_per_s=0.001) as chaos:
        chaos.send(60)
        chaos.wait_until_stored()
        until(lambda: topic_read(chaos) or None, "analytics to have read the topic")
        broker.stop()
        chaos.send(40)
        wipe(broker.data)
        broker.start()
        chaos.send(20)
        status = chaos.check_measurements()
        assert status["stored"] == len(chaos.ledger.rows())


@pytest.mark.slow
def test_the_broker_loses_its_disk_while_streams_are_open(
    tmp_path: Path, own_broker: Callable[..., Broker]
) -> None:
    """Only the open streams lose records that only the broker had. Each has a row, which reports the loss."""
    broker = own_broker()
    with run(tmp_path, kafka=broker.address, rate_per_s=0.001) as chaos:
        chaos.send(30)
        force = json.dumps({"ttft_ms": 50, "gap_ms": 50, "tokens": 300, "fault": "none"})
        with long_streams(chaos.running.tap, 6, force):
            until(lambda: _open(chaos) == 6 or None, "the long streams to be open")
            analytics = chaos.pid("analyze")
            broker.stop()
            chaos.send(20)
            wipe(broker.data)
            broker.start()
            chaos.send(20)
        chaos.stop_traffic()
        status = chaos.wait_until_stored(150)
        rows = chaos.ledger.rows()
        streams = streams_since(tables(chaos.data), LONG_AGO)
        assert not check_measurements(rows, streams, bounds=BOUNDS, tap_may_lose=True)
        assert len(streams) == len({s["stream_id"] for s in streams}) == len(rows) == 76
        lost = {s["stream_id"] for s in streams if s["outcome"] == "tap_lost"}
        assert len(lost) <= 6
        reported = tables(chaos.data).query("SELECT DISTINCT stream_id::VARCHAR AS id FROM losses")["id"]
        assert set(map(str, lost)) <= set(reported)
        assert set(status["losses_by_cause"]) <= {"log_gone", "missing"}
        assert len(status["events"]) == (1 if lost else 0)
        assert chaos.pid("analyze") == analytics, chaos.log_tail()
        assert status["reconciles"], json.dumps(status, indent=1)


@pytest.mark.slow
def test_sigterm_of_every_part_and_of_the_broker_under_load(
    tmp_path: Path, own_broker: Callable[..., Broker]
) -> None:
    broker = own_broker()
    with run(tmp_path, "--drain-timeout", "60", kafka=broker.address, faults=0.0) as chaos:
        for part in ("ship", "analyze", "tap", "ship"):
            chaos.wait_for_requests(15)
            chaos.kill(part, number=signal.SIGTERM)
        broker.stop()
        chaos.wait_for_requests(15)
        chaos.kill("ship", number=signal.SIGTERM)
        broker.start()
        chaos.wait_for_requests(15)
        chaos.check_measurements()


@contextmanager
def long_streams(url: str, count: int, force: str) -> Iterator[None]:
    """Long streams during the other traffic. Waits for their end."""

    def one(number: int) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        headers = {"x-request-id": f"long-{number}", "x-simulate": force}
        httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=DEADLINE_S)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(DEADLINE_S)


def _open(chaos: Run) -> int:
    try:
        return int(
            tables(chaos.data).query("SELECT count(*) FROM open_streams WHERE output_event_count > 3").item()
        )
    except QueryError:
        return -1


def proxied(proxy_: Proxy, own_broker: Callable[..., Broker]) -> str:
    """The address of a proxy that a broker advertises as its own."""
    address = f"127.0.0.1:{proxy_.port}"
    broker = own_broker(
        "--config",
        f"advertised.listeners=CLIENT://{address}",
        "--config",
        "inter.broker.listener.name=CLIENT",
    )
    host, _, port = broker.address.rpartition(":")
    proxy_.target = (host, int(port))
    return address


@pytest.mark.slow
def test_network_to_the_broker_is_interrupted(tmp_path: Path, own_broker: Callable[..., Broker]) -> None:
    with proxy() as network:
        address = proxied(network, own_broker)
        with run(tmp_path, kafka=address, rate_per_s=15) as chaos:
            for _ in range(3):
                chaos.wait_for_requests(20)
                network.cut()
                chaos.wait_for_requests(20)
                network.mend()
            chaos.wait_for_requests(20)
            chaos.check_measurements()
        assert network.forwarded_bytes > 0


@pytest.mark.slow
def test_the_network_to_the_broker_is_slow(tmp_path: Path, own_broker: Callable[..., Broker]) -> None:
    with proxy() as network:
        address = proxied(network, own_broker)
        with run(tmp_path, kafka=address, rate_per_s=15) as chaos:
            chaos.wait_for_requests(10)
            network.delay_s, network.bytes_per_s = 0.15, 48 * 1024
            chaos.wait_for_requests(120)
            network.mend()
            chaos.check_measurements()


def letters_by_reason(chaos: Run) -> list[tuple[str, int]]:
    return tables(chaos.data).query("SELECT reason, count(*) FROM dead_letters GROUP BY 1 ORDER BY 1").rows()


def losses_by_cause(chaos: Run) -> list[tuple[str, int]]:
    query = (
        "SELECT cause, sum(dead_letters)::BIGINT FROM losses WHERE stream_id IS NULL GROUP BY 1 ORDER BY 1"
    )
    return tables(chaos.data).query(query).rows()


@pytest.mark.slow
def test_invalid_messages_in_the_topic_become_dead_letters(
    tmp_path: Path, own_broker: Callable[..., Broker]
) -> None:
    broker = own_broker()
    rng = random.Random(5)
    good = pack(stream(1), compress=True)
    with run(tmp_path, kafka=broker.address) as chaos:
        chaos.wait_for_requests(20)
        producer = KafkaProducer(bootstrap_servers=broker.address)
        sent = 0
        for n in range(200):
            value = (
                rng.randbytes(rng.randrange(1, 3000)),
                good[: rng.randrange(1, len(good))],
                b"",
                None,
                b'{"stream": 1}',
            )[n % 5]
            keyed = n % 2 == 0 or value is None  # the client refuses a message with neither
            producer.send(chaos.topic, key=b"k%d" % n if keyed else None, value=value)
            sent += 1
        producer.flush()
        producer.close()
        chaos.wait_for_requests(20)
        chaos.kill("analyze")
        status = chaos.check_measurements()
        assert status["tables"]["dead_letters"] >= sent * 3 // 5
        assert losses_by_cause(chaos) == letters_by_reason(chaos)

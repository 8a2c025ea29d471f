"""Shipping the local log to a real Kafka: all records arrive, in order per stream, despite outages, kills and stops."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.interface import LogInUse
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.ingest.records import Alive, Damaged, Poison, unpack
from streamgauge.ingest.ship import run
from tests.deadline import DEADLINE_S
from tests.ingest.record_log.entries import entry_of, frames, roll, segments_of, writer_of
from tests.kafka import Broker
from tests.options import ship_options

SHIP = textwrap.dedent(
    """
    import json, logging, sys
    from pathlib import Path
    from streamgauge.ingest.ship import ShipOptions, run
    logging.basicConfig(level=logging.INFO)
    data, brokers, topic = sys.argv[1:4]
    options = ShipOptions(data=Path(data), kafka=brokers, redactor=None, kafka_topic=topic, kafka_options={}, drain_s=20)
    sys.exit(run(options))
    """
)


class Shipping:
    """`ship` in a process."""

    def __init__(self, data: Path, topic: str) -> None:
        self.data, self.topic = data, topic
        self.errors = data.parent / "ship.stderr"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, brokers: str) -> None:
        with self.errors.open("ab") as errors:
            command = [sys.executable, "-c", SHIP, str(self.data), brokers, self.topic]
            self.process = subprocess.Popen(command, stderr=errors)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def log_text(self) -> str:
        return self.errors.read_text()

    def status(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """`ship.json` once `condition` holds. Its numbers may disagree: it may be written between two steps."""
        path = self.data / "run" / "ship.json"
        status: dict[str, Any] = {}
        for _ in range(1200):
            if path.exists() and condition(status := json.loads(path.read_text())):
                return status
            signal.sigtimedwait([], 0.05)  # a pause that no signal interrupts
        raise AssertionError(status)


@pytest.fixture
def shipping(tmp_path: Path) -> Iterator[Shipping]:
    shipping = Shipping(tmp_path / "data", f"t-{uuid.uuid4()}")
    yield shipping
    if shipping.process is not None and shipping.process.poll() is None:
        shipping.process.kill()
        shipping.process.wait()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EmbeddedWriter]:
    with writer_of(tmp_path / "data" / "log", segment_bytes=300_000) as writer:
        yield writer


def write(writer: EmbeddedWriter, streams: list[str], start: int, count: int, size: int = 200) -> None:
    for seq in range(start, start + count):
        writer.append([entry_of(*(frames(stream, seq, size) for stream in streams))])


def arrived(brokers: str, topic: str, enough: Callable[[dict[str, list[int]]], bool]) -> dict[str, list[int]]:
    """Seqs of each stream in the order of arrival."""
    reader = KafkaReader(brokers, topic, {})
    found: dict[str, list[int]] = {}
    try:
        for _ in range(200):
            for entry in reader.poll(1.0):
                records, poison = unpack(entry.payload)
                assert {one.reason for one in poison} <= {"damaged_segment"}
                for record in records:
                    if not isinstance(record, (Alive, Damaged)):
                        found.setdefault(record.stream, []).append(record.seq)
            if enough(found):
                return found
    finally:
        reader.close()
    raise AssertionError(f"only {sum(map(len, found.values()))} records arrived")


def all_of(streams: list[str], count: int) -> Callable[[dict[str, list[int]]], bool]:
    return lambda found: all(len(set(found.get(stream, ()))) >= count for stream in streams)


def some_above(seq: int) -> Callable[[dict[str, list[int]]], bool]:
    return lambda found: any(max(seqs) > seq for seqs in found.values())


def new_streams(count: int = 8) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


@pytest.mark.kafka
def test_everything_arrives_once_and_the_log_is_trimmed(
    kafka_broker: str, shipping: Shipping, writer: EmbeddedWriter
) -> None:
    streams = new_streams()
    write(writer, streams, 0, 300, 1000)
    shipping.start(kafka_broker)
    found = arrived(kafka_broker, shipping.topic, all_of(streams, 300))
    assert found == {stream: list(range(300)) for stream in streams}
    write(writer, streams, 300, 20)  # entries in the log at SIGTERM are shipped before the stop
    assert shipping.end() == 0
    assert not (shipping.data / "run" / "ship.json").exists()
    found = arrived(kafka_broker, shipping.topic, all_of(streams, 320))
    assert found == {stream: list(range(320)) for stream in streams}
    assert len(list((shipping.data / "log" / "w0").glob("*.sqlite"))) == 1
    with EmbeddedReader(shipping.data / "log", "ship") as reader:
        assert reader.released("w0") == writer.next_offset


@pytest.mark.kafka
def test_damage_of_the_log_is_reported_in_the_topic(
    kafka_broker: str, shipping: Shipping, writer: EmbeddedWriter
) -> None:
    (stream,) = new_streams(1)
    write(writer, [stream], 0, 10)
    roll(writer)
    write(writer, [stream], 10, 10)
    segment = shipping.data / "log" / "w0" / segments_of(shipping.data / "log")[0]
    segment.write_bytes(b"this is no database, and long enough to be sure of it" * 100)
    shipping.start(kafka_broker)
    reported: list[Poison] = []
    reader = KafkaReader(kafka_broker, shipping.topic, {})
    for _ in range(60):
        reported += [one for entry in reader.poll(1.0) for one in unpack(entry.payload)[1]]
        if reported:
            break
    reader.close()
    assert [(one.reason, one.size) for one in reported] == [("damaged_segment", 10)]
    assert arrived(kafka_broker, shipping.topic, some_above(18)) == {stream: list(range(10, 20))}
    assert shipping.end() == 0


@pytest.mark.kafka
def test_ship_json_has_the_process_and_its_counters(
    kafka_broker: str, shipping: Shipping, writer: EmbeddedWriter
) -> None:
    streams = new_streams(2)
    write(writer, streams, 0, 3)
    shipping.start(kafka_broker)
    arrived(kafka_broker, shipping.topic, all_of(streams, 3))
    status = shipping.status(lambda status: status["released"] == {"w0": 3})
    assert shipping.process is not None
    assert status["pid"] == shipping.process.pid
    assert (status["records"], status["retries"], status["reachable"], status["last_error"]) == (
        6,
        0,
        True,
        None,
    )
    assert stat.S_IMODE((shipping.data / "run" / "ship.json").stat().st_mode) == 0o600


@pytest.mark.kafka
def test_everything_arrives_after_an_outage(
    own_broker: Callable[..., Broker], shipping: Shipping, writer: EmbeddedWriter
) -> None:
    broker = own_broker()
    streams = new_streams()
    shipping.start(broker.address)
    write(writer, streams, 0, 50)
    arrived(broker.address, shipping.topic, all_of(streams, 1))
    broker.kill()
    write(writer, streams, 50, 300, 2000)
    broker.start()
    write(writer, streams, 350, 50)
    found = arrived(broker.address, shipping.topic, all_of(streams, 400))
    for seqs in found.values():
        assert list(dict.fromkeys(seqs)) == list(range(400))
    assert shipping.end() == 0


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_returns_empty_gets_a_new_topic_and_all_unacknowledged_records(
    own_broker: Callable[..., Broker], shipping: Shipping, writer: EmbeddedWriter
) -> None:
    broker = own_broker()
    streams = new_streams()
    shipping.start(broker.address)
    write(writer, streams, 0, 10)
    arrived(broker.address, shipping.topic, all_of(streams, 10))
    shipping.status(lambda status: status["released"] == {"w0": 10})
    broker.kill()
    shutil.rmtree(broker.data / "topics")
    write(writer, streams, 10, 40)
    broker.start()
    found = arrived(
        broker.address, shipping.topic, lambda found: all(49 in found.get(s, ()) for s in streams)
    )
    for seqs in found.values():
        assert list(dict.fromkeys(seqs)) == list(range(10, 50))
    assert shipping.end() == 0


@pytest.mark.kafka
def test_kill_9_of_ship_loses_nothing_and_keeps_the_order(
    kafka_broker: str, shipping: Shipping, writer: EmbeddedWriter
) -> None:
    streams = new_streams(20)
    written = 0
    for _ in range(4):
        write(writer, streams, written, 60, 4000)
        shipping.start(kafka_broker)
        arrived(kafka_broker, shipping.topic, some_above(written - 1))
        shipping.end(signal.SIGKILL)
        written += 60
    shipping.start(kafka_broker)
    found = arrived(kafka_broker, shipping.topic, all_of(streams, written))
    assert set(found) == set(streams)
    for seqs in found.values():
        # A record may arrive twice, but never before its predecessor.
        assert list(dict.fromkeys(seqs)) == list(range(written))
    pid = shipping.process.pid if shipping.process else None
    # All records may have arrived before this process was ready.
    shipping.status(lambda status: status["pid"] == pid)
    assert shipping.end() == 0


def test_an_unreachable_kafka_logs_one_warning_and_stops_quickly(
    shipping: Shipping, writer: EmbeddedWriter
) -> None:
    write(writer, new_streams(), 0, 20)
    shipping.start("127.0.0.1:1")
    assert shipping.status(lambda status: status["last_error"])["reachable"] is False
    assert shipping.end() == 0
    warnings = [line for line in shipping.log_text().splitlines() if line.startswith("WARNING")]
    assert warnings == [
        "WARNING:streamgauge.ingest.record_log.kafka_client:Kafka at 127.0.0.1:1 cannot be reached (Connection refused): "
        "records wait in the local log",
        "WARNING:streamgauge.ingest.ship:stopped before Kafka had acknowledged all records: the rest stays in the local log",
    ]
    with EmbeddedReader(shipping.data / "log", "ship") as reader:
        assert reader.released("w0") == 0


def test_sockets_do_not_accumulate_while_kafka_is_unreachable(tmp_path: Path) -> None:
    """The listener accepts connections and sends nothing. Each attempt must close its sockets."""
    import socket

    from kafka import KafkaConsumer

    from streamgauge.ingest.record_log.kafka_client import connect

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        def attempt() -> int:
            with pytest.raises(Exception, match="no answer to PLAINTEXT"):
                connect(KafkaConsumer, [address], {"bootstrap_timeout_ms": 200}, group_id=None)
            return len(os.listdir("/proc/self/fd"))

        before = attempt()
        after = [attempt() for _ in range(4)]
        end_s = time.monotonic() + DEADLINE_S
        while (left := len(os.listdir("/proc/self/fd"))) > before and time.monotonic() < end_s:
            gc.collect()
        assert left <= before, after


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka": "nowhere"}, "'nowhere' is not HOST:PORT"),
        ({"kafka_options": {"sasl_mecanism": "PLAIN"}}, "has no option 'sasl_mecanism'"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(ship_options(**{"data": tmp_path, "kafka": "127.0.0.1:1", "redactor": None, **options}))


def test_a_second_ship_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with (
        EmbeddedReader(tmp_path / "log", "ship"),
        pytest.raises(LogInUse, match=r"another process already reads the log .* as 'ship'"),
    ):
        run(ship_options(data=tmp_path, kafka="127.0.0.1:1", redactor=None))

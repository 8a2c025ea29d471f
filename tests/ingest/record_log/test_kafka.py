"""The record log in a real Kafka: acknowledged entries can be read in order, also after faults of the broker."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.codec import gzip_encode, zstd_encode

from streamgauge.ingest.record_log.interface import Entry, LogBroken, LogChanged, UnreadableRange
from streamgauge.ingest.record_log.kafka_client import (
    MAX_BATCH_BYTES,
    check_options,
    ensure_topic,
    gunzip,
    split_brokers,
    unzstd,
)
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.ingest.record_log.kafka_writer import KafkaWriter
from streamgauge.ingest.records import Alive, Damaged, Frames, Lost, pack, unpack
from tests.deadline import DEADLINE_S
from tests.ingest.record_log.entries import entry_of, frames, records_of
from tests.kafka import SCRAM, Broker, add_scram_user, sasl_ssl

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4()}"


@pytest.fixture
def open_reader() -> Iterator[Callable[..., KafkaReader]]:
    made = []

    def make(*arguments: Any) -> KafkaReader:
        made.append(KafkaReader(*arguments))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


@pytest.fixture
def open_writer() -> Iterator[Callable[..., KafkaWriter]]:
    made = []

    def make(*arguments: Any, **options: Any) -> KafkaWriter:
        made.append(KafkaWriter(*arguments, **options))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


def read_until(reader: KafkaReader, enough: Callable[[list[Entry]], bool], polls: int = 60) -> list[Entry]:
    entries: list[Entry] = []
    for _ in range(polls):
        entries += reader.poll(1.0)
        if enough(entries):
            return entries
    raise AssertionError(f"only {len(entries)} entries arrived")


def seqs_by_stream(entries: list[Entry]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in records_of(entries):
        if not isinstance(record, (Alive, Damaged)):
            found.setdefault(record.stream, []).append(record.seq)
    return found


def count_records(entries: list[Entry]) -> int:
    return sum(map(len, seqs_by_stream(entries).values()))


def test_streams_are_spread_over_partitions_complete_and_in_order(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    streams = [str(uuid.uuid4()) for _ in range(30)]
    writer = open_writer(kafka_broker, topic, {})
    for seq in range(5):
        writer.append([entry_of(*(frames(stream, seq) for stream in streams))])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: count_records(got) >= 150)
    assert seqs_by_stream(entries) == {stream: list(range(5)) for stream in streams}
    assert len(reader.partitions()) == 8
    partitions_of: dict[str, set[str]] = {}
    for entry in entries:
        for record in unpack(entry.payload)[0]:
            partitions_of.setdefault(record.stream, set()).add(entry.partition)  # type: ignore[union-attr]
    assert all(len(partitions) == 1 for partitions in partitions_of.values())
    assert len({entry.partition for entry in entries}) > 3


def test_records_of_many_streams_are_one_message_per_partition(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    streams = [str(uuid.uuid4()) for _ in range(60)]
    writer = open_writer(kafka_broker, topic, {})
    writer.append([entry_of(*(frames(stream, seq) for stream in streams)) for seq in range(4)])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: count_records(got) >= 240)
    assert seqs_by_stream(entries) == {stream: list(range(4)) for stream in streams}
    used = {entry.partition for entry in entries}
    assert len(entries) == len(used) == writer.stats()["messages"]


def test_a_stream_is_in_the_partition_of_its_id_as_key(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    """A stream therefore stays in its partition when `ship` is updated."""
    streams = [str(uuid.uuid4()) for _ in range(20)]
    open_writer(kafka_broker, topic, {}).append([entry_of(*(frames(stream, 0) for stream in streams))])
    producer = KafkaProducer(bootstrap_servers=kafka_broker)
    sent = {stream: producer.send(topic, key=stream.encode(), value=b"") for stream in streams}
    expected = {stream: str(future.get(30).partition) for stream, future in sent.items()}
    producer.close()
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: len([one for one in got if one.payload == b""]) >= 20)
    found = {
        record.stream: entry.partition  # type: ignore[union-attr]
        for entry in entries
        for record in unpack(entry.payload)[0]
    }
    assert found == expected


def test_records_are_redistributed_when_the_topic_has_fewer_partitions(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    """The topic is deleted and created again while the writer runs. Records may arrive twice, as after any retry."""
    streams = [str(uuid.uuid4()) for _ in range(30)]
    ensure_topic(kafka_broker, topic, {}, partitions=8)
    writer = open_writer(kafka_broker, topic, {"metadata_max_age_ms": 200})
    writer.append([entry_of(*(frames(stream, 0) for stream in streams))])
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker)
    admin.delete_topics([topic])
    while topic in admin.list_topics():
        time.sleep(0.05)
    admin.close()
    ensure_topic(kafka_broker, topic, {}, partitions=2)
    writer.append(
        [entry_of(*(frames(stream, 1) for stream in streams)), entry_of(Alive("t", 0, "i", 1, 2, 0))]
    )
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: len(seqs_by_stream(got)) >= 30)
    assert {seq for seqs in seqs_by_stream(entries).values() for seq in seqs} == {1}


def test_alive_goes_to_every_partition(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    open_writer(kafka_broker, topic, {}).append([entry_of(Alive("tap", 0, "i", 1, 2, 0))])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: len(got) >= 8)
    assert sorted(entry.partition for entry in entries) == list("01234567")


def test_large_records_arrive_and_one_over_the_limit_is_reported(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    sizes = [300_000, 600_000, 2_000_000, 900_000, 10]
    records = [Frames("s", seq, [(0, os.urandom(size))]) for seq, size in enumerate(sizes)]
    writer = open_writer(kafka_broker, topic, {})
    writer.append([pack(list(records), compress=True)])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: count_records(got) >= 5)
    got = records_of(entries)
    assert [got[0], got[1], got[3], got[4]] == [records[0], records[1], records[3], records[4]]
    assert isinstance(got[2], Lost)
    assert (got[2].seq, got[2].cause, got[2].bytes) == (2, "record_too_large", 2_000_000)
    assert writer.stats()["too_large_records"] == 1


def test_messages_shrink_when_the_topic_accepts_less_than_configured(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka import KafkaAdminClient

    ensure_topic(kafka_broker, topic, {})
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker)
    from kafka.admin import ConfigResource, ConfigResourceType

    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "100000"})])
    admin.close()
    # Simulate a user who may not read the topic's configuration.
    monkeypatch.setattr("streamgauge.ingest.record_log.kafka_client._max_message_bytes", lambda *_: 1_048_588)
    records = [Frames("s", seq, [(0, os.urandom(30_000))]) for seq in range(20)]
    writer = open_writer(kafka_broker, topic, {})
    writer.append([b"not an entry" * 200_000, pack(list(records), compress=False)])
    reader = open_reader(kafka_broker, topic, {})
    sound = lambda got: [one for one in got if not unpack(one.payload)[1]]  # noqa: E731
    entries = read_until(reader, lambda got: count_records(sound(got)) >= 20 and sound(got) != got)
    assert records_of(sound(entries)) == records
    assert [p.reason for one in entries for p in unpack(one.payload)[1]] == ["unknown_format"]
    assert writer.stats()["too_large_records"] == 0


def test_seek_range_and_end(kafka_broker: str, topic: str, open_reader: Any, open_writer: Any) -> None:
    writer = open_writer(kafka_broker, topic, {})
    for seq in range(6):
        writer.append([entry_of(frames("s", seq))])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: len(got) >= 6)
    partition = entries[0].partition
    assert reader.range(partition, 1, 4) == entries[1:4]
    assert reader.range(partition, 4, 100) == entries[4:]
    assert reader.range(partition, 3, 3) == []
    assert reader.end(partition) == 6
    assert reader.poll(0.2) == []  # `range` does not change the position

    other = open_reader(kafka_broker, topic, {})
    other.seek(partition, 4)  # before the reader has connected
    assert read_until(other, lambda got: len(got) >= 2) == entries[4:]
    other.seek(partition, 2)
    assert read_until(other, lambda got: len(got) >= 4) == entries[2:]
    assert other.log_id == reader.log_id


def test_a_reader_waits_for_a_missing_topic_and_does_not_create_it(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = open_reader(kafka_broker, topic, {})
    with caplog.at_level(logging.WARNING, "streamgauge.ingest"):
        assert reader.poll(2.5) == []
    assert len([record for record in caplog.records if "does not exist yet" in record.message]) == 1
    with pytest.raises(LogBroken, match="has not been reached yet"):
        _ = reader.log_id
    assert ensure_topic(kafka_broker, topic, {}, partitions=3).partitions == 3
    open_writer(kafka_broker, topic, {}).append([entry_of(frames("s", 0))])
    assert len(read_until(reader, lambda got: len(got) >= 1)) == 1
    assert list(reader.partitions()) == ["0", "1", "2"]


def test_added_partitions_are_read(kafka_broker: str, topic: str, open_reader: Any, open_writer: Any) -> None:
    from kafka import KafkaAdminClient

    ensure_topic(kafka_broker, topic, {}, partitions=1)
    reader = open_reader(kafka_broker, topic, {"metadata_max_age_ms": 500})
    assert reader.poll(0.1) == []
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker)
    admin.create_partitions({topic: 4})
    admin.close()
    open_writer(kafka_broker, topic, {}).append([entry_of(Alive("tap", 0, "i", 1, 2, 0))])
    read_until(reader, lambda got: {entry.partition for entry in got} == set("0123"))


def test_messages_deleted_by_retention_are_reported(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    from kafka import KafkaAdminClient, TopicPartition

    writer = open_writer(kafka_broker, topic, {})
    for seq in range(6):
        writer.append([entry_of(frames("s", seq))])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: len(got) >= 6)
    partition = entries[0].partition
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker)
    admin.delete_records({TopicPartition(topic, int(partition)): 4})
    admin.close()
    reader.seek(partition, 1)
    assert read_until(reader, lambda got: len(got) >= 2) == entries[4:]
    assert reader.take_unreadable() == [UnreadableRange(partition, 1, 4, "retention")]
    assert reader.range(partition, 2, 6) == entries[4:]
    assert reader.take_unreadable() == [UnreadableRange(partition, 2, 4, "retention")]


def test_a_recreated_topic_is_another_log(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    from kafka import KafkaAdminClient

    writer = open_writer(kafka_broker, topic, {})
    for seq in range(6):
        writer.append([entry_of(frames("s", seq))])
    options = {"metadata_max_age_ms": 500}
    reader = open_reader(kafka_broker, topic, options)
    partition = read_until(reader, lambda got: len(got) >= 6)[0].partition
    assert reader.end(partition) == 6
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker)
    admin.delete_topics([topic])
    admin.close()
    open_writer(kafka_broker, topic, {}).append([entry_of(frames("s", 1))])
    reader.seek(partition, 3)
    with pytest.raises(LogChanged, match="was deleted and created again"):
        read_until(reader, lambda got: False, polls=30)
    (unread,) = reader.take_unreadable()  # the position may already be the end of the new topic
    assert (unread.partition, unread.end, unread.reason) == (partition, 6, "replaced")
    again = open_reader(kafka_broker, topic, options)
    assert seqs_by_stream(read_until(again, lambda got: len(got) >= 1)) == {"s": [1]}
    assert again.log_id != reader.log_id


def test_a_message_without_a_value_is_an_entry(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any
) -> None:
    from kafka import KafkaProducer

    ensure_topic(kafka_broker, topic, {})
    producer = KafkaProducer(bootstrap_servers=kafka_broker)
    producer.send(topic, key=b"k", value=None)
    producer.send(topic, value=b"\x09garbage")
    producer.flush()
    producer.close()
    entries = read_until(open_reader(kafka_broker, topic, {}), lambda got: len(got) >= 2)
    assert {unpack(entry.payload)[1][0].reason for entry in entries} == {"unknown_format"}


# Outages


def test_an_unreachable_broker_is_logged_once(
    topic: str, open_reader: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = open_reader("127.0.0.1:1", topic, {})
    with caplog.at_level(logging.WARNING):
        assert [reader.poll(1.2) for _ in range(2)] == [[], []]
        assert reader.partitions() == []
    assert [record.message for record in caplog.records] == [
        "Kafka at 127.0.0.1:1 cannot be reached (Connection refused): reading resumes when it answers"
    ]


def test_a_writer_that_gives_up_raises(topic: str, open_writer: Any) -> None:
    stop = threading.Event()
    writer = open_writer("127.0.0.1:1", topic, {}, give_up=stop.is_set, progress=stop.set)
    with pytest.raises(LogBroken, match="stopped before Kafka had acknowledged"):
        writer.append([entry_of(frames("s", 0))])
    assert "Connection refused" in (writer.last_error or "")
    assert writer.failing


def test_kill_9_of_the_broker_under_load_loses_nothing_and_keeps_the_order(
    own_broker: Callable[..., Broker], topic: str, open_reader: Any, open_writer: Any
) -> None:
    broker = own_broker()
    streams = [str(uuid.uuid4()) for _ in range(12)]
    writer = open_writer(broker.address, topic, {})
    reader = open_reader(broker.address, topic, {})
    written = threading.Event()
    rounds = 120

    def write() -> None:
        for seq in range(rounds):
            writer.append([entry_of(*(frames(stream, seq, 500) for stream in streams))])
        written.set()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    entries = read_until(reader, lambda got: count_records(got) >= 100)
    broker.kill()
    broker.start()
    thread.join(DEADLINE_S)
    assert written.is_set()
    total = rounds * len(streams)
    seen = sum(len(set(seqs)) for seqs in seqs_by_stream(entries).values())
    while seen < total:
        entries += read_until(reader, lambda got: len(got) > 0)
        seen = sum(len(set(seqs)) for seqs in seqs_by_stream(entries).values())
    for seqs in seqs_by_stream(entries).values():
        first_seen = list(dict.fromkeys(seqs))
        assert first_seen == list(range(rounds))  # duplicates are allowed, gaps and disorder are not


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A key store for the broker and its certificate for clients."""
    store, pem = tmp_path / "broker.p12", tmp_path / "broker.pem"
    common: list[str | Path] = ["-alias", "broker", "-keystore", store, "-storepass", "changeit"]
    made = ["-keyalg", "EC", "-storetype", "PKCS12", "-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1"]
    subprocess.run(["keytool", "-genkeypair", *made, *common], check=True, capture_output=True)
    subprocess.run(["keytool", "-exportcert", "-rfc", "-file", pem, *common], check=True, capture_output=True)
    return store, pem


def test_tls_and_sasl_options_are_passed_to_kafka(
    own_broker: Callable[..., Broker],
    certificate: tuple[Path, Path],
    topic: str,
    open_reader: Any,
    open_writer: Any,
) -> None:
    store, pem = certificate
    arguments, options = sasl_ssl(store, pem, "secret")
    broker = own_broker(*arguments)
    open_writer(broker.address, topic, options).append([entry_of(frames("s", 0))])
    assert len(read_until(open_reader(broker.address, topic, options), lambda got: len(got) >= 1)) == 1

    add_scram_user(broker.address, options, "another secret")
    for number, mechanism in enumerate(SCRAM, 1):
        signed_in = {**options, "sasl_mechanism": mechanism, "sasl_plain_password": "another secret"}
        open_writer(broker.address, topic, signed_in).append([entry_of(frames("s", number))])
        entries: list[Entry] = []
        reader = open_reader(broker.address, topic, signed_in)
        while len(entries) <= number:
            entries += read_until(reader, lambda got: len(got) > 0)
        assert len(entries) == number + 1

    for mistake, message in (
        ({"sasl_plain_password": "guess"}, "check user and password"),
        ({"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_password": "guess"}, "check user and password"),
        ({"ssl_cafile": None}, "certificate verify failed"),
        ({"security_protocol": "PLAINTEXT"}, "no answer to PLAINTEXT"),
    ):
        stop = threading.Event()
        wrong = open_writer(
            broker.address,
            topic,
            {**options, "bootstrap_timeout_ms": 1500, **mistake},
            give_up=stop.is_set,
            progress=stop.set,
        )
        with pytest.raises(LogBroken):
            wrong.append([entry_of(frames("s", 1))])
        assert message in (wrong.last_error or "")
        assert "guess" not in (wrong.last_error or "")


@pytest.mark.parametrize("name", ["acks", "enable_idempotence", "ssl_context", "group_id"])
def test_options_that_would_break_a_guarantee_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is set by Streamgauge"):
        check_options({name: 1})


def test_unknown_options_and_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="kafka-python has no option 'sasl_mecanism'"):
        check_options({"sasl_mecanism": "PLAIN"})
    for bad in ("", "host", "host:", ":9092", "a:1,b"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            split_brokers(bad)
    assert split_brokers("a:1, b:2,") == ["a:1", "b:2"]


def test_a_user_who_may_not_create_the_topic_gets_the_command(
    own_broker: Callable[..., Broker], topic: str, open_writer: Any
) -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{login} user_gauge="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # all clients of the broker's own listener
    }
    settings = [part for name, value in properties.items() for part in ("--config", f"{name}={value}")]
    broker = own_broker("--security", "SASL_PLAINTEXT", *settings)
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "gauge",
        "sasl_plain_password": "secret",
    }

    def error_with(allowed: Sequence[ACLOperation]) -> str:
        if allowed:
            with admin_of(broker) as admin:
                pattern = ResourcePattern(ResourceType.TOPIC, topic)
                admin.create_acls(
                    [ACL("User:gauge", "*", one, ACLPermissionType.ALLOW, pattern) for one in allowed]
                )
        stop = threading.Event()
        writer = open_writer(broker.address, topic, options, give_up=stop.is_set, progress=stop.set)
        with pytest.raises(LogBroken):
            writer.append([entry_of(frames("s", 0))])
        return writer.last_error or ""

    assert f"may not describe the topic {topic!r}: grant Describe and Write" in error_with([])
    made = error_with([ACLOperation.DESCRIBE, ACLOperation.WRITE])
    assert f"kafka-topics.sh --create --topic {topic} --partitions 8" in made


@contextmanager
def admin_of(broker: Broker) -> Iterator[Any]:
    """An admin client on the broker's own listener."""
    properties = "".join(path.read_text() for path in broker.data.glob("*.properties"))
    found = re.search(r"INTERNAL://(127\.0\.0\.1:\d+)", properties)
    assert found is not None
    admin = KafkaAdminClient(bootstrap_servers=found[1])
    try:
        yield admin
    finally:
        admin.close()


@pytest.mark.slow
def test_a_batch_damaged_on_the_brokers_disk_is_skipped(
    own_broker: Callable[..., Broker], topic: str, open_reader: Any, open_writer: Any
) -> None:
    broker = own_broker()
    ensure_topic(broker.address, topic, {}, partitions=1)
    writer = open_writer(broker.address, topic, {})
    marks = [b"first" * 40, b"damaged" * 40, b"last" * 40]
    for seq, mark in enumerate(marks):
        writer.append([pack([Frames(str(uuid.uuid4()), seq, [(0, os.urandom(300) + mark)])], compress=False)])
    broker.stop()
    (segment,) = broker.data.rglob(f"{topic}-0/*.log")
    stored = bytearray(segment.read_bytes())
    sizes, at = [], 0
    while at < len(stored):
        sizes.append(12 + int.from_bytes(stored[at + 8 : at + 12]))
        at += sizes[-1]
    assert len(sizes) == 3
    stored[sizes[0] + sizes[1] - 50] ^= 0xFF
    segment.write_bytes(stored)
    broker.start()
    reader = open_reader(broker.address, topic, {})
    entries = read_until(reader, lambda got: len(got) >= 2)
    assert [entry.offset for entry in entries] == [0, 2]
    (damage,) = reader.take_unreadable()
    assert (damage.first, damage.end, damage.reason) == (1, 2, "unreadable")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb_is_skipped(
    kafka_broker: str, topic: str, open_reader: Any, open_writer: Any, codec: str
) -> None:
    ensure_topic(kafka_broker, topic, {}, partitions=1)
    writer = open_writer(kafka_broker, topic, {})
    first, last = (entry_of(frames(str(uuid.uuid4()), 0, 200)) for _ in range(2))
    writer.append([first])
    producer = KafkaProducer(bootstrap_servers=kafka_broker, compression_type=codec, max_request_size=2**28)
    producer.send(topic, value=bytes(MAX_BATCH_BYTES + 1)).get(60)
    producer.close()
    writer.append([last])
    reader = open_reader(kafka_broker, topic, {})
    entries = read_until(reader, lambda got: len(got) >= 2)
    assert [entry.offset for entry in entries] == [0, 2]
    (damage,) = reader.take_unreadable()
    assert (damage.first, damage.end, damage.reason) == (1, 2, "unreadable")


@pytest.mark.parametrize(("pack_", "unpack_"), [(gzip_encode, gunzip), (zstd_encode, unzstd)])
def test_a_batch_within_the_limit_is_unchanged(
    pack_: Callable[[bytes], bytes], unpack_: Callable[[bytes], bytes]
) -> None:
    for data in (b"", os.urandom(3_000_000), bytes(MAX_BATCH_BYTES)):
        assert unpack_(pack_(data)) == data
    with pytest.raises(ValueError, match="more than 64 MiB"):
        unpack_(pack_(bytes(MAX_BATCH_BYTES + 1)))

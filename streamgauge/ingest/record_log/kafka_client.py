"""Connections to Kafka for readers and the writer: options, reachability, the topic, and log lines during an outage.

kafka-python reconnects automatically, but only after a first successful connection. So the callers retry, and `connect` closes
failed clients, which would keep their sockets. kafka-python's log lines (one per attempt and broker) are suppressed unless the
logger `kafka` was configured. `OutageLog` reports an outage instead.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import zstandard
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.net.compat import KafkaNetClient
from kafka.record import default_records, legacy_records

from streamgauge.ingest.listening import split_address
from streamgauge.ingest.record_log.interface import LogBroken

log = logging.getLogger(__name__)

PARTITIONS = 8
"""Partitions of a topic that we create. Up to this many consumers can share it later without moving streams."""
RETENTION_MS = 7 * 24 * 3600 * 1000
"""Retention of a topic that we create: analytics may be down for a week."""
DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's default of max.message.bytes, used when the topic's configuration may not be read."""
CONNECT_MS = 8000
PROBE_S = 2.0

_RESERVED_OPTIONS = frozenset(
    {
        "bootstrap_servers",
        "kafka_client",
        "ssl_context",
        "group_id",
        "group_instance_id",
        "enable_auto_commit",
        "auto_offset_reset",
        "acks",
        "enable_idempotence",
        "delivery_timeout_ms",
        "transactional_id",
        "partitioner",
        "key_serializer",
        "value_serializer",
        "key_deserializer",
        "value_deserializer",
        "isolation_level",
    }
)
"""Options that users cannot set: other values would break the log's guarantees or cannot be written as JSON."""
_FIRST_REPEAT_S, _LONGEST_REPEAT_S = 30.0, 600.0

Client = TypeVar("Client")


@dataclass(frozen=True, slots=True)
class Topic:
    """Properties of the topic."""

    partitions: int
    max_message_bytes: int


class OutageLog:
    """Logs the start of an outage, repeats it at growing intervals, and logs its end once."""

    def __init__(self, recovery_message: str) -> None:
        self._recovery_message = recovery_message
        self._since_s: float | None = None
        self._repeat_at_s = self._interval_s = 0.0
        self.last_error: str | None = None
        """The newest error. Kept after recovery."""

    @property
    def ongoing(self) -> bool:
        """The last attempt failed."""
        return self._since_s is not None

    def failed(self, message: str) -> None:
        """Record a failed attempt."""
        now_s = time.monotonic()
        self.last_error = message
        if self._since_s is None:
            self._since_s, self._repeat_at_s, self._interval_s = now_s, now_s, _FIRST_REPEAT_S
        if now_s >= self._repeat_at_s:
            log.warning("%s", message)
            self._repeat_at_s = now_s + self._interval_s
            self._interval_s = min(self._interval_s * 2, _LONGEST_REPEAT_S)

    def recovered(self) -> None:
        """Record a successful attempt."""
        if self._since_s is not None:
            log.info("%s after %.0f s", self._recovery_message, time.monotonic() - self._since_s)
            self._since_s = None


def error_line(error: Exception) -> str:
    """One line for an error of kafka-python. It starts with the class name."""
    text = (str(error).splitlines() or [""])[0][:300]
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name


def split_brokers(brokers: str) -> list[str]:
    """["h1:9092", "h2:9092"] from "h1:9092,h2:9092". Raises ValueError."""
    found = [broker.strip() for broker in brokers.split(",") if broker.strip()]
    if not found:
        raise ValueError("no Kafka broker given: pass HOST:PORT")
    for broker in found:
        split_address(broker)
    return found


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the options. Raises ValueError for an option that kafka-python does not have or that users cannot set."""
    for name in options:
        if name in _RESERVED_OPTIONS:
            raise ValueError(f"the Kafka option {name!r} is set by Streamgauge: remove it")
        if not any(
            name in client.DEFAULT_CONFIG for client in (KafkaProducer, KafkaConsumer, KafkaAdminClient)
        ):
            raise ValueError(f"kafka-python has no option {name!r}: check the spelling")
    return dict(options)


class _ConnectionErrors(logging.Handler):
    """Keeps the reason for the last failed connection: kafka-python logs it but leaves it out of its exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        before, found, reason = record.getMessage().partition(" failed: ")
        if found and "connection" in before.lower():
            self.last = reason[:300]


_connection_errors = _ConnectionErrors()


def silence_client_logs() -> None:
    """Suppress kafka-python's log lines, unless its logger was configured."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET and all(
        isinstance(one, logging.NullHandler) for one in logger.handlers
    ):
        logger.setLevel(logging.WARNING)
        logger.addHandler(_connection_errors)
        logger.propagate = False


def probe(brokers: list[str]) -> None:
    """Raise OSError unless one of the brokers accepts a TCP connection."""
    failure: OSError | None = None
    for broker in brokers:
        try:
            socket.create_connection(split_address(broker), timeout=PROBE_S).close()
        except OSError as error:
            failure = error
        else:
            return
    assert failure is not None
    raise failure


def connect(
    kind: Callable[..., Client], brokers: list[str], options: Mapping[str, Any], **defaults: Any
) -> Client:
    """A connected client of kafka-python. The user's `options` override `defaults`.

    Raises OSError when no broker accepts a connection, KafkaError when none answers. No socket stays open then.
    """
    probe(brokers)
    silence_client_logs()
    _connection_errors.last = ""
    net_clients: list[Any] = []

    def client(**config: Any) -> Any:
        net_client = KafkaNetClient(**config)
        # Otherwise a request for a missing topic creates it with the broker's defaults. In kafka-python 3.0 the public
        # option of this name does not reach the metadata requests.
        net_client.cluster.config["allow_auto_create_topics"] = False
        net_clients.append(net_client)
        return net_client

    supported = kind.DEFAULT_CONFIG  # type: ignore[attr-defined]
    config = {
        "bootstrap_timeout_ms": CONNECT_MS,
        "reconnect_backoff_max_ms": 2000,
        "request_timeout_ms": 15_000,
        **defaults,
        **{name: value for name, value in options.items() if name in supported},
    }
    try:
        return kind(bootstrap_servers=brokers, kafka_client=client, **config)
    except BaseException as error:
        for net_client in net_clients:
            with contextlib.suppress(Exception):
                net_client.close()
        if isinstance(error, errors.KafkaTimeoutError):
            protocol = config.get("security_protocol", "PLAINTEXT")
            setting = "user and password" if protocol.startswith("SASL") else "security_protocol"
            raise errors.KafkaTimeoutError(
                f"no answer to {protocol} ({_connection_errors.last or 'no response'}), check {setting}"
            ) from error
        raise


def ensure_topic(
    brokers: str, topic: str, options: Mapping[str, Any], *, partitions: int = PARTITIONS
) -> Topic:
    """Create the topic unless it exists.

    Raises OSError or KafkaError when Kafka does not answer, LogBroken when the topic is missing and we may not create it.
    """
    admin = connect(KafkaAdminClient, split_brokers(brokers), options, client_id="streamgauge-admin")
    try:
        count = _partition_count(admin, topic)
        if count == 0:
            _create(admin, topic, partitions)
            count = _partition_count(admin, topic) or partitions
        return Topic(count, _max_message_bytes(admin, topic))
    finally:
        admin.close()


def _partition_count(admin: Any, topic: str) -> int:
    for described in admin.describe_topics([topic]):
        if described.get("error_code") == errors.TopicAuthorizationFailedError.errno:
            raise LogBroken(f"this Kafka user may not describe the topic {topic!r}: grant Describe and Write")
        if described.get("name") == topic and not described.get("error_code"):
            return len(described["partitions"])
    return 0


def _create(admin: Any, topic: str, partitions: int) -> None:
    settings = {"retention.ms": str(RETENTION_MS), "cleanup.policy": "delete"}
    specification = {topic: {"num_partitions": partitions, "configs": settings}}
    try:
        admin.create_topics(specification, timeout_ms=CONNECT_MS, wait_for_metadata=True)
        log.info("created the Kafka topic %r with %d partitions", topic, partitions)
    except errors.TopicAlreadyExistsError:
        pass  # another process created it first
    except (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError):
        raise LogBroken(
            f"the Kafka topic {topic!r} is missing and this user may not create it. Create it with "
            f"{partitions} partitions (kafka-topics.sh --create --topic {topic} --partitions {partitions})"
        ) from None


def _max_message_bytes(admin: Any, topic: str) -> int:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], config_filter="all")
        return int(found["topic"][topic]["max.message.bytes"]["value"])
    except (errors.KafkaError, KeyError, TypeError, ValueError):
        return DEFAULT_MESSAGE_BYTES


MAX_BATCH_BYTES = 64 * 2**20
"""Limit for a decompressed batch. `ship` sends 512 KiB, or one record as large as the broker accepts."""
MAX_WINDOW_BYTES = 8 * 2**20
"""Limit for zstd's window. Levels up to 19 stay below it."""


# kafka-python has no limit for the decompressed size of a batch, and anyone who can reach the broker can write a small batch that
# decompresses to gigabytes. It looks its codecs up by name in two modules, so they can be replaced there. Readers skip and report a
# batch over the limit like a damaged one. Snappy and LZ4 need no limit: they are not installed, so the client rejects them.
def limit_codecs() -> None:
    """Replace the client's codecs in this process."""
    for module in (default_records, legacy_records):
        module.gzip_decode = gunzip
    default_records.zstd_decode = unzstd


def gunzip(payload: bytes | memoryview) -> bytes:
    """Raises ValueError over the limit, and the errors of gzip for damaged data."""
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as file:
        return _within(file.read(MAX_BATCH_BYTES + 1))


def unzstd(payload: bytes | memoryview) -> bytes:
    """Raises ValueError over the limit, zstandard.ZstdError for damaged data."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    with decompressor.stream_reader(io.BytesIO(payload), read_across_frames=True) as reader:
        return _within(reader.read(MAX_BATCH_BYTES + 1))


def _within(data: bytes) -> bytes:
    if len(data) > MAX_BATCH_BYTES:
        raise ValueError(f"a batch decompresses to more than {MAX_BATCH_BYTES // 2**20} MiB")
    return data

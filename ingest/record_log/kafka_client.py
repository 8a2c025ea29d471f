"""Connections to Kafka, as both ends of the log make them: options, reachability, the topic, and what is said of trouble.

kafka-python keeps trying by itself once it is connected, but not before: each attempt to connect is ours, and is closed
when it fails (a client that never connected would keep its sockets). Its own log lines, one for each attempt at each
broker, are silenced unless somebody sets the level of the logger `kafka`: `Trouble` says it once.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
)
from kafka.net.compat import KafkaNetClient

from ingest.record_log import LogBroken

log = logging.getLogger(__name__)

PARTITIONS = 8
"""Of a topic that we make: as many consumers can share it later, and no stream moves when they do."""
RETENTION_MS = 7 * 24 * 3600 * 1000
"""Of a topic that we make: analytics may be down for a week."""
DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes, used where its configuration may not be read."""
CONNECT_MS = 8000
PROBE_S = 2.0

_OURS = frozenset(
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
"""Options that are not the user's: another value would break what the log promises, or cannot be written as JSON."""
_FIRST_AGAIN_S, _LAST_AGAIN_S = 30.0, 600.0

Client = TypeVar("Client")


@dataclass(frozen=True, slots=True)
class Topic:
    """What is known of the topic."""

    partitions: int
    max_message_bytes: int


class Trouble:
    """Says that something does not work: at once, then at growing intervals, and once when it works again."""

    def __init__(self, works_again: str) -> None:
        self._works_again = works_again
        self._since_s: float | None = None
        self._again_s = self._interval_s = 0.0
        self.last: str | None = None
        """The last trouble, kept after it has passed."""

    @property
    def now(self) -> bool:
        """It did not work when it was last tried."""
        return self._since_s is not None

    def said(self, message: str) -> None:
        """It does not work."""
        now_s = time.monotonic()
        self.last = message
        if self._since_s is None:
            self._since_s, self._again_s, self._interval_s = now_s, now_s, _FIRST_AGAIN_S
        if now_s >= self._again_s:
            log.warning("%s", message)
            self._again_s = now_s + self._interval_s
            self._interval_s = min(self._interval_s * 2, _LAST_AGAIN_S)

    def passed(self) -> None:
        """It works."""
        if self._since_s is not None:
            log.info("%s after %.0f s", self._works_again, time.monotonic() - self._since_s)
            self._since_s = None


def said_by(error: Exception) -> str:
    """An error of kafka-python in one line, which begins with its class."""
    text = (str(error).splitlines() or [""])[0][:300]
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name


def split_brokers(brokers: str) -> list[str]:
    """["h1:9092", "h2:9092"] from "h1:9092,h2:9092". Raises ValueError."""
    found = [one.strip() for one in brokers.split(",") if one.strip()]
    for one in found:
        host, _, port = one.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{one!r} is not HOST:PORT of a Kafka broker")
    if not found:
        raise ValueError("no Kafka broker is given: HOST:PORT")
    return found


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if kafka-python knows them all and they may be set. Raises ValueError."""
    for name in options:
        if name in _OURS:
            raise ValueError(f"the Kafka option {name!r} is set by Streamgauge and cannot be given")
        if not any(
            name in client.DEFAULT_CONFIG for client in (KafkaProducer, KafkaConsumer, KafkaAdminClient)
        ):
            raise ValueError(f"kafka-python knows no option {name!r}")
    return dict(options)


class _LastWords(logging.Handler):
    """Keeps why kafka-python's last connection failed: its exceptions leave the reason out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        before, found, reason = record.getMessage().partition(" failed: ")
        if found and "connection" in before.lower():
            self.text = reason[:300]


_last_words = _LastWords()


def silence_client_logs() -> None:
    """Keep kafka-python's lines to ourselves, unless its logger was set up on purpose."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET and all(
        isinstance(one, logging.NullHandler) for one in logger.handlers
    ):
        logger.setLevel(logging.WARNING)
        logger.addHandler(_last_words)
        logger.propagate = False


def probe(brokers: list[str]) -> None:
    """Raise OSError unless one of the brokers takes a TCP connection."""
    failure: OSError | None = None
    for one in brokers:
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()
        except OSError as error:
            failure = error
        else:
            return
    assert failure is not None
    raise failure


def connect(
    kind: Callable[..., Client], brokers: list[str], options: Mapping[str, Any], **ours: Any
) -> Client:
    """Make a client of kafka-python, connected. `ours` yields to the user's options where both say something.

    Raises OSError when no broker takes a connection, KafkaError when none serves us; nothing is left open then.
    """
    probe(brokers)
    silence_client_logs()
    _last_words.text = ""
    made: list[Any] = []

    def client(**config: Any) -> Any:
        net_client = KafkaNetClient(**config)
        # A topic that is asked for before it is there must not be made with the broker's defaults. The public option
        # of this name stops short of the metadata requests in kafka-python 3.0.
        net_client.cluster.config["allow_auto_create_topics"] = False
        made.append(net_client)
        return net_client

    known = kind.DEFAULT_CONFIG  # type: ignore[attr-defined]
    config = {
        "bootstrap_timeout_ms": CONNECT_MS,
        "reconnect_backoff_max_ms": 2000,
        "request_timeout_ms": 15_000,
        **ours,
        **{name: value for name, value in options.items() if name in known},
    }
    try:
        return kind(bootstrap_servers=brokers, kafka_client=client, **config)
    except BaseException as error:
        for net_client in made:
            with contextlib.suppress(Exception):
                net_client.close()
        if isinstance(error, KafkaTimeoutError):
            protocol = config.get("security_protocol", "PLAINTEXT")
            what = "user and password" if protocol.startswith("SASL") else "security_protocol"
            raise KafkaTimeoutError(
                f"no answer to {protocol} ({_last_words.text or 'silence'}), check {what}"
            ) from error
        raise


def ensure_topic(
    brokers: str, topic: str, options: Mapping[str, Any], *, partitions: int = PARTITIONS
) -> Topic:
    """Make the topic unless it is there.

    Raises OSError or KafkaError when Kafka does not answer, LogBroken when the topic is not there and may not be made.
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
        if described.get("error_code") == TopicAuthorizationFailedError.errno:
            raise LogBroken(f"this Kafka user may not see the topic {topic!r}: allow it Describe and Write")
        if described.get("name") == topic and not described.get("error_code"):
            return len(described["partitions"])
    return 0


def _create(admin: Any, topic: str, partitions: int) -> None:
    settings = {"retention.ms": str(RETENTION_MS), "cleanup.policy": "delete"}
    wanted = {topic: {"num_partitions": partitions, "configs": settings}}
    try:
        admin.create_topics(wanted, timeout_ms=CONNECT_MS, wait_for_metadata=True)
        log.info("made the Kafka topic %r with %d partitions", topic, partitions)
    except TopicAlreadyExistsError:
        pass  # another one of us was first
    except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
        raise LogBroken(
            f"the Kafka topic {topic!r} is not there and this user may not make it: have it made with "
            f"{partitions} partitions (kafka-topics.sh --create --topic {topic} --partitions {partitions})"
        ) from None


def _max_message_bytes(admin: Any, topic: str) -> int:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], config_filter="all")
        return int(found["topic"][topic]["max.message.bytes"]["value"])
    except (KafkaError, KeyError, TypeError, ValueError):
        return DEFAULT_MESSAGE_BYTES

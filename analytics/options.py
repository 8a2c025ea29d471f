"""Options of `streamgauge analyze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamgauge.analytics.alerts.evaluator import AlertOptions
from streamgauge.analytics.commit_policy import CommitPolicy
from streamgauge.analytics.schema.clients import Client
from streamgauge.analytics.schema.objectives import DEFAULT, Objective
from streamgauge.analytics.schema.prices import Price
from streamgauge.analytics.telemetry.telemetry import TelemetryOptions


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """Options of the analytics process. Times are in seconds."""

    data: Path
    kafka: str | None = None
    """Brokers (`host:port,host:port`). None: the embedded log in the data folder."""
    kafka_topic: str = "streamgauge"
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    store: str = field(default="sqlite", repr=False)
    """`sqlite`: the catalog is a file in the data folder. `postgres:DSN`: several consumers can share it."""
    lake_path: str | None = None
    """With PostgreSQL: folder or s3://… of the Parquet files. None: the one in the catalog."""
    retain_events_s: float | None = 7 * 86400.0
    """None: no deletion."""
    retain_streams_s: float | None = 90 * 86400.0
    retain_rollups_s: float | None = 400 * 86400.0
    capture: Sequence[str] = ()
    """Globs of the paths whose generated text is stored."""
    stall_floor_s: float = 0.5
    stall_factor: float = 5.0
    client_key: bytes | None = field(default=None, repr=False)
    """Key of session ids. None: `client.key` in the data folder, created when missing."""
    objectives: Sequence[Objective] = (DEFAULT,)
    """In the order of their priority."""
    prices: Sequence[Price] = ()
    """In the order of their priority."""
    clients: Sequence[Client] = ()
    """Names of clients."""
    lost_after_s: float = 60.0
    tap_gone_after_s: float | None = 24 * 3600.0
    """A tap is lost after this silence, measured by other taps (`streamgauge.analytics.assembly.tap_liveness`). None: never."""
    checkpoint_after_s: float = 60.0
    memory_limit_bytes: int | None = None
    """Memory limit of DuckDB. None: 1 GiB."""
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    otlp_listen: str | None = None
    """HOST:PORT of the OTLP receiver. None: no receiver."""
    otlp_token: str | None = field(default=None, repr=False)
    """Bearer token that senders need. None: no authentication, loopback only."""
    allowed_hosts: Sequence[str] = ()
    """Further names in requests to the OTLP receiver (`streamgauge.ingest.allowed_hosts`)."""
    alerts: AlertOptions = field(default_factory=AlertOptions)
    version: str = ""
    """Version of Streamgauge for the telemetry resource."""
    commit_policy: CommitPolicy = field(default_factory=CommitPolicy)

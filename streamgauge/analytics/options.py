"""Options of `streamgauge analyze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamgauge.analytics.alerts.evaluator import AlertOptions
from streamgauge.analytics.consumer import CommitPolicy
from streamgauge.analytics.schema.budgets import Budget
from streamgauge.analytics.schema.clients import Client
from streamgauge.analytics.schema.objectives import Objective
from streamgauge.analytics.schema.prices import Price
from streamgauge.analytics.telemetry.telemetry import TelemetryOptions
from streamgauge.ingest.labels import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeOptions:
    """Options of the analytics process. Times are in seconds. `streamgauge.settings.model` has the default of each setting."""

    data: Path
    kafka: str | None
    """Brokers (`host:port,host:port`). None: the embedded log in the data folder."""
    kafka_topic: str
    kafka_options: Mapping[str, Any]
    store: str = field(repr=False)
    """`sqlite`: the catalog is a file in the data folder. `postgres:DSN`: several consumers can share it."""
    lake_path: str | None
    """With PostgreSQL: folder or s3://… of the Parquet files. None: the one in the catalog."""
    retain_events_s: float | None
    """None: no deletion."""
    retain_streams_s: float | None
    retain_rollups_s: float | None
    capture: Sequence[str]
    """Globs of the paths whose generated text is stored."""
    stall_floor_s: float
    stall_factor: float
    client_key: bytes | None = field(repr=False)
    """Key of session ids. None: `client.key` in the data folder, created when missing."""
    objectives: Sequence[Objective]
    """In the order of their priority."""
    prices: Sequence[Price]
    """In the order of their priority."""
    budgets: Sequence[Budget]
    clients: Sequence[Client]
    """Names of clients."""
    labels: Sequence[Label]
    telemetry: TelemetryOptions
    otlp_listen: str | None
    """HOST:PORT of the OTLP receiver. None: no receiver."""
    otlp_token: str | None = field(repr=False)
    """Bearer token that senders need. None: no authentication, loopback only."""
    allowed_hosts: Sequence[str]
    """Further names in requests to the OTLP receiver (`streamgauge.ingest.listening`)."""
    alerts: AlertOptions
    version: str
    """Version of Streamgauge for the telemetry resource."""

    # Constants. Tests and benchmarks change them.
    lost_after_s: float = 60.0
    checkpoint_after_s: float = 60.0
    memory_limit_bytes: int | None = None
    """Memory limit of DuckDB. None: 1 GiB."""
    commit_policy: CommitPolicy = field(default_factory=CommitPolicy)

"""Options of `streamgauge analyze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analytics.consumer import Pace
from analytics.telemetry.telemetry import TelemetryOptions


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """Times in seconds."""

    data: Path
    kafka: str | None = None
    """Brokers (`host:port,host:port`); None = the embedded log in the data folder."""
    kafka_topic: str = "streamgauge"
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    store: str = field(default="sqlite", repr=False)
    """`sqlite`: the catalog is a file in the data folder; `postgres:DSN`: other consumers may share it."""
    lake_path: str | None = None
    """With PostgreSQL: folder or s3://… of the Parquet files. None: the one that the catalog names."""
    retain_events_s: float | None = 7 * 86400.0
    """None: for ever."""
    retain_streams_s: float | None = 90 * 86400.0
    retain_rollups_s: float | None = 400 * 86400.0
    capture: Sequence[str] = ()
    """Globs of the paths whose generated text is stored."""
    stall_floor_s: float = 0.5
    stall_factor: float = 5.0
    lost_after_s: float = 60.0
    gone_after_s: float | None = 24 * 3600.0
    """Of a tap that only others' time tells silent (`analytics.assembly.tap_liveness`); None: never."""
    checkpoint_after_s: float = 60.0
    memory_limit_bytes: int | None = None
    """Of DuckDB; None: 1 GiB."""
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)
    otlp_listen: str | None = None
    """HOST:PORT where spans of others are taken; None: nowhere."""
    otlp_token: str | None = field(default=None, repr=False)
    """What their senders must give; None: nothing, on the loopback only."""
    version: str = ""
    """Of Streamgauge, told with the telemetry."""
    pace: Pace = field(default_factory=Pace)

"""Options of the recording of one source: a tap's worker, a packet capture, a file. Times are in seconds."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamgauge.ingest.labels import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """Where and what a source records."""

    # Settings: required here, because `streamgauge.settings.model` has the only default of each.
    data: Path
    tap_name: str
    client_key: bytes | None
    """Hash key for client ids. None: DATA/client.key, created when missing."""
    session_headers: tuple[str, ...]
    """Further headers with a session (`streamgauge.ingest.keyed_ids`)."""
    labels: tuple[Label, ...]
    record_log_max_bytes: int
    """Most bytes of the local log, of all its partitions together."""

    # Constants, and values that the supervisor sets. Tests and benchmarks change them.
    worker: int = 0
    """Number of the source, and of its partition of the log."""
    spare_offsets: Sequence[int] = ()
    """Added to `worker`, these are numbers to take if the partition of `worker` is in use."""
    clock_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Shared by all workers, which run on one host and thus have one monotonic clock."""
    record_log_max_age_s: float = 7 * 86_400.0
    """Older unread segments are dropped, reported as lost: a log that nothing reads must not keep prompts for ever."""
    queue_bytes: int = 64 * 2**20
    """Most bytes waiting for the log; more are dropped and counted."""
    request_capture_bytes: int = 65_536
    alive_s: float = 2.0
    log_stop_timeout_s: float = 5.0
    """How long a stop waits for the log to take the last records."""

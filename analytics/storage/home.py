"""Where the tables live, with everything around them: who serves them, and who keeps them in order.

`FileHome`: one DuckDB file, which this process alone can open; so it answers SQL over Quack, lets old rows go itself, and
makes the file smaller when most of it is free.
`LakeHome`: a lake that many consumers share and everybody can read; nobody serves it, and one of the consumers keeps it in
order.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from analytics.analyze_options import AnalyzeOptions
from analytics.consumer import Pace
from analytics.holdings import Tables
from analytics.lake.place import Lake, parse
from analytics.lake.store import LakeStore
from analytics.lake.upkeep import Upkeep
from analytics.serving.endpoint import Endpoint
from analytics.serving.serve import Server
from analytics.storage.compact import WHILE_RUNNING_BYTES, blocks_of, compact, has_room
from analytics.storage.retention import Retention
from analytics.storage.store import FILE, Store

LAKE_PACE = Pace(commit_interval_s=1.0)
"""A commit to a lake costs some 50 ms and writes files: once a second is fresh enough for what many processes write."""


COMPACT_EVERY_S = 24 * 3600.0
"""In mid-run, and when it was not done for whatever reason."""


class Home(Protocol):
    """The tables of one analytics process."""

    @property
    def store(self) -> Tables: ...
    @property
    def pace(self) -> Pace: ...

    def open(self, metrics: str | None) -> Endpoint:
        """Begin to serve and to keep in order; where readers find the tables. Raises OSError or ValueError."""

    def sweep(self) -> dict[str, float]:
        """Housekeeping, every few seconds; returns gauges of the store."""

    def wants_rest(self) -> bool:
        """Whether the tables had better be closed and opened again now."""

    def close(self) -> None:
        """End what `open` began; the store stays open."""


def home_of(options: AnalyzeOptions, stop: threading.Event) -> FileHome | LakeHome:
    """The home that the options name; `stop` cuts a long opening short. Raises OSError or ValueError with one line."""
    lake = parse(options.store, options.data_path)
    return FileHome(options, stop) if lake is None else LakeHome(options, lake)


class FileHome:
    """The file in the data folder."""

    def __init__(self, options: AnalyzeOptions, stop: threading.Event) -> None:
        self._options = options
        self._path = options.data / FILE
        self._closing: list[Callable[[], None]] = []
        self._server: Server | None = None
        self.pace = options.pace or Pace()
        compact(self._path, stop=stop, memory_limit_bytes=options.memory_limit_bytes)
        self._opened_s = time.monotonic()
        self.store = Store(
            self._path,
            memory_limit_bytes=options.memory_limit_bytes,
            stall=(int(options.stall_floor_s * 1e9), options.stall_factor),
        )

    def open(self, metrics: str | None) -> Endpoint:
        """As `Home.open`."""
        options = self._options
        self._server = server = Server(
            self.store.cursor(),
            host=options.quack_host,
            port=options.quack_port,
            token=options.quack_token,
            bounds=options.bounds,
        )
        self.store.on_memory = server.interrupt_queries
        retention = Retention(
            self.store,
            events_s=options.retain_events_s,
            streams_s=options.retain_streams_s,
            rollups_s=options.retain_rollups_s,
        )
        self._closing = [retention.close, server.close]
        retention.start()
        return Endpoint(server.quack, server.token, os.getpid(), metrics)

    def sweep(self) -> dict[str, float]:
        """As `Home.sweep`."""
        if self._server is not None:
            self._server.sweep()
        return {"store.size": float(self._path.stat().st_size)}

    def wants_rest(self) -> bool:
        """As `Home.wants_rest`: most of the file is free, and the rest is quickly copied."""
        if time.monotonic() - self._opened_s < COMPACT_EVERY_S:
            return False
        with contextlib.closing(self.store.cursor()) as cursor:
            blocks = blocks_of(cursor, self._path.stem)
        return blocks.worth_it() and blocks.used_bytes <= WHILE_RUNNING_BYTES and has_room(self._path, blocks)

    def close(self) -> None:
        """As `Home.close`."""
        for close in self._closing:
            close()
        self._closing = []


class LakeHome:
    """A lake."""

    def __init__(self, options: AnalyzeOptions, lake: Lake) -> None:
        self._options = options
        self._upkeep: Upkeep | None = None
        self.pace = options.pace or LAKE_PACE
        self.store = LakeStore(
            lake,
            memory_limit_bytes=options.memory_limit_bytes,
            stall=(int(options.stall_floor_s * 1e9), options.stall_factor),
        )

    def open(self, metrics: str | None) -> Endpoint:
        """As `Home.open`."""
        options = self._options
        self._upkeep = Upkeep(
            self.store,
            events_s=options.retain_events_s,
            streams_s=options.retain_streams_s,
            rollups_s=options.retain_rollups_s,
        )
        self._upkeep.start()
        return Endpoint("", "", os.getpid(), metrics, self.store.lake.store)

    def sweep(self) -> dict[str, float]:
        """As `Home.sweep`."""
        return {
            "store.conflicts": float(self.store.conflicts),
            "store.overtaken": float(self.store.overtaken),
        }

    def wants_rest(self) -> bool:
        """As `Home.wants_rest`: never, a lake is kept in order while it is read."""
        return False

    def close(self) -> None:
        """As `Home.close`."""
        if self._upkeep is not None:
            self._upkeep.close()

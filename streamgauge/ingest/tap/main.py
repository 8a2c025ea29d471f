"""`streamgauge tap`: forward every request and record the traffic.

A single worker runs in this process. Several workers are child processes that share the address by SO_REUSEPORT; this process
then supervises them and serves the admin port for all. DATA/run/tap.json exists while the tap is ready.

`up` binds the sockets and passes them on. So it can start a second tap, which records in spare partitions, and then let this one
drain (`REPLACED`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from streamgauge.ingest.admin import Admin
from streamgauge.ingest.event_loop import reduce_gc, stop_on_signals
from streamgauge.ingest.guards import Guard, Guards, guarded_task
from streamgauge.ingest.keyed_ids import FILE, load_client_key
from streamgauge.ingest.listening import AllowedHosts, bind_tap, join_address, passed_sockets, split_address
from streamgauge.ingest.metrics import Report
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.ready_file import (
    HEARTBEAT_S,
    SILENT_AFTER_S,
    Heartbeat,
    remove_ready_file,
    report_progress,
    write_ready_file,
)
from streamgauge.ingest.tap import is_compiled
from streamgauge.ingest.tap.option_checks import check_options
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.process.supervisor import Supervisor
from streamgauge.ingest.tap.process.worker import TapWorker
from streamgauge.ingest.tap.relay.choice import uses_native_code

logger = logging.getLogger("streamgauge.tap")

_OPEN_FILES = 131_072


def run(options: TapOptions) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0. Raises OSError or ValueError, with one line, if the tap cannot start."""
    check_options(options)  # here, once, instead of in each worker
    prepare_data_folder(options.data)
    key = options.client_key
    if key is None:
        key = _client_key(options.data / FILE)
    _raise_file_limit()
    sockets = passed_sockets()
    if sockets:
        options = replace(options, spare_offsets=(options.workers,))
    else:
        sockets = bind_tap(options.listen, options.admin, options.workers)
    if options.workers == 1:
        reduce_gc()
        uvloop.run(_run_single(options, key, *sockets))
    else:
        uvloop.run(_run_several(options, key, sockets))
    return 0


def _client_key(path: Path) -> bytes:
    """The key of the data folder. On a full disk, a new folder gets one for this run only."""
    try:
        return load_client_key(path)
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        logger.error(
            "cannot write %s: %s. Ids of clients and sessions change at the next start", path, e.strerror
        )
        return secrets.token_bytes(32)


async def _run_single(
    options: TapOptions, key: bytes, listening: socket.socket, admin_sock: socket.socket
) -> None:
    worker = TapWorker(options, client_key=key)
    guards = worker.context.guards

    async def report() -> Report:
        found = worker.recording.report()
        return found._replace(stats={**found.stats, "workers_now": 1, "worker_restarts": 0})

    admin = Admin(report, lambda: worker.ready, guards.faults, _admin_hosts(options))
    _stop_on_signals(worker, admin)
    await worker.start(listening)
    async with _ready(options, worker.address, admin_sock, admin, guards, guards.faults):
        await worker.serve()


async def _run_several(options: TapOptions, key: bytes, sockets: Sequence[socket.socket]) -> None:
    *listening, admin_sock = sockets
    address = listening[0].getsockname()[:2]
    supervisor = Supervisor(options, key, listening)
    admin = Admin(supervisor.report, lambda: supervisor.ready, supervisor.faults, _admin_hosts(options))
    _stop_on_signals(supervisor, admin)
    await supervisor.start()
    async with _ready(options, address, admin_sock, admin, supervisor.guards, supervisor.faults):
        await supervisor.serve()


def _stop_on_signals(tap: TapWorker | Supervisor, admin: Admin) -> None:
    def hand_over() -> None:
        admin.close()  # the other tap serves this port, too
        tap.hand_over()

    stop_on_signals(tap.stop, hand_over)


def _admin_hosts(options: TapOptions) -> AllowedHosts:
    return AllowedHosts(options.allowed_hosts, listen_host=split_address(options.admin)[0])


@contextlib.asynccontextmanager
async def _ready(
    options: TapOptions,
    address: tuple[str, int],
    admin_sock: socket.socket,
    admin: Admin,
    guards: Guards,
    faults: Callable[[], Mapping[str, str]],
) -> AsyncIterator[None]:
    """Serve the admin port, and report in DATA/run/tap.json and in the log that the tap is ready."""
    await admin.start(admin_sock)
    listen = f"{'https' if options.tls_cert is not None else 'http'}://{join_address(*address)}"
    admin_url = f"http://{join_address(*admin_sock.getsockname()[:2])}"
    path = options.data / "run" / "tap.json"
    ready = {"listen": listen, "admin": admin_url, "upstreams": list(map(str, options.upstreams))}
    try:
        write_ready_file(path, ready)
    except OSError as e:
        logger.error("cannot write %s, trying again: %s. Requests are served", path, e)
    several = len(options.upstreams) > 1
    upstreams = ", ".join(
        f"{u.name} ({u.url}{', default' if several and i == 0 and not u.is_public else ''})"
        for i, u in enumerate(options.upstreams)
    )
    logger.info(
        "tap ready: %s, upstreams: %s, admin: %s, %s relay, %s code",
        listen,
        upstreams,
        admin_url,
        "native" if uses_native_code(options.relay) else "Python",
        "compiled" if is_compiled() else "interpreted",
    )
    guard = guards.guard("heartbeat", silent_after_s=SILENT_AFTER_S)
    heartbeat = Heartbeat(path, ready)
    beating = asyncio.create_task(guarded_task(guard, lambda: _beat(heartbeat, guard, faults)))
    try:
        yield
    finally:
        beating.cancel()
        heartbeat.content = None
        remove_ready_file(path)
        admin.close()


async def _beat(heartbeat: Heartbeat, guard: Guard, faults: Callable[[], Mapping[str, str]]) -> None:
    """The event loop reports progress. A thread writes the file, because the disk must delay neither streams nor the reports."""
    loop = asyncio.get_running_loop()
    writing: asyncio.Future[None] | None = None
    while True:
        report_progress()
        if writing is None or writing.done():
            if writing is not None:
                writing.result()
                guard.beat()
            writing = loop.run_in_executor(None, heartbeat.beat, faults())
        await asyncio.sleep(HEARTBEAT_S)


def _raise_file_limit() -> None:
    """Each stream needs two descriptors. Raise the limit as far as the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, _OPEN_FILES), hard):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return

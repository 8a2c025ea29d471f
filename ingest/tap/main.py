"""`streamgauge tap`: forward every request, and keep a record of what passed.

One worker runs in this very process. Several are children of it, which share the address by SO_REUSEPORT; this process
then only watches them, starts again what dies, and answers the admin port for all of them. Ready means DATA/run/tap.json
is there; it is removed at a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from pathlib import Path

import uvloop

from ingest.private_files import write_json
from ingest.tap.admin import Admin
from ingest.tap.client_identity import load_client_key
from ingest.tap.metrics import add_up
from ingest.tap.options import TapOptions, join_address
from ingest.tap.sockets import bind
from ingest.tap.supervisor import Workers
from ingest.tap.tls import client_context, upstream_context
from ingest.tap.worker import TapWorker, reduce_gc

__all__ = ["TapOptions", "run"]

logger = logging.getLogger("streamgauge.tap")

_WANTED_FILES = 131_072


def run(options: TapOptions) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean stop. Raises OSError or ValueError, in one line, when it cannot start."""
    if not options.upstreams:
        raise ValueError(
            "no upstream: say what stands behind the tap, such as --upstream http://localhost:4000"
        )
    client_context(
        options
    )  # what is wrong with these is told here, not by each worker, and even if no upstream is https
    upstream_context(options)
    _make_folders(options.data)
    key = (
        options.client_key if options.client_key is not None else load_client_key(options.data / "client.key")
    )
    _raise_file_limit()
    if options.workers == 1:
        reduce_gc()
        uvloop.run(_run_alone(options, key))
    else:
        uvloop.run(_run_several(options, key))
    return 0


async def _run_alone(options: TapOptions, key: bytes) -> None:
    worker = TapWorker(options, client_key=key)
    sock = bind(options.listen, shared=False)
    admin_sock = bind(options.admin, shared=False)
    _on_signals(worker.stop)
    await worker.start(sock)

    async def gather() -> dict[str, int]:
        return {**worker.stats(), "workers_now": 1, "worker_restarts": 0}

    admin = Admin(gather, lambda: worker.ready)
    await admin.start(admin_sock)
    with _announced(options, worker.address, admin_sock):
        await worker.serve()
    await admin.close()


async def _run_several(options: TapOptions, key: bytes) -> None:
    bind(options.listen, shared=False).close()  # SO_REUSEPORT would join another tap's address in silence
    admin_sock = bind(options.admin, shared=False)
    held = bind(
        options.listen, shared=True
    )  # keeps the port ours; it never listens, so it gets no connection
    name = held.getsockname()
    address = (name[0], name[1])
    workers = Workers(options, key, join_address(*address))
    _on_signals(workers.stop)
    await workers.start()

    async def gather() -> dict[str, int]:
        return add_up(list(await workers.gather()))

    admin = Admin(gather, lambda: workers.ready)
    await admin.start(admin_sock)
    with _announced(options, address, admin_sock):
        await workers.serve()
    await admin.close()
    held.close()


def _on_signals(stop: object) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)  # type: ignore[arg-type]


@contextlib.contextmanager
def _announced(options: TapOptions, address: tuple[str, int], admin_sock: socket.socket):  # type: ignore[no-untyped-def]
    """Say that the tap is ready, in DATA/run/tap.json and in one line; take it back at the end."""
    scheme = "https" if options.tls_cert is not None else "http"
    listen = f"{scheme}://{join_address(*address)}"
    admin_name = admin_sock.getsockname()
    admin = f"http://{join_address(admin_name[0], admin_name[1])}"
    path = options.data / "run" / "tap.json"
    write_json(path, {"pid": os.getpid(), "listen": listen, "admin": admin})
    behind = ", ".join(f"{u.name} ({u.url})" for u in options.upstreams)
    logger.info("tap ready: %s in front of %s; admin %s", listen, behind, admin)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _make_folders(data: Path) -> None:
    try:
        for folder in (data, data / "run", data / "log"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        probe = data / "run" / f".tap-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as e:
        raise OSError(
            f"the data folder {data} cannot be written: {e.strerror}; choose another with --data"
        ) from None


def _raise_file_limit() -> None:
    """Two descriptors for each stream: take what the system allows, and ask for more where we may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, _WANTED_FILES), hard):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return

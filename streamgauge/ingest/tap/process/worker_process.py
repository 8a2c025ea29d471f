"""Process of one worker of a tap with several workers: `python -m streamgauge.ingest.tap.process.worker_process NAME CONTROL LISTEN`.

Options arrive pickled on stdin. CONTROL is the descriptor of the socket to the parent, LISTEN that of the bound socket to listen on.
The worker answers each received line with one line of JSON: its `Report`, or null if it cannot be made. End of file means that the
parent has ended. Exit code 2: the worker cannot start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import socket
import sys

import uvloop

from streamgauge.ingest.event_loop import reduce_gc, stop_on_signals
from streamgauge.ingest.guards import guarded_task
from streamgauge.ingest.log_lines import log_uncaught
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.process.worker import TapWorker

logger = logging.getLogger("streamgauge.tap")


async def _serve(
    options: TapOptions, client_key: bytes, control: socket.socket, listening: socket.socket
) -> None:
    worker = TapWorker(options, client_key=client_key)
    stop_on_signals(worker.stop, worker.hand_over)
    await worker.start(listening)
    reader, writer = await asyncio.open_connection(sock=control)
    writer.write(b"ready\n")

    guard = worker.context.guards.guard("answers to the supervisor")

    def send_report() -> None:
        writer.write(json.dumps(worker.recording.report()).encode() + b"\n")

    async def answer() -> None:
        while await reader.readline():
            if not guard.attempt(send_report):
                writer.write(b"null\n")  # the worker works: without an answer it would be killed
        worker.stop()  # the parent has ended
        worker.stop()

    task = asyncio.create_task(guarded_task(guard, answer))
    await worker.serve()
    guard.attempt(send_report)
    task.cancel()
    writer.close()


def _log_as(formatter: logging.Formatter | None, level: int, worker: int) -> None:
    """Log in the parent's format, with the worker's number in the logger's name."""

    def name_worker(record: logging.LogRecord) -> bool:
        record.name = f"{record.name}.w{worker}"
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(name_worker)
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("streamgauge").setLevel(min(level, logging.INFO))
    log_uncaught(logger)


def main() -> int:
    options, client_key, level, formatter = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent
    _log_as(formatter, level, options.worker)
    reduce_gc()
    control, listening = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[2:])
    try:
        uvloop.run(_serve(options, client_key, control, listening))
    except (OSError, ValueError) as e:
        logger.error("worker %d cannot start: %s", options.worker, e)
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # everything is flushed; a thread blocked by a failing disk must not delay the exit

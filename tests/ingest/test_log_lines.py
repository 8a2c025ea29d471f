"""No log line quotes data from the network."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from enum import Enum

import pytest

from streamgauge.ingest.log_lines import HIDDEN, LogFormatter, exception_lines, log_loop_errors

SECRET = "plantedzwiebel prose"


class Status(Enum):
    UNAVAILABLE = 14


def line(name: str, message: str, *args: object) -> str:
    return LogFormatter().format(logging.LogRecord(name, logging.ERROR, "", 0, message, args, None))


def failing() -> None:
    try:
        int(SECRET)
    except ValueError as e:
        raise KeyError(SECRET) from e


def test_exceptions_are_shown_without_their_messages() -> None:
    with pytest.raises(KeyError) as caught:
        failing()
    shown = exception_lines(caught.value)
    assert SECRET not in shown
    assert shown.index("\nValueError\n") < shown.index("This caused:") < shown.index("\nKeyError")
    assert ", in failing" in shown
    assert exception_lines(OSError(28, SECRET)).endswith("OSError [Errno 28]")


def test_a_text_that_another_handler_cached_is_not_used() -> None:
    record = logging.LogRecord(
        "streamgauge.analytics.x", logging.ERROR, "", 0, "m", (), (ValueError, ValueError(SECRET), None)
    )
    logging.Formatter().format(record)
    assert SECRET not in LogFormatter().format(record)


def test_unknown_arguments_of_libraries_are_hidden() -> None:
    shown = line(
        "opentelemetry.x", "to %s: %s, %s, reason: %s", "localhost:4317", Status.UNAVAILABLE, 400, SECRET
    )
    assert shown.endswith(f"to localhost:4317: Status.UNAVAILABLE, 400, reason: {HIDDEN}")
    assert line("kafka.x", "%s", ValueError(SECRET)).endswith(": ValueError")
    assert line("streamgauge.analytics.x", "wrote %s", "two words").endswith("wrote two words")


def test_errors_of_the_event_loop_do_not_show_arguments_of_callbacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        log_loop_errors(logging.getLogger("streamgauge.ingest.x"))
        asyncio.get_running_loop().call_soon(int, SECRET)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    [record] = caplog.records
    assert record.exc_info is not None
    assert "unexpected error in the event loop" in (shown := LogFormatter().format(record))
    assert SECRET not in shown


def test_uncaught_exceptions_are_logged_without_their_messages() -> None:
    code = (
        "import threading; from streamgauge.process_logging import configure_logging; configure_logging('text')\n"
        f"t = threading.Thread(target=int, args=({SECRET!r},)); t.start(); t.join(); int({SECRET!r})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.count("CRITICAL") == 2
    assert "in thread Thread-1" in ended.stderr
    assert SECRET not in ended.stderr

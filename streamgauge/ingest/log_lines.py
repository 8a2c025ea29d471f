"""Log lines without data from the network.

Messages of exceptions can quote requests, responses and stored values, so a line has only their classes, the places in the code,
and the error number of an `OSError`. In lines of libraries, arguments that are no identifiers are replaced by `…`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
import threading
import traceback
from enum import Enum
from typing import Any

from streamgauge.ingest.identifiers import is_identifier

MAX_FRAMES = 20
"""Innermost frames shown of each exception."""
MAX_CAUSES = 5
HIDDEN = "…"


class LogFormatter(logging.Formatter):
    """Formats records as text lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(without_values(record))

    def formatException(self, ei: Any) -> str:
        return exception_lines(ei[1])


def without_values(record: logging.LogRecord) -> logging.LogRecord:
    """The record without cached texts, and without unknown arguments if a library made it."""
    made = copy.copy(record)
    made.exc_text = None
    if record.name.partition(".")[0] == "streamgauge":
        return made
    if isinstance(record.args, dict):
        made.args = {key: _shown(value) for key, value in record.args.items()}
    elif record.args:
        made.args = tuple(map(_shown, record.args))
    return made


def exception_lines(error: BaseException | None) -> str:
    """The traceback of an exception and its causes, without their messages."""
    shown: list[str] = []
    while error is not None and len(shown) < MAX_CAUSES:
        frames = traceback.format_tb(error.__traceback__)[-MAX_FRAMES:]
        shown.append("".join(["Traceback (most recent call last):\n", *frames, error_kind(error)]))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n\nThis caused:\n\n".join(reversed(shown))


def log_uncaught(logger: logging.Logger) -> None:
    """Log exceptions that end this process or one of its threads."""

    def log_exception(kind: type[BaseException], error: BaseException, frames: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, frames)
        else:
            logger.critical("unexpected error", exc_info=error)

    def log_in_thread(found: threading.ExceptHookArgs) -> None:
        name = found.thread.name if found.thread is not None else "?"
        logger.critical("unexpected error in thread %s", name, exc_info=found.exc_value)

    sys.excepthook = log_exception
    threading.excepthook = log_in_thread


def log_loop_errors(logger: logging.Logger) -> None:
    """Log errors of the running event loop. Its own message shows the arguments of callbacks, which can be received bytes."""

    def log_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        logger.error("unexpected error in the event loop", exc_info=context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(log_error)


def error_kind(error: BaseException) -> str:
    """The class of an exception, with the error number of an `OSError`."""
    number = f" [Errno {error.errno}]" if isinstance(error, OSError) and error.errno is not None else ""
    return f"{type(error).__qualname__}{number}"


def _shown(value: Any) -> Any:
    if isinstance(value, (int, float, Enum)) or value is None:
        return value
    if isinstance(value, BaseException):
        return error_kind(value)
    return value if isinstance(value, str) and is_identifier(value) else HIDDEN

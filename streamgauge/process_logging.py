"""Logging of a process: text or JSON lines on stderr, and its newest error for the `up` that started it.

The newest error is in a file in memory that both processes have open: `up` reads it after the part has ended, neither waits for
the other, and a full disk does not matter. The part gets the descriptor in `VARIABLE`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from datetime import UTC, datetime

from streamgauge.ingest.log_lines import LogFormatter, error_kind, log_uncaught, without_values
from streamgauge.ingest.system_files import file_in_memory

VARIABLE = "_STREAMGAUGE_LAST_ERROR_FD"
MAX_BYTES = 1024


class LastError:
    """`up`'s end."""

    def __init__(self, part: str) -> None:
        """Raises OSError, for example without a free descriptor."""
        self.descriptor = file_in_memory(f"streamgauge-{part}")

    def clear(self) -> None:
        os.ftruncate(self.descriptor, 0)

    def read(self) -> str:
        """One line; empty without an error."""
        return " ".join(os.pread(self.descriptor, MAX_BYTES, 0).decode(errors="replace").split())


class LastErrorHandler(logging.Handler):
    """The part's end. Does nothing in a process that `up` did not start."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(logging.ERROR)
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.write(
            f"{record.getMessage()}: {error_kind(error)}" if error is not None else record.getMessage()
        )

    def write(self, line: str) -> None:
        """Replace the line."""
        if self._descriptor is None:
            return
        # An error line is a report of another failure: that one must not be hidden by an exception here.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, line.encode(errors="replace")[:MAX_BYTES], 0)


_value = os.environ.pop(VARIABLE, "")  # processes that the part starts do not have the descriptor
LAST_ERROR = LastErrorHandler(int(_value) if _value.isdigit() else None)
"""The one of this process."""


class JsonLines(LogFormatter):
    """Formats a record as a JSON object: time, level, logger, message, trace and span id, exception."""

    def format(self, record: logging.LogRecord) -> str:
        record = without_values(record)  # messages of libraries may quote parts of requests
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("trace_id", "span_id"):
            value = getattr(record, name, None)  # set by a log call that belongs to a stream
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(form: str) -> None:
    """Log to stderr in format "text" or "json"; libraries from level WARNING."""
    # stdout is for the results of commands, which scripts read.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else LogFormatter())
    # force: a library that logged at its import has installed a handler of its own.
    logging.basicConfig(level=logging.WARNING, handlers=[handler, LAST_ERROR], force=True)
    log_uncaught(logging.getLogger("streamgauge"))
    logging.getLogger("streamgauge").setLevel(logging.INFO)

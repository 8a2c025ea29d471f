"""The newest error line of a part, for the `up` that started it.

It is in a file in memory that both processes have open: `up` reads it after the part has ended, neither waits for the other,
and a full disk does not matter. The part gets the descriptor in `VARIABLE`.
"""

from __future__ import annotations

import contextlib
import logging
import os

from streamgauge.ingest.log_lines import error_kind

VARIABLE = "_STREAMGAUGE_LAST_ERROR_FD"
MAX_BYTES = 1024


class LastError:
    """`up`'s end."""

    def __init__(self, part: str) -> None:
        """Raises OSError, for example without a free descriptor."""
        self.descriptor = os.memfd_create(f"streamgauge-{part}")

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
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, line.encode(errors="replace")[:MAX_BYTES], 0)


_value = os.environ.pop(VARIABLE, "")  # processes that the part starts do not have the descriptor
LAST_ERROR = LastErrorHandler(int(_value) if _value.isdigit() else None)
"""The one of this process."""

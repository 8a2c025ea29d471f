"""The memory by which a test makes a system call of other processes fail: `failing_calls.c` counts calls and fails the n-th."""

from __future__ import annotations

import errno
import mmap
import struct
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "failing_calls.c"
OPENS, WRITES, NAMES, MAPS, SENDS, RECEIVES, ACCEPTS = (1 << bit for bit in range(7))
NEVER = 2**62
"""A call that no run has."""
_FIELDS = struct.Struct("@qiiiiqq256s")
_ARMED_AT = 8


@dataclass(frozen=True)
class Fault:
    """An error, and the kinds of calls that fail with it: once, or also all later ones."""

    error: int
    kinds: int
    persistent: bool

    def as_json(self) -> dict[str, int]:
        """Arguments of the same fault."""
        return asdict(self)

    def __str__(self) -> str:
        target = "socket" if self.kinds >= SENDS else "file"
        return f"{errno.errorcode[self.error]}-{target}-{'persistent' if self.persistent else 'transient'}"


ON_FILES = (
    Fault(errno.ENOSPC, OPENS | WRITES | NAMES | MAPS, persistent=True),
    Fault(errno.EIO, OPENS | WRITES | NAMES | MAPS, persistent=False),
    Fault(errno.EMFILE, OPENS, persistent=False),
    # Only once: Python and SQLite repeat an interrupted call without end.
    Fault(errno.EINTR, OPENS | WRITES, persistent=False),
)
ON_SOCKETS = (
    Fault(errno.ECONNRESET, SENDS | RECEIVES, persistent=True),
    Fault(errno.ECONNRESET, SENDS | RECEIVES, persistent=False),
    Fault(errno.EINTR, SENDS | RECEIVES | ACCEPTS, persistent=False),
    Fault(errno.EMFILE, ACCEPTS, persistent=True),
    Fault(errno.EMFILE, ACCEPTS, persistent=False),
)


class Page:
    """Memory in a file, which a test and the processes whose calls fail have mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("a+b") as file:
            file.truncate(_FIELDS.size)
            self._memory = mmap.mmap(file.fileno(), _FIELDS.size)

    def arm(self, number: int, fault: Fault) -> None:
        """Count calls from now on, and fail the call `number`; if the fault is persistent, also all later ones."""
        self._memory[:] = _FIELDS.pack(number, 0, fault.persistent, fault.error, fault.kinds, 0, 0, b"")
        self._arm(1)

    def clear(self) -> None:
        """Count and fail nothing. No call has failed."""
        self._memory[:] = bytes(_FIELDS.size)

    def release(self) -> None:
        """Stop counting and failing."""
        self._arm(0)

    def _arm(self, value: int) -> None:
        struct.pack_into("@i", self._memory, _ARMED_AT, value)

    @property
    def calls(self) -> int:
        """Calls since `arm`."""
        return int(_FIELDS.unpack(self._memory[:])[5])

    @property
    def failed(self) -> int:
        """Calls that have failed since `arm`."""
        return int(_FIELDS.unpack(self._memory[:])[6])

    @property
    def first(self) -> str:
        """Name and file of the first call that failed."""
        return bytes(_FIELDS.unpack(self._memory[:])[7]).split(b"\0")[0].decode()


def build_library(folder: Path) -> Path:
    """Compile the library. Requires a C compiler."""
    library = folder / "failing_calls.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"], check=True
    )
    return library

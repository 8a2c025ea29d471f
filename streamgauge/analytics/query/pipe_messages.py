"""Messages between a process and its child: a JSON header and a body of bytes.

Format: the lengths of header and body as two big-endian uint32, then the header, then the body.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

LENGTHS = struct.Struct(">II")
MAX_HEADER_BYTES = 8 * 2**20
"""The longest header is a request with a long statement."""
_PART_BYTES = 2**20


class BrokenMessage(Exception):
    """The other process ended within a message, or sent one that is malformed or too large."""


def encode(header: dict[str, Any], body_bytes: int = 0) -> bytes:
    """Lengths and header, which precede the body."""
    text = json.dumps(header).encode()
    return LENGTHS.pack(len(text), body_bytes) + text


def receive(fd: int, max_body_bytes: int = 0) -> tuple[dict[str, Any], bytes] | None:
    """The next message, None at the end of the stream. Blocks. Raises BrokenMessage."""
    lengths = _read(fd, LENGTHS.size, at_start=True)
    if not lengths:
        return None
    header_bytes, body_bytes = LENGTHS.unpack(lengths)
    if header_bytes > MAX_HEADER_BYTES or body_bytes > max_body_bytes:
        raise BrokenMessage(f"message of {header_bytes} + {body_bytes} bytes")
    try:
        header = json.loads(_read(fd, header_bytes))
    except ValueError as e:
        raise BrokenMessage(str(e)) from None
    if not isinstance(header, dict):
        raise BrokenMessage("header is not an object")
    return header, _read(fd, body_bytes)


def send(fd: int, header: dict[str, Any], body: bytes | memoryview = b"") -> None:
    """Write one message. Blocks. Raises OSError."""
    _write(fd, memoryview(encode(header, len(body))))
    _write(fd, memoryview(body))


def send_while_read(fd: int, header: dict[str, Any], silence_s: float, body: bytes = b"") -> bool:
    """Write one message to a non-blocking pipe. False if nothing of it is read for `silence_s`. Raises OSError."""
    return _write_while_read(fd, encode(header, len(body)), silence_s) and _write_while_read(
        fd, body, silence_s
    )


def _write_while_read(fd: int, message: bytes, silence_s: float) -> bool:
    unsent = memoryview(message)
    deadline_s = time.monotonic() + silence_s
    while unsent:
        try:
            unsent = unsent[os.write(fd, unsent) :]
            # Progress extends the deadline: a large answer on a busy machine may take longer than the silence of a stopped process.
            deadline_s = time.monotonic() + silence_s
        except BlockingIOError:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return False
            select.select([], [fd], [], min(remaining_s, 1.0))
    return True


def _write(fd: int, unsent: memoryview) -> None:
    while unsent:
        unsent = unsent[os.write(fd, unsent[:_PART_BYTES]) :]


def _read(fd: int, size: int, *, at_start: bool = False) -> bytes:
    parts: list[bytes] = []
    missing = size
    while missing:
        # `os.read` allocates what it is asked for, and the length is the word of another process.
        part = os.read(fd, min(missing, _PART_BYTES))
        if not part:
            if at_start and missing == size:
                return b""
            raise BrokenMessage("end of stream within a message")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)

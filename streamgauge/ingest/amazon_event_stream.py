"""Amazon's binary event stream (`application/vnd.amazon.eventstream`), which Bedrock sends, as Server-Sent Events."""

from __future__ import annotations

import struct
from base64 import b64decode
from zlib import crc32

import msgspec

MAX_MESSAGE_BYTES = 16 * 2**20
PRELUDE_BYTES = 12
_OVERHEAD_BYTES = PRELUDE_BYTES + 4
_prelude = struct.Struct(">III").unpack_from
_uint32 = struct.Struct(">I").unpack_from
_uint16 = struct.Struct(">H").unpack_from
_VALUE_BYTES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Size of a header's value by type. Types 6 (bytes) and 7 (text) have a length of 2 bytes before them."""
_FAULTS = (msgspec.DecodeError, ValueError, struct.error, IndexError, KeyError)
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class _Payload(msgspec.Struct):
    bytes: str | None = None
    message: str | None = None


_payload = msgspec.json.Decoder(_Payload)


class InvalidMessage(Exception):
    """Nothing after this message can be decoded. `decoded`: the events of the read before it."""

    def __init__(self, decoded: bytes) -> None:
        super().__init__("invalid message")
        self.decoded = decoded


class AmazonEventStream:
    """Decodes Amazon's binary event stream (`application/vnd.amazon.eventstream`) to Server-Sent Events.

    A message: total length (4 bytes, big-endian), length of the headers (4), CRC-32 of these 8 bytes; headers; payload; CRC-32 of
    everything before. A header: length of the name (1), name, type (1), value.

    - An event has the name of `:event-type`. The payload of a `chunk` has the model's own event as base64 under `bytes`
      (InvokeModelWithResponseStream): that event replaces it, without a name.
    - A message of the type `exception` or `error` becomes an event `error` with `{"error": {"type", "message"}}`.
    """

    # It is treated as a content coding, not as a framing, because it has to be undone before redaction too: the redactor and
    # the dialects then see SSE, as of every other stream.

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def complete(self) -> bool:
        """Whether the body ended with a whole message."""
        return not self._buffer

    def feed(self, data: bytes, limit: int) -> bytes:
        """The events that this read completes. Raises InvalidMessage."""
        self._buffer += data
        events: list[bytes] = []
        try:
            self._take_events(events)
        except _FAULTS:
            raise InvalidMessage(b"".join(events)) from None
        return b"".join(events)

    def _take_events(self, events: list[bytes]) -> None:
        buffer = self._buffer
        while len(buffer) >= PRELUDE_BYTES:
            size, header_bytes, checksum = _prelude(buffer)
            if (
                checksum != crc32(buffer[:8])
                or not header_bytes + _OVERHEAD_BYTES <= size <= MAX_MESSAGE_BYTES
            ):
                raise ValueError("invalid prelude")
            if len(buffer) < size:
                break
            message = bytes(buffer[: size - 4])
            if crc32(message) != _uint32(buffer, size - 4)[0]:
                raise ValueError("invalid checksum")
            del buffer[:size]
            name, payload = _event(message[PRELUDE_BYTES:], header_bytes)
            line = b"event: %b\n" % name.encode() if name else b""
            events.append(b"%bdata: %b\n\n" % (line, payload.translate(_ONE_LINE)))


def _event(message: bytes, header_bytes: int) -> tuple[str, bytes]:
    """(name, data) of a message without its lengths and sums. Raises `_FAULTS`."""
    headers, payload = _headers(message[:header_bytes]), message[header_bytes:]
    if headers.get(":message-type") in ("exception", "error"):
        kind = headers.get(":exception-type") or headers.get(":error-code")
        text = headers.get(":error-message") or (_payload.decode(payload).message if payload else None)
        return "error", msgspec.json.encode({"error": {"type": kind, "message": text}})
    name = headers.get(":event-type", "")
    if name == "chunk":
        return "", b64decode(_payload.decode(payload).bytes or "", validate=True)
    return name, payload


def _headers(data: bytes) -> dict[str, str]:
    """The headers with text."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        kind_at = at + 1 + data[at]
        name, kind, start = data[at + 1 : kind_at], data[kind_at], kind_at + 1
        if kind in (6, 7):
            start += 2
            at = start + _uint16(data, start - 2)[0]
        else:
            at = start + _VALUE_BYTES[kind]
        if kind == 7:
            found[name.decode()] = data[start:at].decode()
    return found

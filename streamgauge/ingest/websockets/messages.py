"""Decode one direction of a WebSocket (RFC 6455) with permessage-deflate (RFC 7692). No I/O, no clock.

Input: reads in any pieces. Output: whole messages. Control frames have no result, except that `closed` is set by a Close frame,
after which nothing is decoded. Invalid frames, a message above `MAX_MESSAGE_BYTES` and compressed bytes that are invalid or expand
beyond it end the decoding and set `fault`; nothing raises.

A decoder can be stored between two reads (`state`): zlib cannot export its window, so the window is kept beside it, and the
bytes since the last whole message are decoded again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, Opcode, ParseFailed, RsvBits

MAX_MESSAGE_BYTES = 16 * 2**20
"""Like that of an SSE event."""
_WINDOW_BYTES = 32_768
_END_OF_MESSAGE = b"\x00\x00\xff\xff"
"""The end of each compressed message, which is not sent."""
_MAX_FINAL_BLOCKS = 16
"""Final blocks in one compressed message. Usual ones have none."""

Fault = Literal["invalid_frames", "too_large"]


class Message(NamedTuple):
    """One message. Times in ns since the t0 of the WebSocket."""

    at_ns: int
    """Arrival of the read that completed it."""
    began_ns: int
    """Arrival of the read with its first byte."""
    payload: bytes
    wire_bytes: int
    """Size of the payload as received."""


class DirectionState(msgspec.Struct):
    """Stored state of one direction."""

    rest: bytes = b""
    """Bytes since the last whole message."""
    began_ns: int = 0
    """Arrival of the first of them."""
    window: bytes = b""
    closed: bool = False


class _Compression(Extension):
    """Admits the bit of compressed messages, and remembers it."""

    name = "permessage-deflate"
    compressed = False

    def offer(self) -> bool:
        return False

    def frame_inbound_header(
        self, proto: object, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        if opcode is Opcode.TEXT or opcode is Opcode.BINARY:
            self.compressed = rsv.rsv1
        elif rsv.rsv1:
            return CloseReason.PROTOCOL_ERROR
        return RsvBits(True, False, False)


class Compression(NamedTuple):
    """The negotiated permessage-deflate: whether each side keeps its window for the next message."""

    client_window: bool
    server_window: bool


def negotiated(headers: Iterable[tuple[str, str]]) -> Compression | None:
    """What the headers of the 101 say about compression. None: there is none."""
    for name, value in headers:
        for extension in value.lower().split(",") if name == "sec-websocket-extensions" else ():
            kind, *parameters = (part.strip() for part in extension.split(";"))
            if kind == "permessage-deflate":
                return Compression(
                    "client_no_context_takeover" not in parameters,
                    "server_no_context_takeover" not in parameters,
                )
    return None


class MessageDecoder:
    """Decodes the messages of one direction."""

    def __init__(
        self,
        *,
        from_client: bool,
        compression: Compression | None,
        storable: bool = False,
        state: DirectionState | None = None,
    ) -> None:
        """`storable`: `state` is needed, which costs memory."""
        self.fault: Fault | None = None
        self.closed = False
        """A Close frame was received."""
        self._extension = _Compression() if compression is not None else None
        self._keeps_window = bool(compression and compression[0 if from_client else 1])
        self._frames = FrameDecoder(
            client=not from_client, extensions=[self._extension] if self._extension is not None else None
        )
        self._inflater: zlib._Decompress | None = None
        self._window = bytearray()
        self._storable = storable
        self._rest = bytearray()
        self._parts: list[bytes] = []
        self._size = 0
        self._began_ns = 0
        self._in_message = self._begun = False
        if state is not None:
            self._window += state.window
            if state.rest:
                self.feed(state.began_ns, state.rest)
            self.closed = state.closed

    @property
    def state(self) -> DirectionState:
        return DirectionState(
            bytes(self._rest), self._began_ns, bytes(self._window[-_WINDOW_BYTES:]), self.closed
        )

    def feed(self, at_ns: int, data: bytes) -> list[Message]:
        """The messages that this read completes."""
        messages: list[Message] = []
        if self.closed or self.fault is not None:
            return messages
        if self._storable:
            self._rest += data
        if not self._begun:
            self._begun, self._began_ns = True, at_ns
        frames = self._frames
        frames.receive_bytes(data)
        left = len(self._rest)
        try:
            while (frame := frames.process_buffer()) is not None:
                opcode = frame.opcode
                if opcode > Opcode.BINARY:
                    if opcode is Opcode.CLOSE:
                        self.closed = True
                        break
                    if not self._in_message:
                        left = len(frames.buffer)
                        self._begun, self._began_ns = left > 0, at_ns
                    continue
                if (opcode is Opcode.CONTINUATION) is not self._in_message:
                    self.fault = "invalid_frames"
                    break
                payload = frame.payload
                size = len(payload)
                self._in_message = True
                self._size += size
                if self._size > MAX_MESSAGE_BYTES:
                    self.fault = "too_large"
                    break
                self._parts.append(payload)  # type: ignore[arg-type]  # bytes: only `FrameProtocol` makes others
                if not (frame.frame_finished and frame.message_finished):
                    continue
                whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                if self._extension is not None and self._extension.compressed:
                    whole = self._inflate(whole)
                messages.append(Message(at_ns, self._began_ns, whole, self._size))
                left = len(frames.buffer)
                self._parts, self._size, self._in_message = [], 0, False
                self._begun, self._began_ns = left > 0, at_ns
        except (ParseFailed, zlib.error):
            self.fault = "invalid_frames"
        except _TooLarge:
            self.fault = "too_large"
        if self.fault is not None or self.closed:
            self._inflater, self._parts, left = None, [], 0
        if self._storable:
            del self._rest[: len(self._rest) - left]
        return messages

    def _inflate(self, data: bytes) -> bytes:
        plain, data = b"", data + _END_OF_MESSAGE
        for _ in range(_MAX_FINAL_BLOCKS):
            if self._inflater is None:
                self._inflater = zlib.decompressobj(
                    -zlib.MAX_WBITS, zdict=bytes(self._window[-_WINDOW_BYTES:])
                )
            inflater = self._inflater
            part = inflater.decompress(data, MAX_MESSAGE_BYTES + 1 - len(plain))
            plain = plain + part if plain else part
            if len(plain) > MAX_MESSAGE_BYTES or inflater.unconsumed_tail:
                raise _TooLarge
            if not inflater.eof:
                break
            # After a final block the window begins anew.
            self._inflater, data = None, inflater.unused_data
            self._window.clear()
        else:
            raise zlib.error("too many final blocks")
        if not self._keeps_window:
            self._inflater = None
        elif self._storable:
            # Trimmed rarely: a copy of the window for each message would cost more than the decoding.
            self._window += plain[-_WINDOW_BYTES:]
            if len(self._window) > 2 * _WINDOW_BYTES:
                del self._window[:-_WINDOW_BYTES]
        return plain


class _TooLarge(Exception):
    pass

"""Find the end of a message's body and remove its transfer coding for the recorder. No I/O, no clock.

The tap forwards bodies as received, including chunk framing. `BodyReader.feed(data)` returns the payload of a read. Afterwards
`complete` says whether the message has ended, and `excess` how many bytes at the end of `data` do not belong to it.

Chunked bodies are parsed strictly: a chunk line that another server may parse differently is refused. `_GRAMMAR` is the
grammar of RFC 9112 §7.1. The relay's thread uses the reader too, compiled and without the interpreter lock.
"""

from __future__ import annotations

import re
from operator import eq

from streamgauge.ingest.http1.fields import FRAMING_NAMES, TOKEN, normalized_name
from streamgauge.ingest.http1.heads import CHUNKED, UNTIL_CLOSE, BadRequest, BadUpstream

MAX_CHUNK_LINE_BYTES = 4096
MAX_TRAILER_BYTES = 16_384
_LINE_LIMIT_BYTES = MAX_CHUNK_LINE_BYTES
_TRAILER_LIMIT_BYTES = MAX_TRAILER_BYTES + 2  # with the CRLF that ends the body
_MAX_DIGITS = 16
_TOO_LARGE_BYTES = 1 << 62

# States, in this order: faults; states in which a line has ended; states within a line.
_MALFORMED, _NO_CRLF, _LONG_LINE, _LARGE_CHUNK, _LARGE_TRAILER, _FRAMING_FIELD = range(6)
_CHUNK, _PAYLOAD, _TRAILER, _OVER = range(6, 10)
_SIZE, _EXTENSION, _SIZE_LF, _PAYLOAD_LF, _NAME, _VALUE, _VALUE_LF, _LAST_LF = range(10, 18)
_LENGTH, _UNTIL_CLOSE = 18, 19  # of bodies without chunks, which have no lines
_FAULTS = (
    (400, "a chunk line or trailer is malformed"),
    (400, "a chunk is not followed by CRLF"),
    (400, "a chunk line is too long"),
    (400, "a chunk is too large"),
    (431, "the trailer is too large"),
    (400, "a trailer reads as Content-Length or Transfer-Encoding"),
)

_LF, _CR, _COLON = b"\n\r:"
_HEX_DIGIT = rb"[0-9A-Fa-f]"
_TEXT = rb"[\t\x20-\x7e\x80-\xff]"
_GRAMMAR = (
    (_CHUNK, _HEX_DIGIT, _SIZE),
    (_SIZE, _HEX_DIGIT, _SIZE),
    (_SIZE, rb";", _EXTENSION),
    (_EXTENSION, _TEXT, _EXTENSION),
    (_SIZE, rb"\r", _SIZE_LF),
    (_EXTENSION, rb"\r", _SIZE_LF),
    (_SIZE_LF, rb"\n", _PAYLOAD),  # `_TRAILER` if the size is 0
    (_PAYLOAD, rb"[^\r]", _NO_CRLF),  # after the payload
    (_PAYLOAD, rb"\r", _PAYLOAD_LF),
    (_PAYLOAD_LF, rb"[^\n]", _NO_CRLF),
    (_PAYLOAD_LF, rb"\n", _CHUNK),
    (_TRAILER, TOKEN, _NAME),
    (_NAME, TOKEN, _NAME),
    (_NAME, rb":", _VALUE),
    (_VALUE, _TEXT, _VALUE),
    (_VALUE, rb"\r", _VALUE_LF),
    (_VALUE_LF, rb"\n", _TRAILER),
    (_TRAILER, rb"\r", _LAST_LF),
    (_LAST_LF, rb"\n", _OVER),
)
"""(state, received byte, next state). Any other byte leads to `_MALFORMED`."""


def _transitions() -> bytes:
    """The next state by 256 * state + byte."""
    moves = [dict[int, int]() for _ in range(20)]
    for state, pattern, following in _GRAMMAR:
        moves[state].update((c, following) for c in range(256) if re.fullmatch(pattern, b"%c" % c, re.DOTALL))
    # A state for each start of a name that is read as that of a framing field.
    for name in FRAMING_NAMES:
        state = _TRAILER
        for c in name:
            moves[state].update(
                (like, len(moves)) for like in moves[_NAME] if normalized_name(b"%c" % like)[0] == c
            )
            state = len(moves)
            moves.append(dict(moves[_NAME]))
        moves[state][ord(":")] = _FRAMING_FIELD
    return bytes(move.get(c, _MALFORMED) for move in moves for c in range(256))


_next_states = _transitions()
_digits = bytes(int(chr(c), 16) if re.match(_HEX_DIGIT, b"%c" % c) else 0 for c in range(256))
# Pointers to bytes, if compiled.
_NEXT_STATES, _DIGITS = _next_states, _digits

_LENGTHS: dict[bytes, int] = {}
"""Size by chunk line, of lines that `BodyReader.advance` has read: streams repeat them. Never 0."""
_MAX_LENGTHS = 1024
_MAX_KNOWN_LINE_BYTES = 18
_FEW_CHUNKS, _RUN_BYTES = 4, 4096
"""After this many chunks in one read, runs of known ones are searched for in this many bytes."""


class BodyReader:
    """Reads one body. `length`: of a body of known length."""

    def __init__(self, framing: int, length: int, *, of_request: bool = False) -> None:
        self._of_request = of_request
        self._left_bytes = 0  # of the payload that is being received
        self._chunk_bytes = 0  # size in the chunk line that is being received
        self._line_bytes = 0  # received of this line, or of the trailer
        self._line_limit_bytes = _LINE_LIMIT_BYTES
        self.complete = False
        self.excess = 0
        self.is_payload = False
        self.until_close = framing == UNTIL_CLOSE
        if framing == CHUNKED:
            self._state = _CHUNK
        elif self.until_close:
            self._state, self._left_bytes = _UNTIL_CLOSE, _TOO_LARGE_BYTES
        else:
            self._state, self._left_bytes, self.complete = _LENGTH, length, length == 0

    def feed(self, data: bytes) -> bytes:
        """The payload in one read. Raises `BadRequest` or `BadUpstream` if the body is malformed."""
        size = len(data)
        # Within the payload of a chunk or of a body; most bodies of a known length arrive whole.
        if size < self._left_bytes or (size == self._left_bytes and self._state == _LENGTH):
            self._left_bytes -= size
            self.complete = self._state == _LENGTH and not self._left_bytes
            return data
        payload: list[bytes] = []
        run_after, run_bytes = _FEW_CHUNKS, _RUN_BYTES
        at = 0
        while at < size and not self.complete:
            start = at
            in_line = self._state == _CHUNK
            if in_line and (line_end := data.find(b"\r\n", at)) > at:
                # Most chunks are whole and have a known line. For others, `end` is out of range.
                end = line_end + 2 + _LENGTHS.get(data[at:line_end], size)
                if data[end : end + 2] == b"\r\n":
                    payload.append(data[line_end + 2 : end])
                    at = end + 2
                    if len(payload) >= run_after:
                        taken = _take_run(data[at : at + run_bytes], payload)
                        at += taken
                        # Searches without success must not cost more than the chunks between them.
                        if taken > run_bytes // 2:
                            run_bytes *= 2
                        else:
                            run_after = 2 * len(payload)
                    continue
            at = self.advance(data, at, size)
            if at < 0:
                raise self.fault()
            if self.is_payload:
                payload.append(data[start:at])
            elif in_line and self._left_bytes and at - start <= _MAX_KNOWN_LINE_BYTES:
                if len(_LENGTHS) >= _MAX_LENGTHS:
                    _LENGTHS.clear()
                _LENGTHS[data[start : at - 2]] = self._left_bytes
        if self.complete:
            self.excess = size - at
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def advance(self, data: bytes, at: int, size: int) -> int:
        """Read `data[at:size]` to the end of a line, or of the payload in it if `is_payload` is set.

        Returns the position after it, or -1 if the body is malformed.
        """
        state = self._state
        self.is_payload = self._left_bytes > 0
        if self.is_payload:
            at += self._left_bytes
            self._left_bytes = max(0, at - size)
            self.complete = state == _LENGTH and not self._left_bytes
            return min(at, size)
        start = at - self._line_bytes
        while at < size:
            c = data[at]
            at += 1
            state = _NEXT_STATES[state << 8 | c]
            if state == _SIZE:
                if at - start > _MAX_DIGITS or self._chunk_bytes >= _TOO_LARGE_BYTES >> 4:
                    state = _LARGE_CHUNK
                    break
                self._chunk_bytes = self._chunk_bytes << 4 | _DIGITS[c]
            elif state < _SIZE:
                break
        self._line_bytes = at - start
        if self._line_bytes > self._line_limit_bytes:
            state = _LONG_LINE if self._line_limit_bytes == _LINE_LIMIT_BYTES else _LARGE_TRAILER
        elif state == _PAYLOAD:
            self._left_bytes, self._chunk_bytes, self._line_bytes = self._chunk_bytes, 0, 0
            if not self._left_bytes:
                state, self._line_limit_bytes = _TRAILER, _TRAILER_LIMIT_BYTES
        elif state == _CHUNK:
            self._line_bytes = 0
        self.complete = state == _OVER
        self._state = state
        return at if state >= _CHUNK else -1

    def fault(self) -> BadRequest | BadUpstream:
        """Why the body is malformed."""
        status, reason = _FAULTS[self._state]
        return BadRequest(status, reason) if self._of_request else BadUpstream(reason)

    def is_shorter_than(self, size_bytes: int) -> bool:
        """Whether it is known that less than this is left."""
        return self._state == _LENGTH and self._left_bytes < size_bytes


def holds_only_comments(payload: bytes, size: int) -> bool:
    """Whether the payload of one read of an event stream consists of comment lines."""
    if size == 0 or payload[0] != _COLON:
        return False
    for at in range(1, size):
        before, c = payload[at - 1], payload[at]
        if before in (_LF, _CR) and c not in (_COLON, _LF, _CR):
            return False
    return True


def _take_run(data: bytes, payload: list[bytes]) -> int:
    """Take chunks with known lines. Returns their size. Python code for each of them would make small chunks expensive."""
    parts = data.split(b"\r\n")
    whole = [*map(eq, map(_LENGTHS.get, parts[:-1:2]), map(len, parts[1:-1:2])), False]
    count = 2 * whole.index(False)
    payload += parts[1:count:2]
    return sum(map(len, parts[:count])) + 2 * count

"""Find what a server said outside of its events: lines in an event stream that are no SSE, but spell an error or a JSON value.

llama.cpp and GPUStack have sent `error: {…}`; Gemini sends a bare JSON error, over many lines. A JSON value begins with a line
that begins with "{" or "[" and ends with the line that makes it whole. Lines are taken one by one, so that the cut of
the bytes changes nothing; they come bounded in number of bytes (`analytics.decoding.sse.MAX_STRAY_BYTES`), the attempts to
parse are bounded by `MAX_TRIES`.
"""

from __future__ import annotations

from analytics.decoded.tolerant_json import json_or_none

MAX_TRIES = 64
_SPACE = b" \t\r\n"


class StrayLines:
    """Takes the stray lines of one stream."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._tries = 0

    def add(self, line: bytes) -> tuple[str, bytes] | None:
        """(event name, data) of what this line makes whole."""
        if not self._lines or (line[:1] == b"{" and self._lines[0][:1] == b"{"):
            name, _, value = line.partition(b":")
            value = value.strip(_SPACE)
            if name.lower() == b"error" and value:
                return "error", value
            if line[:1] not in (b"{", b"["):
                return None
            self._lines = [line]
        else:
            self._lines.append(line)
        if line.rstrip(_SPACE)[-1:] not in (b"}", b"]") or self._tries >= MAX_TRIES:
            return None
        self._tries += 1
        data = b"\n".join(self._lines)
        if json_or_none(data) is None:
            return None
        self._lines = []
        return "", data

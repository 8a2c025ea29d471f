"""Find JSON values in lines of an event stream that are not SSE fields: some servers report errors there.

llama.cpp and GPUStack have sent `error: {…}`; Gemini sends a bare JSON error over many lines. A value starts with a line that
begins with "{" or "[", and ends with the line that completes it. The lines are limited in bytes by
`sse.MAX_UNFRAMED_BYTES`, the attempts to parse them by `MAX_PARSE_ATTEMPTS`.
"""

from __future__ import annotations

from streamgauge.analytics.decoded.tolerant_json import json_or_none

MAX_PARSE_ATTEMPTS = 64
_SPACE = b" \t\r\n"


class UnframedJSON:
    """Joins the unframed lines of one stream into JSON values."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._attempts = 0

    def add(self, line: bytes) -> tuple[str, bytes] | None:
        """Return (event name, data) when this line completes a value."""
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
        if line.rstrip(_SPACE)[-1:] not in (b"}", b"]") or self._attempts >= MAX_PARSE_ATTEMPTS:
            return None
        self._attempts += 1
        data = b"\n".join(self._lines)
        if json_or_none(data) is None:
            return None
        self._lines = []
        return "", data

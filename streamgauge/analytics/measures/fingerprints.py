"""Fingerprints of a stream's output: equal for equal output, however a gateway divides it into events. No I/O, no clock.

The key is secret, so a reader of the tables cannot compute the fingerprint of a guessed text. NULL, because equal
fingerprints would not mean equal output: with several choices, whose events interleave, and for redacted output.
The same start of the output shows whether the arguments of tool calls are JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.decoding.stream_output import KEPT_CHARS, OutputStart
from streamgauge.ingest.redaction.filler import is_filler

_DIGEST_BYTES = 8


def fingerprints(body: DecodedBody, key: bytes) -> tuple[str | None, str | None]:
    """Columns output_fingerprint (of the text, without text of the reasoning) and tool_fingerprint."""
    columns, start = body.columns, body.output_start
    if columns["choice_count"] != 1:
        return None, None
    if columns["text_chars"]:
        output = _fingerprint("".join(start.text)[:KEPT_CHARS], columns["text_chars"], key)
    else:
        output = _fingerprint("".join(start.reasoning)[:KEPT_CHARS], columns["reasoning_chars"], key)
    return output, _of_arguments(start, key) if start.arguments else None


def malformed_tool_calls(start: OutputStart) -> int | None:
    """Tool calls whose arguments begin as a JSON object and are not valid JSON. None if that is unknown: redacted or too long."""
    if start.argument_chars > KEPT_CHARS:
        return None
    texts = ["".join(parts) for parts in start.arguments.values()]
    malformed = [text for text in texts if text.lstrip()[:1] == "{" and not _is_json(text)]
    return None if any(map(is_filler, malformed)) else len(malformed)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _of_arguments(start: OutputStart, key: bytes) -> str | None:
    arguments = ["".join(parts) for parts in start.arguments.values()]
    if start.argument_chars > KEPT_CHARS:
        return _fingerprint("\n".join(arguments)[:KEPT_CHARS], start.argument_chars, key)
    return _fingerprint("\n".join(_normalised(arguments)), 0, key)


def _fingerprint(text: str, chars: int, key: bytes) -> str | None:
    """Of the start of a text of `chars` characters."""
    # Redacted text has filler of equal length, so different outputs would have equal fingerprints.
    if is_filler(text):
        return None
    data = f"{chars} {text}".encode("utf-8", "replace")
    return hashlib.blake2b(data, key=key, digest_size=_DIGEST_BYTES).hexdigest()


def _normalised(arguments: Iterable[str]) -> Iterable[str]:
    """JSON without white space and with sorted keys, where the text is JSON."""
    for text in arguments:
        try:
            yield msgspec.json.encode(msgspec.json.decode(text), order="sorted").decode()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            yield text

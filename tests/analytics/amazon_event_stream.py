"""Encode Amazon's binary event stream, for tests."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any
from zlib import crc32


def message(payload: bytes, **headers: str) -> bytes:
    """One message. `event_type` becomes the header `:event-type`."""
    head = b"".join(
        bytes((len(name) + 1,))
        + b":"
        + name.replace("_", "-").encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    body = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return body + struct.pack(">I", crc32(body))


def event(name: str, **members: Any) -> bytes:
    return message(
        json.dumps(members).encode(), event_type=name, content_type="application/json", message_type="event"
    )


def chunk(**members: Any) -> bytes:
    """An event of the model's vendor in InvokeModelWithResponseStream."""
    return event("chunk", bytes=base64.b64encode(json.dumps(members).encode()).decode(), p="abcdefgh")


def exception(kind: str, text: str = "slow down") -> bytes:
    return message(json.dumps({"message": text}).encode(), exception_type=kind, message_type="exception")


CONVERSE = (
    event("messageStart", role="assistant"),
    event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"text": "hm"}}),
    event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"signature": "c2ln"}}),
    event("contentBlockStop", contentBlockIndex=0),
    event("contentBlockDelta", contentBlockIndex=1, delta={"text": "The river"}, p="abc"),
    event("contentBlockDelta", contentBlockIndex=1, delta={"text": " rises"}, p="abcdef"),
    event("contentBlockStop", contentBlockIndex=1),
    event("contentBlockStart", contentBlockIndex=2, start={"toolUse": {"toolUseId": "t1", "name": "level"}}),
    event("contentBlockDelta", contentBlockIndex=2, delta={"toolUse": {"input": '{"a":1}'}}),
    event("contentBlockStop", contentBlockIndex=2),
    event("messageStop", stopReason="tool_use"),
    event(
        "metadata",
        usage={"inputTokens": 20, "outputTokens": 9, "totalTokens": 34, "cacheReadInputTokens": 5},
        metrics={"latencyMs": 312},
    ),
)
"""A whole ConverseStream."""

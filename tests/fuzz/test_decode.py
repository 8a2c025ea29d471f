"""The fuzz target itself holds on inputs of its own shape: a short share of what atheris does at length."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.decode import one_input

TOKENS = [
    b"data: ", b"event: ", b"id: 1\n", b": x\n", b"\n", b"\n\n", b"\r\n\r\n", b"\r", b"{", b"}", b"[", b"]", b",", b":", b'"choices"',
    b'"delta"', b'"content"', b'"message"', b'"type"', b'"message_start"', b'"response.output_text.delta"', b'"candidates"', b'"done"',
    b'"error"', b"null", b"0", b"true", b'"text"', b'"a"', b'"finish_reason"', b'"stop"', b'"index"', b"[DONE]", b"\xff", b"\xef\xbb\xbf",
    b'{"choices":[{"index":0,"delta":{"content":"a"}}]}', b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}',
    json.dumps({"error": {"type": "t", "message": "m"}}).encode(), b'{"object":"chat.completion.chunk","choices":[]}',
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    head=st.binary(min_size=5, max_size=5),
    body=st.lists(st.sampled_from(TOKENS) | st.binary(max_size=3), max_size=30).map(b"".join),
)
def test_the_target_holds(head: bytes, body: bytes) -> None:
    one_input(head + body)

"""Run the fuzz target on random inputs, as a short substitute for atheris."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.decode import one_input

WORDS = [
    "choices",
    "delta",
    "content",
    "message",
    "type",
    "message_start",
    "response.output_text.delta",
    "candidates",
    "done",
    "error",
    "text",
    "a",
    "finish_reason",
    "stop",
    "index",
]
TOKENS = [f'"{word}"'.encode() for word in WORDS] + [
    b"data: ", b"event: ", b"id: 1\n", b": x\n", b"\n", b"\n\n", b"\r\n\r\n", b"\r", b"{", b"}", b"[", b"]", b",", b":",
    b"null", b"0", b"true", b"[DONE]", b"\xff", b"\xef\xbb\xbf",
    b'{"choices":[{"index":0,"delta":{"content":"a"}}]}',
    b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}',
    b'{"object":"chat.completion.chunk","choices":[]}',
    b'{"error": {"type": "t", "message": "m"}}',
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    head=st.binary(min_size=5, max_size=5),
    body=st.lists(st.sampled_from(TOKENS) | st.binary(max_size=3), max_size=30).map(b"".join),
)
def test_fuzz_target_accepts_random_inputs(head: bytes, body: bytes) -> None:
    one_input(head + body)

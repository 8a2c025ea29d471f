"""Bodies of chat streams with words of different length. Standard library only, because `bench store` loads it in another
tree."""

from __future__ import annotations

import random

EVENTS = 100
"""Events per stream: text, finish reason, usage, terminator."""
TOLD = {
    "http_status": 200,
    "content_type": "text/event-stream",
    "url": "/v1/chat/completions",
    "request": {"model": "model-0", "stream": True},
}
"""Metadata as of a recorded stream of the corpus."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def body(rng: random.Random) -> list[bytes]:
    """The events of one stream."""
    number = rng.getrandbits(64)
    before = (
        b'data: {"id":"chatcmpl-%020d","object":"chat.completion.chunk","created":1790000000,"model":"model-%d",'
        b'"system_fingerprint":"fp_0123456789","choices":[' % (number, number % 6)
    )
    texts = [
        b'%b{"index":0,"delta":{"content":" %b"},"logprobs":null,"finish_reason":null}]}\n\n'
        % (before, _LETTERS[: rng.randint(1, 11)])
        for _ in range(EVENTS - 3)
    ]
    return [
        *texts,
        b'%b{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n' % before,
        b'%b],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
        % (before, 25, len(texts), 25 + len(texts)),
        b"data: [DONE]\n\n",
    ]

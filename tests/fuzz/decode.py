"""Fuzz the decoder with atheris: any bytes, content type, coding and division into reads. It must not raise or exceed its
limits.

    uv pip install atheris && python -m tests.fuzz.decode -max_total_time=600 [folder of seed bodies]

The first bytes of an input set path, status, content type, coding and the length of reads; the rest is the body. CI runs
hypothesis tests of the same parts instead.
"""

from __future__ import annotations

import sys

from streamgauge.analytics.decoding.sse import MAX_UNFRAMED_BYTES, SSEDecoder
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.dialect import ExchangeInfo

PATHS = (
    "", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/api/v1/chat", "/v2/chat", "/v1/chat",
    "/v1beta/models/m:streamGenerateContent", "/api/chat", "/generate_stream", "/generate", "/v1/complete", "/completion",
    "/v1/threads/t/runs", "/v1beta/interactions", "/v1/streams/x", "/ai/run/x", "/ml/v1/text/generation_stream",
)  # fmt: skip
TYPES = ("", "text/event-stream", "application/json", "application/x-ndjson", "text/html")
CODINGS = ("", "", "", "gzip", "deflate", "br", "zstd")
STATUSES = (200, 200, 200, 404, 529)


def one_input(data: bytes) -> None:
    """Decode one input with two divisions into reads, which must agree, and check the limits."""
    if len(data) < 5:
        return
    path, kind, coding, status, step = data[:5]
    body = data[5:]
    exchange = ExchangeInfo(
        path=PATHS[path % len(PATHS)],
        content_type=TYPES[kind % len(TYPES)],
        status=STATUSES[status % len(STATUSES)],
        response_headers={"content-encoding": CODINGS[coding % len(CODINGS)]},
    )
    found = [_read(exchange, body, size) for size in (step + 1, len(body) + 1)]
    # With invalid compression, the division decides how much is decoded before the fault.
    if not exchange.response_headers["content-encoding"]:
        assert found[0] == found[1], "the division into reads changed the result"
    for dialect in all_dialects():
        reader = dialect.reader(exchange)
        reader.read("", body)
        reader.read_body(body)
    decoder = SSEDecoder(max_event_bytes=64)
    for at in range(0, len(body), step + 1):
        decoder.feed(body[at : at + step + 1], at)
        assert decoder._carry_bytes <= 64 + step + 1
    assert sum(map(len, decoder.unframed_lines)) <= MAX_UNFRAMED_BYTES


def _read(exchange: ExchangeInfo, body: bytes, size: int) -> tuple[object, ...]:
    decoder = StreamDecoder(exchange, keep_text=True)
    for at in range(0, len(body), size):
        decoder.feed([(at, body[at : at + size])])
    decoder.finish()
    error = decoder.error and (decoder.error.type, decoder.error.message)
    return (
        decoder.framing, decoder.dialect, decoder.event_count, decoder.text, decoder.reasoning, decoder.tool_calls,
        decoder.finish_reason, error, decoder.comment_count, decoder.events.kind,
    )  # fmt: skip


def main() -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: uv pip install atheris")
        return 2
    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

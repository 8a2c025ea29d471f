"""CPU time of the look at the first bytes of a response, by the kind of the body.

The tap does it once for each response that is not declared as a stream, when its first bytes have been forwarded. The figure is
the fastest of 5 runs, in µs, with the compiled code if it is installed.
"""

from __future__ import annotations

import gzip
import random
import time
import timeit

import brotli
import zstandard

from streamgauge.ingest.facts import FieldFacts, ResponseFacts
from streamgauge.ingest.recording.body_capture import LOOK_BYTES, ResponseLook
from streamgauge.ingest.tap import is_compiled

RUNS = 5
LOOKS = 20_000
EVENT = b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
EVENTS = EVENT * (LOOK_BYTES * 4 // len(EVENT))
CODED = {"gzip": gzip.compress(EVENTS), "br": brotli.compress(EVENTS), "zstd": zstandard.compress(EVENTS)}
BODIES: dict[str, tuple[bytes, str]] = {
    "one event": (EVENT, ""),
    "4 KiB of events": (EVENTS[:LOOK_BYTES], ""),
    "4 KiB of JSON": (b'{"content":"' + b"word " * 1000, ""),
    "4 KiB of text": (b"word " * 1000, ""),
    "4 KiB of a picture": (random.Random(1).randbytes(LOOK_BYTES), ""),
    **{f"4 KiB of events in {coding}": (body, coding) for coding, body in CODED.items()},
}


def main() -> int:
    print(f"look at a response ({'compiled' if is_compiled() else 'interpreted'})   µs")
    for name, (body, coding) in BODIES.items():
        fields = [FieldFacts(b"content-encoding", coding.encode(), None)] if coding else []
        head = ResponseFacts(200, fields, b"", 0)

        def look(body: bytes = body[:LOOK_BYTES], head: ResponseFacts = head) -> object:
            return ResponseLook("POST", head, 0).feed(body)

        fastest_s = min(timeit.repeat(look, timer=time.process_time, number=LOOKS, repeat=RUNS)) / LOOKS
        print(f"{name:<34} {fastest_s * 1e6:6.1f}")
    return 0

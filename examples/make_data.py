"""Make a data folder for the notebooks: `python examples/make_data.py streamgauge-data`.

Two gateways, `east` and `west`, serve three models for two hours. From the second hour on, `large-chat` takes three times as
long to its first token. `west` adds 80 ms to each first token, and rejects one request in 20. Each run with the same end has the same
streams: the records of a tap, measured by analytics.
"""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.consumer import Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request, ResponseHeaders, pack

MS, SECOND, HOUR = 10**6, 10**9, 3600 * 10**9
SPAN_NS = 2 * HOUR
STREAMS = 600
MODELS = {"small-chat": (220, 11), "large-chat": (600, 22), "reasoner": (900, 16)}
"""Median milliseconds to the first token and between two tokens."""
SLOW_MODEL, SLOW_FACTOR = "large-chat", 3.0
WEST_MS = 80
REJECTED_SHARE = 0.05
RUN = "0198b2d0-0000-7000-8000-000000000001"


def make(data: Path, until: datetime) -> None:
    """Make the data folder. Raises FileExistsError if it exists."""
    if data.exists():
        raise FileExistsError(f"cannot make {data}: it exists. Pass another folder.")
    prepare_data_folder(data)
    end_ns = int(until.timestamp() * SECOND)
    with EmbeddedWriter(data / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack(records, compress=True) for records in streams(end_ns)])
    store = Store(locate(SQLITE, data))
    with EmbeddedReader(data / "log", "analyze") as reader:
        consumer = Consumer(reader, store, Assembler(), measure)
        consumer.start()
        while consumer.step(0):
            pass
        consumer.finish()
    store.close()


def streams(end_ns: int) -> Iterator[list[AnyRecord]]:
    """The records of each stream."""
    rng = random.Random(7)  # noqa: S311 - the same streams in each run
    for number in range(STREAMS):
        yield stream(rng, number, end_ns - SPAN_NS + SPAN_NS * number // STREAMS)


def stream(rng: random.Random, number: int, wall_ns: int) -> list[AnyRecord]:
    """The records of one stream that starts at `wall_ns`."""
    gateway = rng.choice(("east", "west"))
    model = rng.choices(list(MODELS), weights=(5, 3, 2))[0]
    ttft_ms, gap_ms = MODELS[model]
    is_late = number >= STREAMS // 2
    slower = SLOW_FACTOR if is_late and model == SLOW_MODEL else 1.0
    first_ns = int(ttft_ms * slower * rng.lognormvariate(0, 0.3) * MS)
    first_ns += WEST_MS * MS if gateway == "west" else 0
    stream_id = str(uuid.UUID(int=((wall_ns // MS) << 80) | (7 << 76) | (2 << 62) | number))
    request = msgspec.json.encode({"model": model, "stream": True, "messages": []})
    records: list[AnyRecord] = [
        Opened(
            stream=stream_id, seq=0, tap="example", tap_worker=0, incarnation=RUN, gateway=gateway,
            server_address="192.0.2.1", server_port=443, method="POST", path="/v1/chat/completions", wall_ns=wall_ns,
            mono_ns=number * SECOND, client_start_ns=-MS, trace_id=f"{number + 1:032x}", span_id=f"{number + 1:016x}",
            parent_span_id=None, trace_flags=1, client_id=None, headers=[("content-type", "application/json")],
        ),
        Request(stream_id, 1, request, False),
    ]  # fmt: skip
    if gateway == "west" and rng.random() < REJECTED_SHARE:
        error = b'{"error": {"type": "rate_limit_error", "message": "slow down"}}'
        head = ResponseHeaders(429, [("content-type", "application/json")], 30 * MS)
        reads = [(31 * MS, error)]
    else:
        head = ResponseHeaders(200, [("content-type", "text/event-stream")], first_ns - 20 * MS)
        reads = answer(rng, model, first_ns, gap_ms)
    records.append(Frames(stream_id, 2, reads, head))
    size = sum(len(data) for _, data in reads)
    last_ns = reads[-1][0]
    records.append(
        Closed(
            stream=stream_id, seq=3, cause="complete", detail=None, end_ns=last_ns + MS, connected_ns=2 * MS,
            request_sent_ns=3 * MS, request_bytes=len(request), response_bytes=size, delivered_bytes=size,
            client_drain_ns=last_ns,
        )
    )  # fmt: skip
    return records


def answer(rng: random.Random, model: str, first_ns: int, gap_ms: float) -> list[tuple[int, bytes]]:
    """The reads of a chat completion, one token each."""
    tokens = rng.randint(20, 60)
    at_ns, reads = first_ns, []
    for _ in range(tokens):
        reads.append((at_ns, event(model, [{"index": 0, "delta": {"content": "word "}}])))
        at_ns += int(gap_ms * rng.lognormvariate(0, 0.3) * MS)
    finish = event(model, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
    usage = event(model, [], {"prompt_tokens": 50, "completion_tokens": tokens, "total_tokens": 50 + tokens})
    return [*reads, (at_ns, finish + usage + b"data: [DONE]\n\n")]


def event(model: str, choices: list[dict[str, object]], usage: dict[str, int] | None = None) -> bytes:
    value = {"id": "c1", "object": "chat.completion.chunk", "model": model, "choices": choices}
    return b"data: " + msgspec.json.encode(value | ({"usage": usage} if usage else {})) + b"\n\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a data folder with two hours of streams.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--until", metavar="TIME", help="End of the two hours, ISO 8601. [default: now]")
    given = parser.parse_args()
    until = datetime.fromisoformat(given.until) if given.until else datetime.now(UTC)
    try:
        make(given.folder, until)
    except FileExistsError as e:
        print(e, file=sys.stderr)
        return 2
    print(f"{given.folder}: {STREAMS} streams")
    return 0


if __name__ == "__main__":
    sys.exit(main())

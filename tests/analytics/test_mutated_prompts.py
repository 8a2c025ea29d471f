"""Why the prompt cache missed, of request bodies with one mutation: from the bytes on the wire to the row."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.keyed_ids import RECORDED
from streamgauge.ingest.records import AnyRecord, Frames, Request
from tests import prompt_bodies
from tests.analytics.measures.test_cache_misses import (
    INPUT,
    anthropic_events,
    expected_reason,
    is_continued,
    responses_events,
)
from tests.analytics.prompts import chat_usage
from tests.analytics.sockets import Sent, create, recorded
from tests.analytics.stream_records import START_NS, chunk, closed, finish_chunk, head, opened, stream_id

KEY = b"k" * 32
MS = 10**6
CAPTURED_BYTES = 64 * 2**10
"""The tap condenses longer bodies."""
ENDPOINTS: dict[str, tuple[str, str, list[bytes]]] = {
    "openai_chat": ("/v1/chat/completions", "api.openai.com", [chunk("a"), finish_chunk(), chunk(usage=chat_usage(INPUT, 0), choices=[])]),
    "openai_responses": ("/v1/responses", "api.openai.com", responses_events({"type": "unavailable"})),
    "anthropic": ("/v1/messages", "api.anthropic.com", anthropic_events(0, INPUT)),
}  # fmt: skip
COUNT = int(os.environ.get("STREAMGAUGE_MUTATED_PROMPTS", "40"))
"""Of each kind. 1,000 take minutes without native code."""
Case = tuple[str, prompt_bodies.Body, prompt_bodies.Body, tuple[str, str | None]]


def cases(rng: random.Random, dialects: list[str], count: int) -> Iterator[tuple[str, Case]]:
    """(dialect, (mutation, body, mutated body, expected reason and segment))."""
    while count:
        dialect = rng.choice(dialects)
        mutation, mutate = rng.choice(list(prompt_bodies.MUTATIONS.items()))
        one = prompt_bodies.prompt(rng, long=rng.random() < 0.5)
        (body, before), (other, after) = (
            prompt_bodies.rendered(each, dialect) for each in (one, mutate(rng, one))
        )
        if is_continued(before, after):
            continue
        count -= 1
        yield dialect, (mutation, body, other, expected_reason(mutation, before, after))


def http_request(number: int, dialect: str, body: prompt_bodies.Body) -> list[AnyRecord]:
    path, host, events = ENDPOINTS[dialect]
    stream, sent = stream_id(number), prompt_bodies.encoded(body, random.Random(number // 2))
    request = Request(stream, 1, sent, False)
    if len(sent) > CAPTURED_BYTES:
        condenser = CondensedBody(KEY)
        reads = [sent[at : at + 16_384] for at in range(0, len(sent), 16_384)]
        condensed = b"".join(map(condenser.feed, reads))
        request = Request(stream, 1, condensed, False, condensed=True, anatomy=condenser.anatomy)
    frames = [((i + 1) * MS, event) for i, event in enumerate(events)]
    return [
        opened(stream, path=path, server_address=host, headers=[(RECORDED, f"session-{number // 2}")], wall_ns=START_NS + number * 10**9),
        request, Frames(stream, 2, frames, head()), closed(stream, 3, end_ns=9 * MS),
    ]  # fmt: skip


def reasons(records: list[list[AnyRecord]]) -> list[tuple[Any, ...]]:
    """(reason, segment) of the requests in the order of their start."""
    assembler = Assembler(client_key=KEY)
    for each in records:
        assembler.feed("w0", 0, each)
    assert not assembler.take_failures()
    rows = measure(assembler.take_finished(), prompts=SessionPrompts())["streams"].sort(
        "started_at", "response_index"
    )
    answers = rows.filter(rows["operation"] == "chat")
    return answers.select("cache_miss_reason", "cache_miss_segment").rows()


def test_requests_of_http() -> None:
    chosen = list(cases(random.Random(57), list(ENDPOINTS), COUNT))
    bodies = [(dialect, body) for dialect, (_, *both, _) in chosen for body in both]
    found = reasons([http_request(number, *each) for number, each in enumerate(bodies)])
    compare(chosen, found)


def test_requests_of_websockets() -> None:
    chosen = list(cases(random.Random(58), ["openai_responses"], COUNT))
    events = [event.partition(b"data: ")[2].strip() for event in responses_events({"type": "unavailable"})]
    found: list[tuple[Any, ...]] = []
    for number, (_, (_, *both, _)) in enumerate(chosen):
        sent: list[Sent] = []
        for turn, body in enumerate(both):
            at = 1000 * (turn + 1)
            sent.append((at, "client", create(**body)))
            sent += [(at + 100 + n, "server", event) for n, event in enumerate(events)]
        headers = [(RECORDED, f"session-{number}")]
        found += reasons([recorded(sent, request_headers=headers, server_address="api.openai.com")])
    compare(chosen, found)


def compare(chosen: list[tuple[str, Case]], found: list[tuple[Any, ...]]) -> None:
    assert len(found) == 2 * len(chosen)
    assert {reason for reason, _ in found[::2]} <= {"first_request", "not_comparable", "no_marker"}
    pairs = zip(chosen, found[1::2], strict=True)
    wrong = Counter((dialect, case[0], case[3], of) for (dialect, case), of in pairs if case[3] != of)
    assert wrong.total() <= len(chosen) // 100, wrong

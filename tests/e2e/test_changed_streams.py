"""Streams that are changed at random: a client is named if, and only if, it raises or loses what the changed bytes carry.

The streams are those that this project writes, and recorded ones where they lie beside the repository. The clients are the official
SDKs and the AI SDK with its providers; `tests.strict_clients.reading` says what the bytes carry. Only streams that ended `ok` count:
of others the outcome already says that they failed, and rules of their end do not apply. The agents, which are no libraries, are
run on written streams alone (`tests.e2e.test_strict_clients`).

Not compared: a role that each chunk states, as many servers do. The OpenAI SDK for Python joins it to `assistantassistant`, and loses
nothing that was sent. A role that it does not read at all is a loss.

What remains, by kind:

- A fault in the first event after a byte order mark: the OpenAI SDK for Python does not see it, and a rule cannot leave out one client.
- A member that only the SDK for Node reads, and only in some values: `logprobs` that are true, `choices` as an object or a text.
- Input of server tools that is no JSON: the arguments of these calls are not kept.
- `[object Object]` or `undefined` inside arguments that are no JSON anyway.
- A changed member between two texts of one event, such as those of `logprobs`, after two events that were checked.
- A message_start that arrives late, after blocks that nothing follows.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.schema.outcomes import OK
from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES, clients_of
from streamgauge.ingest.records import Frames, Request
from tests.analytics.corpus import recordings
from tests.analytics.stream_records import closed, head, opened, stream_id
from tests.analytics.strict_streams import PATHS, STREAMS
from tests.e2e.running import ROOT
from tests.npm import installed
from tests.strict_clients.changed_streams import Changed, changed_streams, events_of
from tests.strict_clients.driver import sdk_answers
from tests.strict_clients.reading import lost, reading_of

DIALECTS = (CHAT, MESSAGES, RESPONSES)
FOLDERS = {CHAT: ("_chat",), MESSAGES: ("anthropic_messages", "anthropic_vertex"), RESPONSES: ("_responses",)}
MAX_BODY_BYTES = 40_000
REQUEST = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def written(dialect: str) -> list[tuple[str, str, bytes]]:
    return [(s.name, dialect, s.body) for s in STREAMS if s.dialect == dialect and not s.rules]


def recorded(dialect: str) -> list[tuple[str, str, bytes]]:
    found = [
        r
        for r in recordings()
        if r.folder.endswith(FOLDERS[dialect]) and r.body.stat().st_size < MAX_BODY_BYTES
    ]
    return [(str(r), dialect, r.body.read_bytes()) for r in found if r.found.get("http_status", 200) == 200]


def named_clients(streams: list[Changed]) -> list[set[str] | None]:
    """For each stream, the clients that its violations break. None if it did not end `ok`."""
    assembler = Assembler()
    for number, stream in enumerate(streams, 1):
        one, parts = stream_id(number), events_of(stream.body)
        frames = [(at * 1_000_000, data) for at, data in enumerate(parts, 1)]
        end_ns, size = (len(parts) + 1) * 1_000_000, len(stream.body)
        assembler.feed("w0", 0, [
            opened(one, path=PATHS[stream.dialect]), Request(one, 1, REQUEST, False), Frames(one, 2, frames, head(), 0),
            closed(one, 3, cause="complete", end_ns=end_ns, response_bytes=size),
        ])  # fmt: skip
    rows = {row["stream_id"]: row for row in measure(assembler.take_finished())["streams"].to_dicts()}
    found: list[set[str] | None] = []
    for number, stream in enumerate(streams, 1):
        row = rows[stream_id(number)]
        of_dialect = (
            row["outcome"] == OK and row["dialect"] == stream.dialect and row["violations"] is not None
        )
        codes = row["violations"] if of_dialect else ()
        found.append({c for code in codes for c in clients_of(code, stream.dialect)} if of_dialect else None)
    return found


def scores(streams: list[Changed], *, with_node: bool) -> dict[tuple[str, str], Counter[str]]:
    """(dialect, client) → numbers of streams: "hit", "missed", "wrong" and "right"."""
    bodies = [(stream.dialect, "text/event-stream", stream.body) for stream in streams]
    modules = [None, installed(ROOT / "tests" / "strict_clients")] if with_node else [None]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda of: sdk_answers(bodies, of), modules))
    found: dict[tuple[str, str], Counter[str]] = {}
    for stream, named, *of_kinds in zip(streams, named_clients(streams), *answers, strict=True):
        if named is None:
            continue
        reading = reading_of(stream.dialect, stream.body)
        for client, seen in (pair for of_kind in of_kinds for pair in of_kind.items()):
            losses = [lost(answer, reading, client, stream.dialect) for answer in seen]
            what = {(1, 1): "hit", (1, 0): "missed", (0, 1): "wrong", (0, 0): "right"}[
                any(losses), client in named
            ]
            found.setdefault((stream.dialect, client), Counter())[what] += 1
            if what in ("missed", "wrong"):
                print(what, client, stream.name, stream.change, losses)
    return found


def check(found: dict[tuple[str, str], Counter[str]], *, recall: float, precision: float) -> None:
    for (dialect, client), of in found.items():
        failed, named = of["hit"] + of["missed"], of["hit"] + of["wrong"]
        print(
            f"{dialect} {client}: recall {of['hit'] / failed:.1%} of {failed}, precision {of['hit'] / named:.1%}, {of.total()} streams"
        )
        assert of["hit"] >= recall * failed
        assert of["hit"] >= precision * named


def test_python_sdks_fail_on_the_written_streams_whose_violations_name_them() -> None:
    streams = [s for dialect in DIALECTS for s in changed_streams(written(dialect), 60, f"fast {dialect}")]
    check(scores(streams, with_node=False), recall=0.95, precision=0.98)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clients_fail_on_the_changed_streams_whose_violations_name_them() -> None:
    streams = []
    for dialect in DIALECTS:
        of_written, of_recorded = written(dialect), recorded(dialect)
        streams += changed_streams(of_written, 400 if of_recorded else 1100, f"written {dialect}")
        streams += changed_streams(of_recorded, 700, f"recorded {dialect}") if of_recorded else []
    found = scores(streams, with_node=True)
    assert sum(of.total() for of in found.values()) > 3000
    check(found, recall=0.95, precision=0.98)

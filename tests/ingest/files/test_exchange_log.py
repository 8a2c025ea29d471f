"""Exchanges of files become the records of a tap in the log of a data folder, without secrets and text."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.ingest.files import har
from streamgauge.ingest.files.exchange_log import Exchange, exchange_log
from streamgauge.ingest.keyed_ids import keyed_hash, session_hash
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.records import (
    NO_SEGMENTS,
    Alive,
    AnyRecord,
    Closed,
    Frames,
    Lost,
    Opened,
    Request,
    RequestAnatomy,
    unpack,
)
from streamgauge.ingest.redaction.record_redactor import MAX_PLAIN_BYTES, Redactor
from tests.analytics.stream_records import rows_of
from tests.ingest.files.hars import BODY, REQUEST, STARTED_NS, entry, fields
from tests.ingest.files.hars import har as har_text
from tests.options import tap_options

KEY = b"k" * 32


def redactor() -> Redactor:
    return Redactor(conversation=ConversationReader(KEY))


async def written(data: Path, exchanges: Iterable[Exchange], source: str = "a b.har") -> list[AnyRecord]:
    """The records in the log. Exchanges with an invalid URL are left out."""
    async with exchange_log(tap_options(data=data, client_key=KEY), redactor(), KEY) as log:
        for exchange in exchanges:
            with contextlib.suppress(ValueError):
                log.add(exchange, source)
    with EmbeddedReader(data / "log", "test") as reader:
        records = [record for found in reader.poll(1, 2**30) for record in unpack(found.payload)[0]]
        assert reader.end(log.partition) == log.end
    alive = records.pop()
    assert isinstance(alive, Alive)
    assert alive.stopping
    assert alive.counters["recording_failed"] == alive.counters["lost_records"] == 0
    assert alive.counters["streams_closed"] == sum(isinstance(record, Closed) for record in records)
    return [record for record in records if not isinstance(record, Alive)]


def exchange(one: Any) -> Exchange:
    (found,) = har.exchanges(io.BytesIO(har_text(one).encode()), STARTED_NS)
    assert isinstance(found, Exchange)
    return found


async def test_records_are_those_of_a_tap(tmp_path: Path) -> None:
    one = entry()
    one["request"]["headers"] += fields(("User-Agent", "OpenAI/1"), (":authority", "x"), ("Ünknown", "x"))
    records = await written(tmp_path, [exchange(one)])
    assert [type(record) for record in records] == [Opened, Request, Frames, Closed]
    opened, _, frames, closed = records
    assert isinstance(opened, Opened)
    assert isinstance(frames, Frames)
    assert isinstance(closed, Closed)
    assert (opened.tap, opened.gateway, opened.server_port) == ("a-b.har", "api.openai.com", 443)
    assert (opened.path, opened.wall_ns, opened.times) == ("/v1/chat/completions", STARTED_NS, "exchange")
    assert ("user-agent", "OpenAI/1") in opened.headers
    assert (closed.end_ns, closed.response_bytes, closed.cause) == (1_000_000_000, len(BODY), "complete")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/octet-stream"])
@pytest.mark.parametrize("encoding", ["", "base64"])
async def test_bodies_without_their_content_type_are_read_and_measured(
    kind: str, encoding: str, tmp_path: Path
) -> None:
    text = base64.b64encode(BODY.encode()).decode() if encoding else BODY
    one = entry(kind=kind, content={"size": len(BODY), "mimeType": kind, "text": text, "encoding": encoding})
    one["request"] |= {"headers": [], "postData": {"mimeType": kind, "text": json.dumps(REQUEST)}}
    answer = b'{"id": "c1", "object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 20}}'
    whole = entry(kind=kind, content={"mimeType": kind, "text": answer.decode()})
    whole["request"] |= {"headers": [], "postData": {}}
    assembler = Assembler()
    for offset, record in enumerate(await written(tmp_path, [exchange(one), exchange(whole)])):
        assembler.feed("w0", offset, [record])
    assert [row["output_tokens"] for row in rows_of(assembler)] == [20, 20]


async def test_a_body_larger_than_a_record_is_whole(tmp_path: Path) -> None:
    body = (b": " + b"x" * 998 + b"\n\n") * 8_000 + BODY.encode()
    records = await written(tmp_path, [replace(exchange(entry()), reads=[(1, body)])])
    frames = [frame for record in records if isinstance(record, Frames) for frame in record.frames]
    assert sum(len(data) for _, data in frames) == len(body)
    assert {at_ns for at_ns, _ in frames} == {1}


async def test_a_body_that_expands_beyond_a_record_costs_no_other_stream(tmp_path: Path) -> None:
    bomb, other = exchange(entry()), exchange(entry())
    body = gzip.compress(bytes(MAX_PLAIN_BYTES + 1))
    bomb = replace(
        bomb, response_headers=[*bomb.response_headers, ("content-encoding", "gzip")], reads=[(1, body)]
    )
    records = await written(tmp_path, [other, bomb, other])
    kinds = Counter(type(record) for record in records)
    assert (kinds[Closed], kinds[Lost]) == (3, 1)
    assembler = Assembler()
    assembler.feed("w512", 0, records)
    assert sorted(row["outcome"] for row in rows_of(assembler)) == ["ok", "ok", "tap_lost"]


async def test_arbitrary_exchanges_are_whole_streams(tmp_path: Path) -> None:
    rng = random.Random(3)
    texts = (
        "",
        "\ud800",
        "é\r\n",
        "x" * 5000,
        "http://[",
        "http://h:99999/",
        "//",
        "http://u:p@host/?key=k#f",
        "data:,x",
        "a b",
    )

    def text() -> str:
        return rng.choice(texts) + rng.choice(texts)

    def pairs() -> list[tuple[str, str]]:
        names = (
            "content-type",
            "content-encoding",
            "authorization",
            "traceparent",
            "session-id",
            "content-length",
        )
        return [
            (rng.choice((*names, text())), rng.choice((text(), "gzip", "text/event-stream")))
            for _ in range(5)
        ]

    def one() -> Exchange:
        times = sorted(rng.choice((0, 1, 10**15)) for _ in range(4))
        return replace(
            exchange(entry()), method=text(), url=text(), request_headers=pairs(), response_headers=pairs(),
            request_body=text().encode("utf-8", "replace"), status=rng.choice((None, 100, 200, 500, 999)),
            started_wall_ns=rng.choice((1, 2**61 - 1)), connected_ns=times[0], headers_ns=times[1],
            reads=[(at_ns, rng.randbytes(rng.randint(1, 300))) for at_ns in times[2:]], end_ns=times[3],
            cause=rng.choice(("complete", "client_left")),
        )  # fmt: skip

    records = await written(tmp_path, [one() for _ in range(300)])
    assembler = Assembler()
    assembler.feed("w0", 0, records)
    outcomes = Counter(row["outcome"] for row in rows_of(assembler))
    assert "tap_lost" not in outcomes
    assert outcomes.total() == sum(isinstance(record, Opened) for record in records) > 100


async def test_subagent_of_codex_has_its_parent(tmp_path: Path) -> None:
    entries = []
    for number, (thread, parent) in enumerate([("main", None), ("child", "main"), ("main", None)]):
        one = entry(startedDateTime=f"2026-03-01T12:00:0{2 * number}.000Z")
        one["request"]["headers"] += fields(
            ("User-Agent", "codex_cli_rs/0.150.1"), ("session-id", "main"), ("thread-id", thread)
        )
        one["request"]["headers"] += fields(("x-codex-parent-thread-id", parent)) if parent else []
        entries.append(exchange(one))
    assembler = Assembler(client_key=KEY)
    assembler.feed("w0", 0, await written(tmp_path, entries))
    rows = sorted(rows_of(assembler), key=lambda row: row["started_at"])
    main, child = session_hash("main", KEY), session_hash("child", KEY)
    assert [(row["session_id"], row["parent_session_id"]) for row in rows] == [
        (main, None),
        (child, main),
        (main, None),
    ]


async def test_long_request_has_its_anatomy(tmp_path: Path) -> None:
    one = entry()
    result = {"role": "tool", "tool_call_id": "call_" + "1" * 40, "content": "r" * 99_000}
    body = {"messages": [{"role": "user", "content": "a" * 99_000}, result], "tools": [{}]}
    one["request"]["postData"]["text"] = json.dumps(body)
    [request] = [record for record in await written(tmp_path, [exchange(one)]) if isinstance(record, Request)]
    assert request.conversation is not None
    anatomy = request.conversation.anatomy
    assert anatomy is not None
    assert [(one.kind, one.size) for one in anatomy.segments or []] == [
        ("tool", 2), ("text", 99_000), ("tool_result", 99_000)
    ]  # fmt: skip
    assert msgspec.structs.replace(anatomy, encoded_segments=NO_SEGMENTS) == RequestAnatomy(
        [keyed_hash(b"a" * 99_000, KEY, kind=b"user_message")], ["call_" + "1" * 40], 1
    )

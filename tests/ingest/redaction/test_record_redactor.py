"""Redaction of stream records, including gaps and restarts."""

from __future__ import annotations

import gzip
import random
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard

from streamgauge.ingest.identifiers import hashed
from streamgauge.ingest.records import (
    PLAIN,
    AnyRecord,
    Closed,
    Frames,
    Lost,
    Opened,
    Request,
    ResponseHeaders,
    pack,
    unpack,
)
from streamgauge.ingest.redaction.record_redactor import MAX_REQUEST_BYTES, Redactor, filled_poison
from streamgauge.ingest.ship import FILE, RedactionStateFile
from tests.analytics.stream_records import alive, chunk, closed, head, opened, stream_id, whole_stream

A, B = stream_id(1), stream_id(2)
CAPTURED = ("/v1/chat/*",)


def coded_stream(stream: str, coding: str = "gzip", reads: int = 9) -> list[AnyRecord]:
    body = gzip.compress(b"".join(chunk(f"secret{i} ") for i in range(40)))
    size = len(body) // reads + 1
    headers = [("content-type", "text/event-stream"), ("content-encoding", coding)]
    records: list[AnyRecord] = [opened(stream), Request(stream, 1, b'{"model":"m","prompt":"secret"}', False)]
    for i in range(reads):
        frame = (10 + i, body[i * size : (i + 1) * size])
        records.append(
            Frames(stream, len(records), [frame], ResponseHeaders(200, headers, 5) if i == 0 else None)
        )
    return [*records, closed(stream, len(records), response_bytes=len(body))]


def text_of(records: Sequence[AnyRecord]) -> bytes:
    bodies = [data for r in records if isinstance(r, Frames) for _, data in r.frames]
    return b"".join([*bodies, *(r.body for r in records if isinstance(r, Request))])


def redactor(capture: Sequence[str] = ()) -> Redactor:
    return Redactor(capture=capture)


def test_records_keep_their_numbers_times_and_sizes() -> None:
    raw = whole_stream(A)
    made = redactor().redact([*raw, alive(1.0)])
    assert [type(r) for r in made] == [type(r) for r in [*raw, alive(1.0)]]
    for one, other in zip(made, raw, strict=False):
        if isinstance(one, Frames) and isinstance(other, Frames):
            assert [(at, len(data)) for at, data in one.frames] == [
                (at, len(data)) for at, data in other.frames
            ]
            assert (one.seq, one.response, one.wire_bytes) == (other.seq, other.response, None)
    assert b"w0 " in text_of(raw)
    assert b"w0 " not in text_of(made)


def test_compressed_bodies_are_decoded_and_keep_their_sizes_on_the_wire() -> None:
    raw = coded_stream(A)
    made = redactor().redact(raw)
    for one, other in zip(made, raw, strict=True):
        if isinstance(one, Frames) and isinstance(other, Frames):
            assert one.wire_bytes == [len(data) for _, data in other.frames]
    assert text_of(made).count(b"data: ") == 40
    assert b"secret" not in text_of(made)


COMPRESSORS = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, "br": brotli.compress}


@pytest.mark.parametrize("coding", COMPRESSORS)
@pytest.mark.parametrize("size", [10, 10**8])
def test_compressed_requests_are_decoded(coding: str, size: int) -> None:
    """Up to a limit: a small request may expand to any size."""
    body = COMPRESSORS[coding](b'{"model":"m-7","prompt":"%b"}' % (b"secret" * (size // 6)))
    records: list[AnyRecord] = [opened(A, headers=[("content-encoding", coding)]), Request(A, 1, body, False)]
    _, request = redactor().redact(records)
    assert isinstance(request, Request)
    assert (request.decoded, request.truncated) == (True, size > MAX_REQUEST_BYTES)
    assert len(request.body) <= MAX_REQUEST_BYTES
    assert b'"model":"m-7"' in request.body
    assert b"secret" not in request.body


def test_captured_routes_pass_unchanged_unless_the_client_opts_out() -> None:
    assert redactor(CAPTURED).redact(whole_stream(A)) == whole_stream(A)
    elsewhere = [opened(A, path="/v1/embeddings"), *whole_stream(A)[1:]]
    assert b"w0 " not in text_of(redactor(CAPTURED).redact(elsewhere))
    forbidden = [opened(A, capture_content=False), *whole_stream(A)[1:]]
    assert b"w0 " not in text_of(redactor(CAPTURED).redact(forbidden))


def test_everything_after_a_gap_is_filled() -> None:
    raw = whole_stream(A, outputs=5)
    raw[3] = Lost(A, 3, 3, "queue_full", 0, 10)
    made = redactor(CAPTURED).redact(raw)
    assert made[3] == raw[3]
    after = text_of(made[4:])
    assert set(after) == {ord("x")}
    assert len(after) == len(text_of(raw[4:]))
    unreported = redactor().redact([*raw[:3], *raw[4:]])
    assert [type(r) for r in unreported[3:]] == [Frames] * 5 + [Closed]


def test_a_reported_gap_passes_if_part_of_it_is_new_and_its_end_ends_the_stream() -> None:
    raw = whole_stream(A, outputs=5)
    one = redactor()
    one.redact(raw[:5])
    gap = Lost(A, 3, len(raw) - 1, "log_full", 0, 10, last=True)
    assert one.redact([gap]) == [gap]
    assert len(one) == 0
    two = redactor()
    two.redact(raw[:5])
    assert two.redact([Lost(A, 3, 4, "log_full", 0, 10), *raw[3:5]]) == []


def test_a_stream_whose_beginning_is_unknown_is_reported_as_lost() -> None:
    raw = whole_stream(A)
    made = redactor().redact(raw[3:])
    assert isinstance(made[0], Lost)
    assert (made[0].seq, made[0].last_seq, made[0].cause) == (3, 3, "redaction_state_lost")
    assert all(set(text_of([r])) <= {ord("x")} for r in made[1:])
    assert made[-1] == raw[-1]


def test_streams_in_memory_are_bounded_and_removed_at_their_end() -> None:
    bounded = Redactor(max_streams=2)
    for number in range(5):
        bounded.redact(whole_stream(stream_id(number))[:3])
    assert len(bounded) == 2
    whole = redactor()
    whole.redact(whole_stream(A))
    whole.redact([*whole_stream(B)[:2], Lost(B, 2, 9, "log_full", 0, 0, True)])
    assert len(whole) == 0


@pytest.mark.parametrize("make", [whole_stream, coded_stream])
def test_redaction_continues_from_the_stored_state_after_a_kill(make: Any, tmp_path: Path) -> None:
    """Each batch is redacted, acknowledged, stored and released. The kill comes before or after storing or releasing."""
    rng = random.Random(7)
    raw = [record for pair in zip(make(A), make(B), strict=True) for record in pair]
    expected = redactor().redact(raw)
    for _ in range(20):
        made: list[AnyRecord] = []
        released = 0
        folder = tmp_path / str(rng.random())
        live = redactor()
        state = RedactionStateFile(folder, live)
        while released < len(raw):
            batch = raw[released : released + rng.randint(1, 5)]
            made += live.redact(batch)
            fate = rng.random()
            if fate > 0.2:
                state.save()
            if fate > 0.4:
                released += len(batch)
            if fate < 0.6:
                state.close()
                live = redactor()
                state = RedactionStateFile(folder, live)
        state.close()
        by_seq: dict[tuple[str, int], AnyRecord] = {}
        for record in made:
            assert isinstance(record, Opened | Request | Frames | Closed | Lost)
            by_seq.setdefault((record.stream, record.seq), record)  # the first one counts
        assert list(by_seq.values()) == expected


def test_the_state_file_is_private_and_empty_after_the_streams_end(tmp_path: Path) -> None:
    live = redactor()
    state = RedactionStateFile(tmp_path, live)
    live.redact(coded_stream(A)[:6])
    state.save()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert state._connection.execute("SELECT count(*) FROM coded").fetchone() == (1,)
    live.redact(coded_stream(A)[6:])
    state.save()
    for table in ("streams", "coded"):
        assert state._connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_a_damaged_state_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    live = redactor()
    state = RedactionStateFile(tmp_path, live)
    live.redact(whole_stream(A)[:2])
    state.save()
    assert len(live) == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"\x09secret",
        b"\x02secret",
        PLAIN + b"secret",
        pack([], compress=False)[:1] + b"\x91\xa6secret",
        b"",
        b"\x01",
    ],
)
def test_an_entry_that_is_not_a_record_is_filled_and_rejected_for_the_same_reason(payload: bytes) -> None:
    made = filled_poison(payload)
    assert b"secret" not in made
    assert [bad.reason for bad in unpack(made)[1]] == [bad.reason for bad in unpack(payload)[1]]
    assert len(made) >= len(payload)


def test_redacting_twice_changes_nothing() -> None:
    plain: list[AnyRecord] = [opened(A), Frames(A, 1, [(1, b"plain text")], head())]
    for raw in (whole_stream(A), coded_stream(A), plain):
        once = redactor().redact(raw)
        assert redactor().redact(once) == once


def test_header_values_keep_products_and_lose_keys() -> None:
    key = "sk-zq0123456789zq0123456789"
    raw = [
        ("user-agent", f"app/1.0 ({key})"),
        ("x-request-id", f"my-{key}"),
        ("server", "nginx/1.18.0 (Ubuntu)"),
    ]
    (made,) = redactor().redact([opened(A, headers=raw)])
    assert isinstance(made, Opened)
    assert made.headers == [
        ("user-agent", f"app/1.0 {hashed(f'({key})')}"),
        ("x-request-id", hashed(f"my-{key}")),
        raw[2],
    ]

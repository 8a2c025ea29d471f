"""Entries of HAR files become exchanges, and what cannot be read is named."""

from __future__ import annotations

import base64
import io
import json
import random
import tracemalloc
import zlib
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.files import har
from streamgauge.ingest.files.exchange_log import Exchange
from streamgauge.ingest.websockets.messages import MessageDecoder
from tests.ingest.files.hars import BODY, REQUEST, STARTED_NS, URL, entry, fields, socket_entry
from tests.ingest.files.hars import har as har_text

MS = 1_000_000


def read(text: str) -> list[Exchange | ValueError | None]:
    """What is in the file. The last one is the damage, if there is any."""
    found: list[Exchange | ValueError | None] = []
    try:
        found.extend(har.exchanges(io.BytesIO(text.encode("utf-8", "surrogatepass")), 7))
    except (har.Damaged, har.NotHar) as e:
        found.append(e)
    return found


class Pieces:
    """A file that is never whole in memory."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)

    def read(self, size: int) -> bytes:
        return next(self._pieces, b"")


def only(entry: Any) -> Exchange | ValueError | None:
    (found,) = read(har_text(entry))
    return found


def exchange(entry: Any) -> Exchange:
    found = only(entry)
    assert isinstance(found, Exchange)
    return found


def test_entry_becomes_an_exchange_whose_body_arrived_at_its_end() -> None:
    found = exchange(entry())
    assert (found.method, found.url, found.status, found.started_wall_ns) == ("POST", URL, 200, STARTED_NS)
    assert (found.connected_ns, found.request_sent_ns, found.headers_ns) == (10 * MS, 20 * MS, 200 * MS)
    assert (found.reads, found.end_ns, found.times) == ([(1000 * MS, BODY.encode())], 1000 * MS, "exchange")
    assert json.loads(found.request_body) == REQUEST
    # The text is decoded: the coding of the headers is not its own.
    assert found.response_headers == [("content-type", "text/event-stream")]


def test_base64_is_decoded_and_a_body_that_is_still_compressed_keeps_its_coding() -> None:
    def coded(body: bytes) -> Exchange:
        return exchange(entry(content={"text": base64.b64encode(body).decode(), "encoding": "base64"}))

    assert coded(BODY.encode()).reads == [(1000 * MS, BODY.encode())]
    assert ("content-encoding", "gzip") in coded(b"\x1f\x8b rest").response_headers
    assert "content-encoding" not in dict(coded(BODY.encode()).response_headers)
    for coding, body in (("br", brotli.compress(BODY.encode())), ("deflate", zlib.compress(BODY.encode()))):
        content = {"text": base64.b64encode(body).decode(), "encoding": "base64"}
        compressed = entry(content=content)
        compressed["response"]["headers"] = fields(("Content-Encoding", coding))
        found = exchange(compressed)
        assert found.reads == [(1000 * MS, body)]
        assert ("content-encoding", coding) in found.response_headers


def test_base64_may_have_line_ends_and_nothing_else_that_is_invalid() -> None:
    text = base64.encodebytes(BODY.encode()).decode()
    assert exchange(entry(content={"text": text, "encoding": "base64"})).reads == [(1000 * MS, BODY.encode())]
    for damaged in ("!" + text, text[:-3], text[:9] + "\ud800" + text[9:]):
        found = only(entry(content={"text": damaged, "encoding": "base64"}))
        assert "not valid base64" in str(found)


def test_request_body_may_be_base64_and_compressed() -> None:
    body = zlib.compress(json.dumps(REQUEST).encode(), wbits=31)
    posted = entry()
    posted["request"] |= {
        "postData": {"text": base64.b64encode(body).decode(), "encoding": "base64"},
        "bodySize": len(body) + 1,
    }
    found = exchange(posted)
    assert (found.request_body, found.request_bytes) == (body, len(body) + 1)
    assert ("content-encoding", "gzip") in found.request_headers


@pytest.mark.parametrize("charset", ["latin-1", "cp1252"])
def test_utf_8_that_a_tool_read_as_another_charset_is_restored(charset: str) -> None:
    text = "data: café — é\n\n"
    misread = text.encode().decode(charset)
    assert exchange(entry(content={"text": misread})).reads[0][1] == text.encode()
    for other in (text, "data: é\n\n"):
        assert exchange(entry(content={"text": other})).reads[0][1] == other.encode()


def test_events_with_times_are_reads_with_these_times() -> None:
    at_s = STARTED_NS / 1e9
    messages = [
        {"time": at_s + 0.5, "eventName": "message", "data": "a\nb"},
        {"time": at_s + 2, "eventName": "x", "data": "c"},
    ]
    found = exchange(entry(_eventSourceMessages=messages))
    assert [data for _, data in found.reads] == [b"data: a\ndata: b\n\n", b"event: x\ndata: c\n\n"]
    assert [round(at_ns / MS) for at_ns, _ in found.reads] == [500, 2000]
    assert (found.times, round(found.end_ns / MS)) == ("reads", 2000)


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        ("net::ERR_ABORTED", 200, "client_left"),
        ("net::ERR_CONNECTION_REFUSED", 0, "connect_error"),
        ("net::ERR_INCOMPLETE_CHUNKED_ENCODING", 200, "upstream_reset"),
        ("net::ERR_NEW", -1, "upstream_reset"),
    ],
)
def test_errors_of_browsers_are_causes(error: str, status: int, cause: str) -> None:
    failed = entry(status=status, content={"mimeType": "text/event-stream"})
    failed["response"]["_error"] = error
    found = exchange(failed)
    assert (found.cause, found.status, found.reads) == (cause, status if status == 200 else None, [])


def get(url: str, kind: str, **more: Any) -> dict[str, Any]:
    found = entry(kind=kind, content={"size": 7, "mimeType": kind}, **more)
    found["request"] |= {"method": "GET", "url": url, "postData": {}, "headers": []}
    return found


@pytest.mark.parametrize(
    "left_out",
    [
        get("data:image/png;base64,AA==", "image/png"),
        get("blob:https://a/1", "text/html"),
        get("chrome-extension://a/b.js", "text/javascript"),
        get("https://a/app.js", "text/javascript", _fromCache="disk"),
        get("https://a/blocked", "text/html", status=0),
    ],
)
def test_what_was_not_sent_over_the_network_is_left_out(left_out: Any) -> None:
    assert only(left_out) is None


def test_pages_and_icons_are_read_as_packets_show_them_also_without_their_content() -> None:
    page = exchange(get("https://a/page", "text/html"))
    assert (page.method, page.url, page.status, page.reads, page.response_bytes) == (
        "GET",
        "https://a/page",
        200,
        [],
        7,
    )
    assert exchange(get("https://a/favicon.ico", "image/x-icon", status=404)).status == 404


def test_messages_of_a_websocket_are_frames_with_their_times() -> None:
    found = exchange(socket_entry(('{"type": "response.create"}', '{"type": "response.created"}')))
    assert (found.method, found.url, found.status, found.times) == (
        "GET",
        "https://api.openai.com/v1/responses",
        101,
        "reads",
    )
    assert ("upgrade", "websocket") in found.request_headers
    assert [(round(at_ns / MS), from_client) for at_ns, _, from_client in found.frames] == [
        (1000, True),
        (2000, False),
    ]
    for (_, frame, from_client), text in zip(
        found.frames, ("response.create", "response.created"), strict=True
    ):
        (message,) = MessageDecoder(from_client=from_client, compression=None).feed(0, frame)
        assert json.loads(message.payload) == {"type": text}


def test_websocket_without_messages_and_messages_that_are_no_data() -> None:
    silent = socket_entry(())
    del silent["_webSocketMessages"]
    assert (exchange(silent).status, exchange(silent).frames) == (101, [])
    odd = socket_entry(("AAE=",))
    odd["_webSocketMessages"][0]["opcode"] = 2
    odd["_webSocketMessages"] += [
        {"type": "error", "opcode": -1, "data": "x"},
        {"type": "receive", "opcode": 9},
        1,
    ]
    (frame,) = exchange(odd).frames
    (message,) = MessageDecoder(from_client=True, compression=None).feed(0, frame[1])
    assert message.payload == b"\0\1"


def test_missing_members_are_tolerated() -> None:
    bare = {
        "request": {"url": URL},
        "response": {"status": 200, "content": {"mimeType": "text/event-stream", "text": BODY}},
    }
    found = exchange(bare)
    assert (found.started_wall_ns, found.end_ns, found.connected_ns, found.request_body) == (7, 0, None, b"")
    assert found.reads == [(0, BODY.encode())]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (1, "no URL"),
        (entry(content={"size": -1}), "no body"),
        ({"request": {"url": 1}}, "no URL"),
        (entry(status=0), "no response"),
        (entry(content={"size": 9, "mimeType": "text/event-stream"}), "no body"),
        (entry(content={}), "no body"),
        (entry(content={"size": 9_000_000, "text": BODY}), "only a part of the body"),
        (entry(content={"text": "a", "encoding": "base64"}), "base64"),
        (entry(_eventSourceMessages=[{"data": "x"}]), "no time"),
    ],
)
def test_unreadable_entry_is_named(broken: Any, reason: str) -> None:
    found = only(broken)
    assert isinstance(found, ValueError)
    assert reason in str(found)


def test_entries_before_the_damage_are_kept() -> None:
    text = har_text(entry(), entry(time=5), entry())
    for cut in (text[: text.rindex('"timings"')], text[: text.rindex("}", 0, -9)]):
        *whole, damage = read(cut)
        assert [type(found) for found in whole] == [Exchange, Exchange]
        assert "it ends within an entry" in str(damage)
    *whole, damage = read(text[: text.rindex("]")])
    assert [type(found) for found in whole] == [Exchange] * 3
    assert "it ends within its list" in str(damage)


def test_damaged_entry_costs_only_itself() -> None:
    text = har_text(entry(), {"damaged": 1}, entry())
    for damage in ("1 1", "[" * 200_000 + "]" * 200_000, "9" * 5000):
        first, damaged, last = read(text.replace('"damaged": 1', f'"damaged": {damage}'))
        assert (type(first), type(last)) == (Exchange, Exchange)
        assert "it is no JSON" in str(damaged)


def test_list_of_entries_is_found_where_the_format_has_it() -> None:
    pages = {"_custom": {"entries": [1]}, "title": 'a "entries": [{}] \\'}
    text = json.dumps({"log": {"pages": [pages] * 9, "comment": "x" * 600_000, "entries": [entry()]}})
    for found in (read("\ufeff \n" + text), read(text)):
        assert [type(one) for one in found] == [Exchange]
    for other in ("", "data: {}", '{"entries": [{}]}', '{"log": {"entries": {}}}', "[" + text + "]"):
        assert isinstance(read(other)[0], har.NotHar)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_of_any_size_have_the_same_entries(size: int) -> None:
    text = har_text(entry(comment='\\" {[\\\\'), 1, entry(comment="é" * 9)).encode()
    pieces = Pieces(text[at : at + size] for at in range(0, len(text), size))
    assert list(map(str, har.exchanges(pieces, 7))) == list(map(str, read(text.decode())))


def test_memory_is_bounded_and_an_entry_above_the_limit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(har, "MAX_ENTRY_BYTES", 2**20)
    one = json.dumps(entry()).encode()
    start, huge, end = b'", "entries": [' + one, b', {"text": "', b'"}, ' + one + b"]}}"
    long = list(repeat(b'a\\"' * 20_000, 300))
    pieces = chain([b'{"log": {"comment": "'], long, [start, huge], long, [end])
    tracemalloc.start()
    try:
        found = list(har.exchanges(Pieces(pieces), 7))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [type(one) for one in found] == [Exchange, ValueError, Exchange]
    assert "it has more than 1 MiB" in str(found[1])
    assert peak_bytes < 8 * 2**20
    monkeypatch.setattr(har, "MAX_ENTRY_BYTES", 2**30)
    lists = chain(
        [b'{"log": {"entries": [{"text": ['], repeat(b"[]," * 80_000, 15), [b"0]}, " + one + b"]}}"]
    )
    problem, read_one = har.exchanges(Pieces(lists), 7)
    assert "1,000,000 objects and lists" in str(problem)
    assert isinstance(read_one, Exchange)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_values_of_any_type_never_raise(data: st.DataObject, rng: random.Random) -> None:
    """Some members are replaced by other values."""

    def mutated(value: Any) -> Any:
        if rng.random() < 0.05:
            return data.draw(JSON)
        if isinstance(value, dict):
            return {name: mutated(inner) for name, inner in value.items()}
        return [mutated(inner) for inner in value] if isinstance(value, list) else value

    message = {"time": STARTED_NS / 1e9, "eventName": "x", "data": "y"}
    of = entry(_eventSourceMessages=[message]) if rng.random() < 0.5 else entry()
    of["request"]["headers"] += fields(("x", "y"))
    read(json.dumps({"log": {"entries": [mutated(of), of]}}))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_changed_bytes_never_raise(rng: random.Random) -> None:
    text = list(har_text(entry(), entry()))
    for _ in range(rng.randint(1, 30)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 9)] = rng.choice(["", "{", '"', "\\", "9" * 5000, "\ud800", "]", ":"])
    read("".join(text))

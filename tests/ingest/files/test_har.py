"""Entries of HAR files become exchanges, and what cannot be read is named."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.files import har
from streamgauge.ingest.files.exchange_log import Exchange
from tests.ingest.files.hars import BODY, REQUEST, STARTED_NS, URL, entry, fields
from tests.ingest.files.hars import har as har_text

MS = 1_000_000


def read(text: str) -> list[Exchange | ValueError | None]:
    return [found for _, found in har.exchanges(text, 7)]


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
    assert ("content-encoding", "br") in coded(b"\x1f\x8b rest").response_headers


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


def test_only_requests_that_may_be_to_a_model_are_read() -> None:
    image = entry(kind="image/png")
    image["request"] |= {"method": "GET", "postData": {}, "headers": []}
    page_data = entry(kind="application/json")
    page_data["request"] |= {"method": "GET", "headers": []}
    socket = entry(_webSocketMessages=[{"type": "send", "data": "secret"}], status=101, kind="")
    socket["request"] |= {"method": "GET"}
    for left_out in (image, page_data, socket):
        assert only(left_out) is None
    events = entry()
    events["request"] |= {"method": "GET", "postData": {}, "headers": []}
    assert exchange(events).method == "GET"


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
    for cut in (text[: text.rindex('"timings"')], text[: text.rindex('"timings"')] + "}" + text[-9:]):
        *whole, damage = read(cut)
        assert [type(found) for found in whole] == [Exchange, Exchange]
        assert "The rest of the file was not read" in str(damage)
    (too_deep,) = read('{"log": {"entries": [' + "[" * 200_000)
    assert "recursion" in str(too_deep)


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

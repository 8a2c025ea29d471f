"""The column `labels`: from heads, from bodies before and after redaction, and for streams in flight."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.open_streams import open_stream_frame
from streamgauge.ingest.keyed_ids import keyed_hash
from streamgauge.ingest.labels import RECORDED, parse_label
from streamgauge.ingest.records import AnyRecord, Frames, Request, pack
from streamgauge.ingest.redaction.record_redactor import Redactor
from tests.analytics.stream_records import chunk, closed, finish_chunk, head, opened, stream_id

KEY = b"k" * 32
MS = 1_000_000
LABELS = tuple(
    map(
        parse_label,
        (
            "team=header:x-team:plain", "user=body:user", "account=body:metadata.user_id.account_uuid:plain",
            "number=body:metadata.number:plain", "project=body:request.project:plain", "rpc=body:params._meta.team:plain",
            "prog=client_app",
        ),
    )
)  # fmt: skip
USER = "it's {a=secret}, person"


def records(body: Any, *headers: tuple[str, str], truncated: bool = False) -> list[AnyRecord]:
    stream, data = stream_id(1), json.dumps(body).encode()
    reads = [chunk("a"), finish_chunk(), b"data: [DONE]\n\n"]
    return [
        opened(stream, headers=list(headers)),
        Request(stream, 1, data[:-1] if truncated else data, truncated),
        Frames(stream, 2, [((i + 1) * MS, read) for i, read in enumerate(reads)], head()),
        closed(stream, 3, end_ns=9 * MS, response_bytes=sum(map(len, reads))),
    ]


def labels(given: list[AnyRecord], **options: Any) -> Any:
    assembler = Assembler(client_key=KEY, labels=LABELS)
    assembler.feed("w0", 0, given)
    assert not assembler.take_failures()
    return measure(assembler.take_finished(), labels=LABELS, **options)["streams"]["labels"][0]


def hashed(value: str) -> str:
    return keyed_hash(value.encode(), KEY, kind=b"label")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"user": USER}, {"user": hashed(USER)}),
        ({"user": 42, "metadata": {"number": 7}}, {"user": hashed("42"), "number": "7"}),
        ({"metadata": {"user_id": {"account_uuid": "a-1"}}}, {"account": "a-1"}),
        ({"metadata": {"user_id": '{"account_uuid": "a-1", "session_id": "s"}'}}, {"account": "a-1"}),
        ({"request": {"project": "p", "contents": []}}, {"project": "p"}),
        ({"request": {"user": "u", "contents": []}}, {"user": hashed("u")}),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"team": "ads"}}}, {"rpc": "ads"}),
        ({"user": ["a"], "metadata": {"user_id": "{", "number": True}}, None),
        ({"user": "x" * 2000}, None),
        ([1], None),
    ],
)
@pytest.mark.parametrize("capture", [(), ("*",)])
def test_labels_of_a_body_before_and_after_redaction(
    body: Any, expected: dict[str, str] | None, capture: tuple[str, ...]
) -> None:
    given = records(body)
    assert labels(given) == expected
    redactor = Redactor(capture=capture, conversation=ConversationReader(KEY, LABELS))
    redacted = redactor.redact(given)
    assert (b"secret" in pack(redacted, compress=False)) == (bool(capture) and "secret" in str(body))
    assert labels(redacted) == expected
    assert labels(Redactor().redact(redacted)) == expected  # in a checkpoint of analytics


def test_cut_body_has_its_labels() -> None:
    assert labels(records({"user": USER, "messages": []}, truncated=True)) == {"user": hashed(USER)}


def test_labels_of_the_head_and_of_the_program() -> None:
    sent = [
        ("user-agent", "codex_cli_rs/0.160.0"),
        (RECORDED + "team", "search"),
        (RECORDED + "unknown", "x"),
    ]
    expected = {"team": "search", "prog": "codex_cli_rs/0.160.0"}
    assert labels(records({}, *sent)) == expected
    assert labels(Redactor().redact(records({}, *sent))) == expected


def test_value_that_another_program_wrote_to_the_log_is_an_identifier() -> None:
    assert labels(records({}, (RECORDED + "team", USER)))["team"].startswith("hashed:")


def test_stream_in_flight_has_its_labels() -> None:
    assembler = Assembler(client_key=KEY, labels=LABELS)
    assembler.feed("w0", 0, records({"user": "u"}, (RECORDED + "team", "search"))[:2])
    rows = open_stream_frame(assembler.open_streams(), labels=assembler.labels)
    assert rows["labels"].to_list() == [{"team": "search", "user": hashed("u")}]


def test_without_the_setting_nothing_is_stored() -> None:
    assembler = Assembler(client_key=KEY)
    assembler.feed("w0", 0, records({"user": "u"}, (RECORDED + "team", "search")))
    [finished] = assembler.take_finished()
    assert finished.conversation is not None
    assert finished.conversation.labels is None
    assert measure([finished])["streams"]["labels"].to_list() == [None]

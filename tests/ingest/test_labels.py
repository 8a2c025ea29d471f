"""Labels: what is accepted as one, and what is recorded of a request's head."""

from __future__ import annotations

import pytest

from streamgauge.ingest.header_fields import recorded_value
from streamgauge.ingest.http1.heads import HeadLimits, read_request_head
from streamgauge.ingest.keyed_ids import keyed_hash
from streamgauge.ingest.labels import RECORDED, RESERVED, HeadLabels, parse_label

KEY = b"k" * 32
SECRET = "'; plain words, {of=a} prompt"


def hashed(value: str) -> str:
    return keyed_hash(value.encode(), KEY, kind=b"label")


def recorded(label: str, *headers: tuple[str, str], target: str = "/v1/messages") -> list[tuple[str, str]]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = read_request_head(f"POST {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode(), HeadLimits())
    return HeadLabels([parse_label(label)], KEY).recorded(head.fields, target)


@pytest.mark.parametrize(
    ("label", "headers", "value"),
    [
        ("team=header:X-Team", [("x-team", "search")], hashed("search")),
        ("team=header:x-team:plain", [("X-TEAM", "search"), ("x-team", "ads")], "search"),
        ("team=header:x-team:plain", [("x-team", SECRET)], recorded_value(RECORDED + "team", SECRET)),
        ("team=header:x-team:plain:prometheus", [("x-team", "a=b,c[d]")], "a=b,c[d]"),
        ("team=header:x-team", [("x-team", "x" * 1025)], None),
        ("team=header:x-team", [("x-team", "")], None),
        ("team=header:x-team", [(f"{RECORDED}team", "forged")], None),
        ("team=body:user", [("x-team", "search")], None),
    ],
)
def test_value_of_a_header(label: str, headers: list[tuple[str, str]], value: str | None) -> None:
    assert recorded(label, *headers) == ([] if value is None else [(f"{RECORDED}team", value)])


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("/tenants/acme/v1/chat?tenants=x", "acme"),
        ("/tenants/ac%6De", "acme"),
        ("/tenants/two%20words", recorded_value(RECORDED + "t", "two words")),
        ("/tenants", None),
    ],
)
def test_part_of_the_path(target: str, value: str | None) -> None:
    found = [] if value is None else [(f"{RECORDED}t", value)]
    assert recorded("t=path:2:plain", target=target) == found
    assert recorded("t=path:2", target="/a/acme") == [(f"{RECORDED}t", hashed("acme"))]


def test_recorded_value_is_stored_as_it_is_and_a_forged_one_is_hashed() -> None:
    assert recorded_value(RECORDED + "team", hashed("x")) == hashed("x")
    assert recorded_value(RECORDED + "team", SECRET).startswith("hashed:")


@pytest.mark.parametrize(
    "text",
    [
        "team", "Team=header:x-team", "team=header:", "team=header:authorization", "team=header:x-team:clear", "team=path:0",
        "team=query:x", "team=body:__init__",
        "team=body:", "team=body:a..b", "t" * 33 + "=client_app", *(f"{name}=client_app" for name in sorted(RESERVED)),
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"label such as|credential|another meaning"):
        parse_label(text)


@pytest.mark.parametrize(
    "text", ["a=client_app", "team=header:x-team:plain:prometheus", "user=body:metadata.user_id"]
)
def test_text_of_a_label_is_that_of_its_flag(text: str) -> None:
    assert str(parse_label(text)) == text

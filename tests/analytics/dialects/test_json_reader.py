"""The base of readers of JSON: lists, errors and repaired data, in events and bodies."""

from __future__ import annotations

import pytest

from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.events import TextDelta, as_decoded_event
from streamgauge.analytics.dialects.json_reader import Event, JSONReader

DIALECTS = [dialect for dialect in all_dialects() if isinstance(dialect.reader(ExchangeInfo()), JSONReader)]
WITH_LISTS = ("gemini", "sglang_generate", "tgi_generate")


class Acme(Event):
    word: str | None = None
    errors: int | None = None


class AcmeReader(JSONReader, event=Acme):
    def event(self, event: Acme, kind: str) -> TextDelta:
        return TextDelta("text", event.word or "")


def by_name(dialect: Dialect) -> str:
    return dialect.name


def kinds_of_body(dialect: Dialect, body: bytes) -> list[str]:
    return [event.kind for event in dialect.reader(ExchangeInfo()).read_body(body)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
def test_body_is_a_list_only_in_dialects_that_send_lists(dialect: Dialect) -> None:
    undecoded = ["other" if dialect.name == "openai_audio" else "malformed"]
    assert kinds_of_body(dialect, b" []") == ([] if dialect.name in WITH_LISTS else undecoded)
    assert (kinds_of_body(dialect, b"[{}]") == undecoded) == (dialect.name not in WITH_LISTS)
    assert kinds_of_body(dialect, b"[[{}]]") == undecoded


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
@pytest.mark.parametrize("depth", [300, 496, 900, 990])
def test_nested_body_never_raises(dialect: Dialect, depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'{"error":', b"}"), (b'[{"a":', b"}]")):
        body = opening * depth + b'{"x":1}' + closing * depth
        assert kinds_of_body(dialect, body)
        dialect.reader(ExchangeInfo()).read("", body)


@pytest.mark.parametrize("dialect", DIALECTS, ids=by_name)
@pytest.mark.parametrize("member", ["type", "event"])
def test_event_named_error_is_one_with_any_type(dialect: Dialect, member: str) -> None:
    data = b'{"code":400,"message":"m","%b":"exceed_context_size_error"}' % member.encode()
    decoded = as_decoded_event(dialect.reader(ExchangeInfo()).read("error", data))
    assert decoded.error is not None
    assert (decoded.kind, decoded.error.message) == ("error", "m")


def test_value_in_a_member_that_is_declared_as_none_is_an_error() -> None:
    reader = AcmeReader(ExchangeInfo())
    counted, empty, failed = (
        b'{"word":"hi",%b}' % more for more in (b'"errors":2', b'"error":""', b'"error":2')
    )
    for data in (counted, empty):
        assert reader.read("", data) == TextDelta("text", "hi")
        assert reader.read_body(data) == [as_decoded_event(TextDelta("text", "hi"))]
    assert [reader.read("", failed).kind, reader.read_body(failed)[0].kind] == ["error", "error"]


def test_number_out_of_range_in_a_member_that_is_not_read() -> None:
    reader, data = AcmeReader(ExchangeInfo()), b'{"word":"hi","more":1e999}'
    assert reader.read("", data) == TextDelta("text", "hi")
    assert reader.read_body(data) == [as_decoded_event(TextDelta("text", "hi"))]

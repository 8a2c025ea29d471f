"""A redacted body has no text, keeps what is measured, and does not depend on how reads are cut."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamgauge.ingest.redaction.body_redactor import (
    MAX_LEARNED,
    BodyRedactor,
    BodyState,
    _redacted,
    numbers_only,
)


def redacted(*reads: bytes, request: bool = False) -> bytes:
    redactor = BodyRedactor(request=request)
    made = [redactor.feed(read) for read in reads]
    assert [len(one) for one in made] == [len(read) for read in reads]
    return b"".join(made)


@pytest.mark.parametrize(
    ("raw", "made"),
    [
        ('{"type":"a.b","text":"zq"}', '{"type":"a.b","text":"xx"}'),
        ('{"model":"gpt-4o mini","id":"c-1"}', '{"model":"???????????","id":"c-1"}'),
        ('{"id":"c-1 zq","status":"ok!zq"}', '{"id":"??????","status":"?????"}'),
        ('{"id":"%s"}' % ("a" * 129), '{"id":"%s"}' % ("?" * 129)),
        ('{"type":"Bad Request","id":"v/sk-proj-zqzqzqzqzqzqz1"}', '{"type":"Bad Request","id":"????????????????????????"}'),
        ('{"type":"%s"}' % ("0zq1" * 8), '{"type":"%s"}' % ("?" * 32)),
        (r'{"id":"zq\n","code":"zq\u00e9zq"}', r'{"id":"??\n","code":"??\u0078??"}'),
        ('{"usage":{"some_count":3,"note":"zq","rate":"1.5"}}', '{"usage":{"some_count":3,"note":"xx","rate":"1.5"}}'),
        ('{"usage":{"zq zq":3}}', '{"usage":{"aaaaa":1}}'),
        ('{"secret_zq":"zq","b":{"id":"zq"}}', '{"seaaaaaaa":"xx","b":{"ba":"xx"}}'),
        ('{"arguments":{"city":"Zq","n":4205,"k":true}}', '{"arguments":{"aaaa":"xx","b":1101,"c":true}}'),
        (r'{"arguments":"{\"zq\": {}}"}', r'{"arguments":"{\nxx\nxxx}}"}'),
        ('{"token_ids":[17,2203],"index":2}', '{"token_ids":[11,1101],"index":2}'),
        (
            '{"logprobs":{"content":[{"token":"zq","logprob":-0.25,"bytes":[122]}]}}',
            '{"logprobs":{"content":[{"token":"xx","logprob":-0.11,"bytes":[111]}]}}',
        ),
        ('{"error":{"message":"zq","code":429,"type":"Bad A"}}', '{"error":{"message":"xx","code":429,"type":"?????"}}'),
        (r'{"text":"z\u00e9\ud83d\ude00\n\/\u0022\u0001"}', r'{"text":"x\u0078\ud83d\udc00\n\/\u0022\u0001"}'),
        ('{"code":"a","executableCode":{"code":"zq","id":"zq"}}', '{"code":"a","executableCode":{"code":"xx","id":"xx"}}'),
        ('{"text":NaN,"index":-Infinity}', '{"text":NaN,"index":-Infinity}'),
        ('{"text":zq}', '{"text":xxx'),
        ("plain zq\n  <p>zq</p>", "xxxxxxxx\nxxxxxxxxxxx"),
        ("<html>\nzq", "<xxxxx\nxx"),
        ('"zq"', '"xx"'),
        ("1705", "1101"),
        ('\ufeff{"text":"zq"}', '\ufeff{"text":"xx"}'),
    ],
)  # fmt: skip
def test_a_json_body_keeps_its_shape_and_loses_its_text(raw: str, made: str) -> None:
    assert redacted(raw.encode()).decode() == made


@pytest.mark.parametrize(
    ("raw", "made"),
    [
        ("data: [DONE]\n\n", "data: [DONE]\n\n"),
        ("data:[DONE]\r\n\r\n", "data:[DONE]\r\n\r\n"),
        ("data: zq [DONE]\n\n", "data: xxxxxxxxx\n\n"),
        ("data: null\n\ndata: null zq\n\n", "data: null\n\ndata: xxxxxxx\n\n"),
        ("data: {\ndata: \"text\": \"zq\"\ndata: }\n\n", "data: {\ndata: \"text\": \"xx\"\ndata: }\n\n"),
        ("data:  zq\ndata: zq\n\n", "data:  xx\ndata: xx\n\n"),
        ("data\n\n", "data\n\n"),
        ("dato zq\n", "xxxxxxx\n"),
        ("event: message.delta\n", "event: message.delta\n"),
        ("event: a zq\n", "event: ????\n"),
        ("id: zq\n: zq\nretry: 10\nretry: zq\n", "id:xxx\n:xxx\nretry: 10\nretry: xx\n"),
        ('error: {"message":"zq","type":"t"}\n', 'error: {"message":"xx","type":"t"}\n'),
        ('{"done":false,"response":"zq"}\n{"done":true}\n', '{"done":false,"response":"xx"}\n{"done":true}\n'),
        ('{"text":"zq\n{"text":"zq"}\n', '{"text":"xx\n{"text":"xx"}\n'),
        ('data: {"text":"zq\ndata: zq"}\n\ndata: {}\n\n', 'data: {"text":"xx\ndata: xxxx\n\ndata: {}\n\n'),
    ],
)  # fmt: skip
def test_a_line_of_an_event_stream_is_redacted_by_its_field(raw: str, made: str) -> None:
    assert redacted(raw.encode()).decode() == made


def test_a_request_keeps_its_parameters() -> None:
    raw = {
        "model": "m-1",
        "messages": [{"role": "user", "content": "zq"}],
        "stream": True,
        "temperature": 0.7,
        "max_tokens": 55,
        "stop": ["zq"],
        "tools": [{"type": "function", "function": {"name": "zq", "parameters": {"zq": 1}}}, {}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "zq"}},
        "stream_options": {"include_usage": True},
        "metadata": {"user": "zq", "zq": "zq"},
        "user": "zq",
    }
    made = json.loads(redacted(json.dumps(raw).encode(), request=True))
    kept = ("model", "stream", "temperature", "max_tokens", "stream_options")
    assert {name: made[name] for name in kept} == {name: raw[name] for name in kept}
    assert made["response_format"]["type"] == "json_schema"
    assert len(made["tools"]) == 2
    assert "zq" not in json.dumps(made)


# -- properties --------------------------------------------------------------------------------------------------------

SECRETS = st.text("zqäあ😀", min_size=1, max_size=6).map(lambda text: f"zq{text}")
KEYS = st.one_of(
    SECRETS,
    st.sampled_from(["content", "text", "delta", "message", "arguments", "input", "choices", "logprobs", "bytes"]),
)  # fmt: skip
JSON = st.recursive(
    st.one_of(SECRETS, st.booleans(), st.none(), st.integers(0, 10**12)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


def skeleton(value: Any) -> Any:
    """The parts that must be equal: the shape, and the length of each string."""
    if isinstance(value, dict):
        return [skeleton(inner) for inner in value.values()]
    if isinstance(value, list):
        return [skeleton(inner) for inner in value]
    return len(value) if isinstance(value, str) else type(value)


@given(value=JSON, ascii_only=st.booleans())
def test_every_string_of_any_json_is_filled(value: Any, ascii_only: bool) -> None:
    made = redacted(json.dumps(value, ensure_ascii=ascii_only).encode()).decode()
    assert "zq" not in made
    assert not {"あ", "😀"} & set(made)
    assert r"\u3042" not in made
    decoded = json.loads(made)
    assert skeleton(decoded) == skeleton(value)
    assert len(msgspec.json.encode(decoded).decode()) == len(msgspec.json.encode(value).decode())


PIECES = st.sampled_from([
    b"data: ", b"data:", b"event: ", b"id: ", b": ", b"retry: ", b"error: ", b"\n", b"\n\n", b"\r\n", b"\r", b"[DONE]",
    b"{", b"}", b"[", b"]", b",", b":", b'"', b'"text":', b'"arguments":', b'"id":', b'"zq', b"zq", b"\\",
    b'\\"', b"\\n", b"\\u00e9", b"\\ud83d\\ude00", b"\\u", b"12", b"-0.5e3", b'{"a":true,', b'{"content":"zq"}',
    "é".encode(), "😀".encode(), b"\xff", b" ", b"\xef\xbb\xbf", b'{"id":"a zq"}', b'{"model":"zq', b"event: a zq\n",
    b"\\/", b'{"model":"a\\/b","id":"a\\/b c"}',
])  # fmt: skip


def masked(made: bytes) -> bytes:
    """Mask non-ASCII bytes: a character that a read cuts may become another one of the same length."""
    return re.sub(rb"[\x80-\xff]", b"~", made)


@example(pieces=[b" ", b"data: "], cuts=[1])
@given(pieces=st.lists(PIECES, max_size=30), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_the_result_depends_only_in_words_on_where_reads_are_cut(
    pieces: list[bytes], cuts: list[int]
) -> None:
    raw = b"".join(pieces)
    at = sorted({0, len(raw), *(c for c in cuts if c < len(raw))})
    reads = [raw[a:b] for a, b in itertools.pairwise(at)]
    for whole, cut, original in zip(
        masked(redacted(raw)), masked(redacted(*reads)), masked(raw), strict=True
    ):
        assert cut == whole or (whole == ord("?") and cut == original)


@given(pieces=st.lists(PIECES, max_size=30), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_redaction_continues_from_a_stored_state(pieces: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(pieces)
    at = sorted({0, len(raw), *(c for c in cuts if c < len(raw))})
    through, whole = BodyRedactor(), BodyRedactor()
    for a, b in itertools.pairwise(at):
        stored = msgspec.msgpack.encode(through.state)
        through = BodyRedactor(state=msgspec.msgpack.decode(stored, type=BodyState))
        assert through.feed(raw[a:b]) == whole.feed(raw[a:b])


EVENTS = st.builds(
    lambda shape, text, number, word: shape % (json.dumps(text)[1:-1].encode(), number, word.encode()),
    st.sampled_from([
        b'data: {"choices":[{"delta":{"content":"%b"}}],"usage":{"n":%d},"id":"%b"}\n\n',
        b'event: d\ndata: {"delta":"%b","sequence":%d,"type":"%b"}\n\n',
        b'{"response":"%b","eval_count":%d,"model":"%b"}\n',
        b'data: {"logprobs":{"content":[{"token":"%b","bytes":[1,%d],"top":[{"t":"%b"}]}]}}\n\n',
        b'data: {"logprobs":{"content":[{"token":"%b","bytes":[1,%d],"top":[{"t":"%b"}]}]}}\n\n',
        b'data: {"content":"%b","arguments":{"k":%d,"t":"%b"}}\n\n',
    ]),
    st.text(max_size=8),
    st.integers(0, 99999),
    st.text("ab-.", max_size=5),
)  # fmt: skip


@given(events=st.lists(EVENTS, max_size=12), frames=st.integers(1, 3))
def test_templates_give_the_result_of_the_rules(events: list[bytes], frames: int) -> None:
    quick, plain = BodyRedactor(), BodyRedactor()
    plain._learned = MAX_LEARNED
    for at in range(0, len(events), frames):
        read = b"".join(events[at : at + frames])
        assert quick.feed(read) == plain.feed(read)


def test_a_template_is_learned_and_used() -> None:
    redactor = BodyRedactor()
    for i in range(5):
        redactor.feed(b'data: {"choices":[{"delta":{"content":"zq%d"}}]}\n\n' % i)
    assert redactor._learned == 1


_LEAVES = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.none()
    | st.booleans()
)
_LIKE_NUMBERS = st.sampled_from([":5,", "[7]", ",1,2}", "a:3,b", '":4,"'])


@given(
    st.dictionaries(
        st.sampled_from(["n", "service_tier", "modality", "time", ":9,"]) | _LIKE_NUMBERS,
        st.recursive(_LEAVES | _LIKE_NUMBERS, lambda inner: st.lists(inner, max_size=3)),
        max_size=4,
    )
)
def test_the_cached_redaction_of_a_report_equals_a_fresh_one(report: dict[str, object]) -> None:
    text = json.dumps(report, separators=(",", ":"), ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode()
    for _ in range(2):
        assert numbers_only(text) == _redacted(text)


def test_reports_keep_their_numbers_and_known_words() -> None:
    report = (
        '{"n":5,"service_tier":"standard","note":"zq zq","list":["zq"],"inner":{"modality":"TEXT","m":1.5}}'
    )
    made = numbers_only(report)
    assert (
        made
        == '{"n":5,"service_tier":"standard","note":"xxxxx","list":["xx"],"inner":{"modality":"TEXT","m":1.5}}'
    )
    assert numbers_only(made) == made


@pytest.mark.parametrize("cut", range(8, 34))
def test_a_key_that_a_read_cuts_is_filled_from_its_prefix(cut: int) -> None:
    body = b'{"id":"v/sk-zq0123456789zq0123456789"}'
    made = redacted(body[:cut], body[cut:])
    assert re.fullmatch(rb'\{"id":"v/(?:sk?)?\?{25,27}"\}', made)


def test_the_name_of_an_event_is_a_name() -> None:
    assert redacted(b"event: message_start\ndata: {}\n\n") == b"event: message_start\ndata: {}\n\n"
    assert redacted(b"event: sk-zq0123456789zq0123456789\n\n") == b"event: " + b"?" * 27 + b"\n\n"

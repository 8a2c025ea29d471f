"""Request parameters from bodies that are whole, cut anywhere, compressed, multipart, or no JSON."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.decoding.request_body import (
    MAX_INFLATED_BYTES,
    NO_PARAMETERS,
    RequestParameters,
    parse_request_body,
    plain_body,
    scan_members,
)

CHAT = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": 'say "model": "not-this", {[ and \\" to me'}],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    "temperature": 0.5,
    "top_p": 1,
    "max_completion_tokens": 100,
    "n": 2,
    "seed": 7,
    "stop": ["\n", "END"],
    "tools": [{"type": "function", "function": {"name": "f"}}] * 3,
    "reasoning": {"effort": "low"},
    "response_format": {"type": "json_schema", "json_schema": {}},
}
PARSED = RequestParameters(
    model="gpt-4o",
    stream=True,
    temperature=0.5,
    top_p=1.0,
    max_tokens=100,
    n=2,
    seed=7,
    stop_sequences=("\n", "END"),
    reasoning_effort="low",
    output_type="json",
)


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_whole_body_is_parsed() -> None:
    assert parse_request_body(body(CHAT)) == PARSED


def test_pretty_printed_body_is_parsed() -> None:
    assert parse_request_body(json.dumps(CHAT, indent=2).encode()) == PARSED


@given(st.integers(0, len(body(CHAT))))
def test_cut_body_yields_only_complete_members_before_the_cut(cut: int) -> None:
    members = dict(scan_members(body(CHAT)[:cut], frozenset(CHAT)))
    assert members == {k: CHAT[k] for k in list(members)}
    parsed = parse_request_body(body(CHAT)[:cut], truncated=True)
    for name in RequestParameters.__struct_fields__:
        assert getattr(parsed, name) in (getattr(PARSED, name), None)
    assert (parsed.model == "gpt-4o") == (cut > body(CHAT).index(b'"gpt-4o",') + len(b'"gpt-4o"'))


def test_members_after_a_long_prompt_are_found() -> None:
    late = {
        "messages": [{"role": "user", "content": "x" * 50_000}],
        "model": "m",
        "stream": True,
        "input": "y" * 9000,
    }
    parsed = parse_request_body(body(late)[:55_000], truncated=True)
    assert (parsed.model, parsed.stream) == ("m", True)


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_never_raise(data: bytes, truncated: bool) -> None:
    parse_request_body(data, truncated=truncated)
    parse_request_body(b"{" + data, truncated=truncated)
    parse_request_body(data, headers={"content-encoding": "gzip"})
    parse_request_body(data, headers={"content-type": "multipart/form-data; boundary=x"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_wrong_type_of_one_member_does_not_affect_others(value: Any) -> None:
    wrong = dict.fromkeys(CHAT, value) | {"model": "m", "stream": True}
    parsed = parse_request_body(body(wrong))
    assert (parsed.model, parsed.stream) == ("m", True)


def test_deep_nesting_does_not_raise() -> None:
    assert parse_request_body(b'{"model":"m","tools":' + b"[" * 60_000, truncated=True).model == "m"
    assert parse_request_body(b'{"model":"m","tools":' + b"[" * 60_000).model == "m"


def test_gemini_parameters_come_from_path_and_generation_config() -> None:
    parsed = parse_request_body(
        body(
            {
                "contents": [],
                "generationConfig": {"temperature": 1, "maxOutputTokens": 5, "candidateCount": 2, "topK": 3},
            }
        ),
        path="/v1beta/models/gemini-2.0-flash:streamGenerateContent?alt=sse",
    )
    assert (parsed.model, parsed.stream, parsed.temperature, parsed.max_tokens, parsed.n, parsed.top_k) == (
        "gemini-2.0-flash",
        True,
        1.0,
        5,
        2,
        3.0,
    )


def test_azure_deployment_is_the_model_if_the_body_names_none() -> None:
    path = "/openai/deployments/my-gpt/chat/completions"
    assert parse_request_body(b"{}", path=path).model == "my-gpt"
    assert parse_request_body(b'{"model":"gpt-4o"}', path=path).model == "gpt-4o"


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip, zstd": lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data)),
}


@pytest.mark.parametrize("coding", COMPRESSORS)
def test_compressed_body_is_parsed_whole_and_cut(coding: str) -> None:
    headers = {"content-encoding": coding}
    random = zlib.compress(b"".join(b"%d" % (i * i) for i in range(20_000))).hex()
    packed = COMPRESSORS[coding](body(CHAT | {"pad": random}))
    assert plain_body(packed, False, headers) == (body(CHAT | {"pad": random}), False)
    assert parse_request_body(packed, headers=headers).model == "gpt-4o"
    cut = parse_request_body(packed[: len(packed) * 9 // 10], truncated=True, headers=headers)
    assert cut.model == "gpt-4o"


@pytest.mark.parametrize("coding", COMPRESSORS)
def test_decompression_is_bounded(coding: str) -> None:
    bomb = COMPRESSORS[coding](b'{"model":"m","x":"' + b"a" * 50_000_000 + b'"}')
    plain, is_cut = plain_body(bomb, False, {"content-encoding": coding})
    assert (len(plain), is_cut) == (MAX_INFLATED_BYTES, True)
    assert parse_request_body(bomb, headers={"content-encoding": coding}).model == "m"


@pytest.mark.parametrize("coding", ["compress", "gzip, unknown"])
def test_unknown_coding_has_no_parameters(coding: str) -> None:
    assert plain_body(b"xyz", False, {"content-encoding": coding}) == (b"", True)


def test_multipart_upload_names_its_model() -> None:
    form = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n\x00\x01\r\n'
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x\r\n'
        b'Content-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--x--\r\n'
    )
    parsed = parse_request_body(form, headers={"content-type": "multipart/form-data; boundary=x"})
    assert (parsed.model, parsed.stream) == ("whisper-1", True)


def test_empty_body_has_no_parameters() -> None:
    assert parse_request_body(b"") == NO_PARAMETERS

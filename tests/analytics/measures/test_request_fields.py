"""What is read of requests: whole, cut anywhere, compressed, multipart, or no JSON at all."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.measures.request_fields import (
    NOTHING,
    RequestRead,
    operation_of,
    read_request,
    request_id_of,
    scan_members,
    server_instance_of,
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
READ = RequestRead(
    model="gpt-4o",
    stream=True,
    temperature=0.5,
    top_p=1.0,
    max_tokens=100,
    n=2,
    seed=7,
    stop_sequences=("\n", "END"),
    include_usage=True,
    reasoning_effort="low",
    output_type="json",
)


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_whole_body_is_read() -> None:
    assert read_request(body(CHAT)) == READ


def test_pretty_printed_body_is_read() -> None:
    assert read_request(json.dumps(CHAT, indent=2).encode()) == READ


@given(st.integers(0, len(body(CHAT))))
def test_cut_body_gives_whole_members_before_the_cut_and_nothing_else(cut: int) -> None:
    members = dict(scan_members(body(CHAT)[:cut]))
    assert members == {k: CHAT[k] for k in list(members)}
    read = read_request(body(CHAT)[:cut], truncated=True)
    for name in RequestRead.__struct_fields__:
        if name != "truncated":
            assert getattr(read, name) in (getattr(READ, name), None)
    assert (read.model == "gpt-4o") == (cut > body(CHAT).index(b'"gpt-4o",') + len(b'"gpt-4o"'))


def test_members_behind_a_long_prompt_are_found() -> None:
    late = {
        "messages": [{"role": "user", "content": "x" * 50_000}],
        "model": "m",
        "stream": True,
        "input": "y" * 9000,
    }
    read = read_request(body(late)[:55_000], truncated=True)
    assert (read.model, read.stream, read.truncated) == ("m", True, True)


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_raise(data: bytes, truncated: bool) -> None:
    read_request(data, truncated=truncated)
    read_request(b"{" + data, truncated=truncated)
    read_request(data, headers={"content-encoding": "gzip"})
    read_request(data, headers={"content-type": "multipart/form-data; boundary=x"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_wrong_types_spoil_only_themselves(value: Any) -> None:
    wrong = dict.fromkeys(CHAT, value) | {"model": "m", "stream": True}
    read = read_request(body(wrong))
    assert (read.model, read.stream) == ("m", True)


def test_deep_nesting_is_survived() -> None:
    assert read_request(b'{"model":"m","tools":' + b"[" * 60_000, truncated=True).model == "m"
    assert read_request(b'{"model":"m","tools":' + b"[" * 60_000).model == "m"


def test_gemini_is_read_from_path_and_generation_config() -> None:
    read = read_request(
        body(
            {
                "contents": [],
                "generationConfig": {"temperature": 1, "maxOutputTokens": 5, "candidateCount": 2, "topK": 3},
            }
        ),
        path="/v1beta/models/gemini-2.0-flash:streamGenerateContent?alt=sse",
    )
    assert (read.model, read.stream, read.temperature, read.max_tokens, read.n, read.top_k) == (
        "gemini-2.0-flash",
        True,
        1.0,
        5,
        2,
        3.0,
    )


def test_azure_deployment_stands_for_the_model() -> None:
    path = "/openai/deployments/my-gpt/chat/completions"
    assert read_request(b"{}", path=path).model == "my-gpt"
    assert read_request(b'{"model":"gpt-4o"}', path=path).model == "gpt-4o"


def test_compressed_body_is_read_whole_and_cut() -> None:
    packed = gzip.compress(body(CHAT | {"pad": "".join(chr(33 + i * 7 % 90) for i in range(5000))}))
    assert read_request(packed, headers={"content-encoding": "gzip"}).model == "gpt-4o"
    cut = read_request(packed[:-20], truncated=True, headers={"content-encoding": "gzip"})
    assert (cut.model, cut.truncated) == ("gpt-4o", True)


def test_compression_bomb_is_bounded() -> None:
    bomb = gzip.compress(b'{"model":"m","x":"' + b"a" * 50_000_000 + b'"}')
    assert read_request(bomb, headers={"content-encoding": "gzip"}).model == "m"


def test_multipart_upload_names_its_model() -> None:
    form = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n\x00\x01\r\n'
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x\r\n'
        b'Content-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--x--\r\n'
    )
    read = read_request(form, headers={"content-type": "multipart/form-data; boundary=x"})
    assert (read.model, read.stream) == ("whisper-1", True)


def test_empty_body_says_nothing() -> None:
    assert read_request(b"") == NOTHING


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "text_completion"),
        ("/inference/v1/responses", "chat"),
        ("/v1/messages", "chat"),
        ("/api/v1/chat", "chat"),
        ("/v2/chat", "chat"),
        ("/v1/embeddings/", "embeddings"),
        ("/v1beta/models/g:streamGenerateContent?alt=sse", "generate_content"),
        ("/v1/models", None),
        ("/", None),
    ],
)
def test_operation_by_path(path: str, operation: str | None) -> None:
    assert operation_of(path) == operation


def test_request_id_is_the_clients_else_the_servers() -> None:
    assert request_id_of([("x-request-id", "c")], [("x-request-id", "s")]) == "c"
    assert request_id_of([("x-request-id", "")], [("request-id", "s")]) == "s"
    assert request_id_of([], []) is None


@pytest.mark.parametrize(
    "name", ["x-xerotier-worker-id", "x-acme-gpu-worker-id", "x-worker", "x-replica-id", "x-served-by"]
)
def test_worker_header(name: str) -> None:
    assert server_instance_of([("content-type", "x"), (name, "w7")]) == "w7"


@pytest.mark.parametrize("name", ["x-request-id", "x-workers-total-count", "server"])
def test_other_headers_are_no_worker(name: str) -> None:
    assert server_instance_of([(name, "w7")]) is None

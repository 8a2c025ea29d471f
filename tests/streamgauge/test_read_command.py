"""`streamgauge read`: output, source of path and status, notes and errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner, Result

from streamgauge.python_api.recorded_response import read_command

KEYS = [
    "file", "dialect", "outcome", "error_type", "error_phase", "response_id", "response_model", "text", "reasoning",
    "refusal", "tool_calls", "finish_reason", "usage", "input_tokens", "output_tokens", "reasoning_tokens",
    "cached_input_tokens", "event_count", "output_event_count", "content_event_count", "malformed_events", "error",
]  # fmt: skip


def chunk(delta: dict[str, Any], finish: str | None = None, **top: Any) -> str:
    value = {"id": "c-1", "object": "chat.completion.chunk", "model": "m", **top}
    return f"data: {json.dumps({**value, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
STREAM = chunk({"content": "Hi"}) + chunk({}, "stop", usage=USAGE) + "data: [DONE]\n\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(read_command, [str(a) for a in arguments])


def found(*arguments: str | Path) -> dict[str, Any]:
    result = run("--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "x.sse"
    file.write_text(STREAM)
    return file


def test_json_format_prints_one_object_per_line(body: Path, tmp_path: Path) -> None:
    (tmp_path / "y.sse").write_text(STREAM)
    lines = run("--format", "json", body, tmp_path / "y.sse").stdout.splitlines()
    values = [json.loads(line) for line in lines]
    assert [value["file"] for value in values] == [str(body), str(tmp_path / "y.sse")]
    assert [key for key in values[0] if key in KEYS] == KEYS
    assert {key: values[0][key] for key in KEYS} == {
        "file": str(body), "dialect": "openai_chat", "outcome": "ok", "error_type": None, "error_phase": None,
        "response_id": "c-1", "response_model": "m", "text": "Hi", "reasoning": "", "refusal": None, "tool_calls": [],
        "finish_reason": "stop", "usage": USAGE, "input_tokens": 3, "output_tokens": 2, "reasoning_tokens": None,
        "cached_input_tokens": None, "event_count": 3, "output_event_count": 1, "content_event_count": 1,
        "malformed_events": 0, "error": None,
    }  # fmt: skip


def test_sidecar_provides_url_status_and_content_type_only(body: Path) -> None:
    body.write_text('{"error": {"type": "slow_down", "message": "no"}}')
    body.with_suffix(".json").write_text(
        json.dumps(
            {"url": "https://api.openai.com/v1/chat/completions", "http_status": 429, "content_type": None}
            | {"text": "lie", "dialect": "lie"}
        )
    )  # fmt: skip
    value = found(body)
    assert (value["outcome"], value["error_type"], value["error_phase"]) == (
        "http_error",
        "slow_down",
        "pre_headers",
    )
    assert (value["dialect"], value["text"], value["provider"]) == ("openai_chat", "", "openai")


def test_options_take_precedence_over_the_sidecar(body: Path) -> None:
    body.with_suffix(".json").write_text(
        json.dumps({"url": "/v1/messages", "http_status": 500, "content_type": "text/html"})
    )
    value = found(
        "--status", "200", "--path", "/v1/chat/completions", "--content-type", "text/event-stream", body
    )
    assert (value["outcome"], value["text"]) == ("ok", "Hi")


@pytest.mark.parametrize(
    "sidecar", ["{", "[]", '"x"', '{"name": 1}', '{"url": 5, "http_status": "x", "content_type": []}']
)
def test_sidecar_without_usable_members_is_ignored(body: Path, sidecar: str) -> None:
    body.with_suffix(".json").write_text(sidecar)
    assert found(body)["text"] == "Hi"


def test_json_file_is_not_its_own_sidecar(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text(
        json.dumps(
            {
                "object": "chat.completion",
                "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}],
                "url": "/x",
                "http_status": 500,
            }
        )
    )
    value = found(file)
    assert (value["text"], value["streamed"], value["outcome"]) == ("Hi", False, "ok")


def test_headers_written_by_curl_are_used(tmp_path: Path) -> None:
    file = tmp_path / "dump"
    file.write_bytes(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFireworks-Prompt-Tokens: 3\r\n\r\n"
        + STREAM.encode()
    )
    value = found(file)
    assert (value["text"], value["provider"], value["event_count"]) == ("Hi", "fireworks", 3)
    file.write_bytes(
        b'HTTP/2 529\r\ncontent-type: application/json\r\n\r\n{"type":"error","error":{"type":"overloaded_error"}}'
    )
    assert found(file)["error_type"] == "overloaded_error"


@pytest.mark.parametrize("compress", [gzip.compress, lambda data: zstandard.ZstdCompressor().compress(data)])
def test_compressed_files_are_detected_by_their_first_bytes(tmp_path: Path, compress: Any) -> None:
    file = tmp_path / "x.sse.bin"
    file.write_bytes(compress(STREAM.encode()))
    assert found(file)["text"] == "Hi"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("", "empty"),
        ("<html><title>Bad gateway</title></html>", "neither an event stream nor JSON"),
        ('{"jsonrpc": "2.0"}', "a JSON body, not a stream"),
        ('data: {"jsonrpc": "2.0"}\n\n', "unknown dialect"),
        (STREAM + "data: {half\n\n", "malformed"),
        (STREAM.rstrip(), "no blank line"),
        ('{"message":{"content":"a"},"done":false}\n{"message":{"content":""},"done":true}\n', "JSON lines"),
        ('[{"candidates": []},\n{"candidates": []}]', "a JSON array"),
    ],
)
def test_unknown_and_invalid_input_has_a_note(tmp_path: Path, content: str, note: str) -> None:
    file = tmp_path / "x"
    file.write_text(content)
    assert any(note in line for line in found(file)["notes"]), found(file)["notes"]
    assert note in run(file).output


def test_binary_noise_has_a_note(tmp_path: Path) -> None:
    file = tmp_path / "noise"
    for noise in (
        bytes(range(256)) * 50,
        b"\x1f\x8b\x08" + b"\xff" * 500,
        b"\x28\xb5\x2f\xfd" + b"\xff" * 500,
    ):
        file.write_bytes(noise)
        value = found(file)
        assert value["dialect"] == "unknown"
        assert value["notes"]


def test_table_omits_empty_values(body: Path) -> None:
    output = run(body).output
    assert output.startswith(f"{body}\n")
    assert "finish_reason" in output
    assert "refusal" not in output


def test_unreadable_file_prints_one_line_and_exits_2(body: Path, tmp_path: Path) -> None:
    for bad in (tmp_path / "missing.sse", tmp_path):
        result = run("--format", "json", bad, body)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert str(bad) in result.stderr
        assert json.loads(result.stdout)["text"] == "Hi", "the other files are decoded"


@pytest.mark.parametrize("arguments", [[], ["--status", "7", "x"], ["--format", "xml", "x"]])
def test_invalid_usage_exits_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_error_phase_of_truncated_and_in_band_errors(tmp_path: Path) -> None:
    file = tmp_path / "x.sse"
    file.write_text(chunk({"content": "Hi"}))
    value = found("--path", "/v1/chat/completions", file)
    assert (value["outcome"], value["error_type"], value["error_phase"]) == (
        "truncated",
        "stream_truncated",
        "mid_stream",
    )
    file.write_text('data: {"error": {"type": "boom", "message": "m"}}\n\n' + chunk({"content": "Hi"}))
    value = found("--path", "/v1/chat/completions", file)
    assert (value["outcome"], value["error_phase"], value["error"]) == (
        "inband_error",
        "pre_first_output",
        {"type": "boom", "message": "m"},
    )

"""boto3 through a tap: it receives what Bedrock sends, its signatures hold, and the rows are what it received."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from bench.tap.peers import Missing, python_peers
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import Opened
from tests.analytics.amazon_event_stream import CONVERSE, chunk, exception, message
from tests.ingest.running_tap import END, read_request, running_tap
from tests.ingest.running_tap import chunk as http_chunk

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n"
METRICS = {
    "amazon-bedrock-invocationMetrics": {
        "inputTokenCount": 7,
        "outputTokenCount": 3,
        "invocationLatency": 90,
        "firstByteLatency": 40,
    }
}
ANTHROPIC = (
    chunk(type="message_start", message={"id": "msg_1", "model": "claude", "usage": {"input_tokens": 7}}),
    chunk(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "The river"}),
    chunk(type="content_block_delta", index=0, delta={"type": "text_delta", "text": " rises"}),
    chunk(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
    chunk(type="message_stop", **METRICS),
)
LLAMA = (
    chunk(generation="The river", stop_reason=None),
    chunk(generation=" rises", stop_reason=None),
    chunk(generation="", stop_reason="stop", **METRICS),
)
BODY = {
    "output": {"message": {"role": "assistant", "content": [{"text": "The river"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 20, "outputTokens": 9, "totalTokens": 29},
    "metrics": {"latencyMs": 10},
}
INVOKE = "invoke_model_with_response_stream"
FAILURES = [
    *(("converse_stream", kind) for kind in ("internalServerException", "validationException", "serviceUnavailableException")),
    *((operation, kind) for operation in ("converse_stream", INVOKE) for kind in ("modelStreamErrorException", "throttlingException")),
    (INVOKE, "modelTimeoutException"),
]  # fmt: skip
UNMODELLED = message(b"", error_code="InternalError", error_message="gone", message_type="error")
DAMAGED = CONVERSE[4][:-1] + bytes([CONVERSE[4][-1] ^ 1])


@dataclass
class Case:
    """One request and its response."""

    operation: str = "converse_stream"
    messages: tuple[bytes, ...] = CONVERSE
    first_output: int | None = 1
    """Index in `messages`."""
    piece_bytes: int | None = None
    """Send the body in pieces of this size, else one for each message."""
    cut_bytes: int = 0
    end: bytes | None = END
    """None: reset."""
    status: int = 200
    error: str | None = None
    """As the client names it."""
    via: str = "override"
    sign: dict[str, str] = field(default_factory=dict)

    # what the server and the client saw
    request: bytes = b""
    sent_ns: list[int] = field(default_factory=list)
    """When each message began to be sent."""
    client: dict[str, Any] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        whole = b"".join(self.messages)
        return whole[: len(whole) - self.cut_bytes]


def cases() -> dict[str, Case]:
    """By model: each has a request of its own."""
    made = {
        "eu.anthropic.claude-3-7-sonnet-20250219-v1:0": Case(),
        "pieces-7": Case(piece_bytes=7),
        "all-at-once": Case(piece_bytes=10**6),
        "as-proxy": Case(via="proxy"),
        "signed-field": Case(sign={"x-streamgauge-capture": "none"}),
        "signed-traceparent": Case(sign={"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}),
        "unmodelled": Case(messages=(*CONVERSE[:6], UNMODELLED), error="InternalError"),
        "damaged": Case(messages=(*CONVERSE[:4], DAMAGED, *CONVERSE[5:]), error="ChecksumMismatch"),
        "cut-in-message": Case(messages=CONVERSE[:-2], cut_bytes=9),  # boto3 ends without an error
        "reset": Case(messages=CONVERSE[:6], end=None, error="ProtocolError"),
        "not-streamed": Case("converse", (json.dumps(BODY).encode(),), None),
        "anthropic": Case(INVOKE, ANTHROPIC),
        "anthropic-pieces": Case(INVOKE, ANTHROPIC, piece_bytes=11),
        "llama": Case(INVOKE, LLAMA, first_output=0),
    }
    for operation, kind in FAILURES:
        first = Case(operation, (exception(kind),), None, error=kind)
        made[f"{operation}-first-{kind}"] = first
        later = (*(CONVERSE[:6] if operation == "converse_stream" else ANTHROPIC[:3]), exception(kind))
        made[f"{operation}-later-{kind}"] = Case(operation, later, error=kind)
    for status, kind in (
        (429, "ThrottlingException"),
        (403, "AccessDeniedException"),
        (400, "ValidationException"),
    ):
        made[f"status-{status}"] = Case(messages=(), first_output=None, status=status, error=kind)
    return made


def signature_holds(head: bytes, body: bytes) -> bool:
    """Whether the request is as it was signed: Signature Version 4, as AWS publishes it."""
    start, *lines = head.decode().strip().split("\r\n")
    method, target, _ = start.split(" ")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    signed = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=[^/]+/(.+), SignedHeaders=(\S+), Signature=(\S+)",
        fields["authorization"],
    )
    assert signed is not None
    scope, names, signature = signed.groups()
    path, _, query = target.partition("?")
    canonical = "\n".join(
        (
            method,
            quote(path),
            query,
            *(f"{name}:{fields.get(name, '')}" for name in names.split(";")),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        )
    )
    assert "host" in names.split(";")
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", fields["x-amz-date"], scope, digest))
    key = b"AWS4planted"
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature)


def json_response(status: int, kind: str, body: bytes) -> bytes:
    fields = (
        f"x-amzn-ErrorType: {kind}:http://internal.amazon.com/coral/com.amazon.bedrock/\r\n" if kind else ""
    )
    return (
        f"HTTP/1.1 {status} X\r\n{fields}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def serve(made: Mapping[str, Case], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bedrock, as far as this test needs it."""
    while True:
        head, body = await read_request(reader)
        case = made[unquote(head.split(b"/", 3)[2].decode())]
        case.request = head
        if not signature_holds(head, body):
            writer.write(json_response(403, "InvalidSignatureException", b'{"message":"not as signed"}'))
        elif case.status != 200:
            writer.write(json_response(case.status, case.error or "", b'{"message":"slow down"}'))
        elif case.operation == "converse":
            writer.write(json_response(200, "", case.body))
        else:
            await send(writer, case)
        await writer.drain()


async def send(writer: asyncio.StreamWriter, case: Case) -> None:
    writer.write(STREAM_HEAD)
    ends = [sum(map(len, case.messages[: i + 1])) for i in range(len(case.messages))]
    bounds = list(range(0, len(case.body), case.piece_bytes)) if case.piece_bytes else [0, *ends[:-1]]
    for start, end in zip(bounds, [*bounds[1:], len(case.body)], strict=True):
        case.sent_ns += [time.monotonic_ns() for at in ends if start < at <= end]
        writer.write(http_chunk(case.body[start:end]))
        await writer.drain()
        await asyncio.sleep(0.001)
    if case.end is None:
        writer.transport.abort()
        raise ConnectionError
    writer.write(case.end)


async def run(made: Mapping[str, Case], python: str) -> None:
    upstreams = ["bedrock=http://127.0.0.1:{port}", "by-host=http://localhost:{port}"]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(made, reader, writer)

    async with running_tap(script, upstreams=upstreams) as tap:
        url = f"http://127.0.0.1:{tap.worker.address[1]}"
        endpoints = {
            "override": {"endpoint_url": url},
            "proxy": {"endpoint_url": f"http://localhost:{tap.upstream_port}", "proxy": url},
        }
        asked = [
            {
                "client": {**endpoints[case.via], "sign": case.sign},
                "operation": case.operation,
                "model": model,
            }
            for model, case in made.items()
        ]
        process = await asyncio.create_subprocess_exec(
            python,
            str(Path(__file__).with_name("bedrock_client.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate("\n".join(map(json.dumps, asked)).encode())
        for case, line in zip(made.values(), output.splitlines(), strict=True):
            case.client = json.loads(line)
        streams = await tap.records(len(made))
    assembler = Assembler(capture=("*",))
    for offset, records in enumerate(streams):
        assembler.feed("w0", offset, records)
    opened = {records[0].stream: records[0] for records in streams if isinstance(records[0], Opened)}
    for row in measure(assembler.take_finished())["streams"].to_dicts():
        made[row["request_model"]].row = {**row, "mono_ns": opened[row["stream_id"]].mono_ns}


@pytest.fixture(scope="module")
def seen() -> dict[str, Case]:
    try:
        python = str(python_peers() / "python")
    except Missing as e:
        pytest.skip(str(e))
    made = cases()
    asyncio.run(run(made, python))
    return made


def of_client(case: Case) -> dict[str, Any]:
    """What the events that the client received amount to, in the columns of `streams`."""
    found: dict[str, Any] = {"output_text": "", "reasoning_text": "", "finish_reason": "", "first_ns": None}
    for event, at_ns in case.client["events"]:
        delta = event.get("contentBlockDelta", event).get("delta", {})
        text = delta.get("text") or event.get("generation") or ""
        reasoning = delta.get("reasoningContent", {}).get("text", "")
        if "output" in event:
            text = event["output"]["message"]["content"][0]["text"]
        found["output_text"] += text
        found["reasoning_text"] += reasoning
        if (text or reasoning) and found["first_ns"] is None:
            found["first_ns"] = at_ns
        reason = (
            event.get("messageStop", event).get("stopReason")
            or delta.get("stop_reason")
            or event.get("stop_reason")
        )
        found["finish_reason"] = reason or found["finish_reason"]
        usage = event.get("metadata", event).get("usage", {})
        if usage.get("totalTokens"):
            found["input_tokens"] = usage["totalTokens"] - usage["outputTokens"]
            found["output_tokens"] = usage["outputTokens"]
        if "amazon-bedrock-invocationMetrics" in event:
            metrics = event["amazon-bedrock-invocationMetrics"]
            found["input_tokens"], found["output_tokens"] = (
                metrics["inputTokenCount"],
                metrics["outputTokenCount"],
            )
    return found


@pytest.mark.parametrize("model", list(cases()))
def test_client_receives_what_was_sent(seen: dict[str, Case], model: str) -> None:
    case = seen[model]
    assert case.client["error"] == case.error
    body = b"".join(map(base64.b64decode, case.client["body"].splitlines()))
    if model in ("damaged", "reset"):  # the client may leave before the end
        assert case.body.startswith(body)
    elif case.operation != "converse" and case.status == 200:
        assert body == case.body
        assert case.row["response_bytes"] == len(body)


@pytest.mark.parametrize("model", [model for model, case in cases().items() if case.status == 200])
def test_row_is_what_the_client_received(seen: dict[str, Case], model: str) -> None:
    case = seen[model]
    client, row = of_client(case), case.row
    first_ns = client.pop("first_ns")
    found = {name: row[name] for name in client}
    if case.sign.get("x-streamgauge-capture"):
        assert (found.pop("output_text"), found.pop("reasoning_text")) == (None, None)
    assert {name: value or "" for name, value in found.items()}.items() <= client.items()
    if first_ns is None:
        assert row["ttft_ns"] is None
    else:
        assert case.first_output is not None
        assert case.sent_ns[case.first_output] < row["mono_ns"] + row["ttft_ns"] < first_ns


@pytest.mark.parametrize("model", list(cases()))
def test_outcome_is_that_of_the_client(seen: dict[str, Case], model: str) -> None:
    case = seen[model]
    row, error = case.row, case.error
    found = row["outcome"], row["error_type"], row["error_phase"]
    phase = "pre_first_output" if case.first_output is None else "mid_stream"
    if model == "damaged":
        assert row["malformed_events"] == 1
        assert row["outcome"] in ("malformed", "client_abort")  # the client leaves at the checksum
    elif model == "cut-in-message":
        assert found == ("truncated", "stream_truncated", phase)
    elif model == "reset":
        assert found == ("upstream_reset", "upstream_reset", phase)
    elif error is None:
        assert found == ("ok", None, None)
    else:
        assert found == (
            ("inband_error", error, phase) if case.status == 200 else ("http_error", error, "pre_headers")
        )
        assert row["error_message"] == case.client["message"]


def test_upstream_is_selected_by_the_host_that_a_proxied_request_names(seen: dict[str, Case]) -> None:
    assert {case.row["gateway"] for case in seen.values() if case.via == "override"} == {"bedrock"}
    proxied = seen["as-proxy"]
    assert proxied.row["gateway"] == "by-host"
    assert b"\r\nHost: localhost:" in proxied.request


def test_requests_of_one_access_key_have_one_client(seen: dict[str, Case]) -> None:
    assert len({case.row["client_id"] for case in seen.values()}) == 1


def test_fields_that_the_client_signed_arrive_as_signed(seen: dict[str, Case]) -> None:
    assert b"x-streamgauge-capture: none" in seen["signed-field"].request
    assert seen["signed-traceparent"].request.count(b"traceparent: ") == 1

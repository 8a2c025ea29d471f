"""Faults on the wire match the ledger; times match the forced values."""

from __future__ import annotations

import gzip
import json
import socket
import time
import zlib
from urllib.parse import urlsplit

import httpx
import pytest

from streamgauge.simulator.profiles import HTTP_MODELS, PROFILES
from streamgauge.simulator.server import Simulator
from tests.streamgauge.simulator.conftest import Script, ended

MODELS = sorted(HTTP_MODELS)


def failure(response: httpx.Response) -> object:
    return response.extensions.get("failure")


def test_truncate_ends_cleanly_without_finish(script: Script) -> None:
    response, body, row = script(fault="truncate", fault_after=4)
    assert failure(response) is None
    assert b'finish_reason":"' not in body
    assert b"[DONE]" not in body
    assert (row.output_events, row.fault_after) == (4, 4)
    assert (row.expected_outcome, row.error_type, row.error_phase) == (
        "truncated",
        "stream_truncated",
        "mid_stream",
    )


def test_cut_ends_inside_the_chunked_body_without_losing_bytes(script: Script) -> None:
    response, body, row = script(fault="cut", fault_after=4)
    assert isinstance(failure(response), httpx.RemoteProtocolError)
    assert len(body) == row.body_bytes
    assert (row.expected_outcome, row.exact) == ("upstream_reset", True)


def test_reset_is_a_tcp_reset(script: Script) -> None:
    response, body, row = script(fault="reset", fault_after=4)
    assert isinstance(failure(response), httpx.ReadError)
    assert len(body) <= row.body_bytes
    assert (row.expected_outcome, row.error_phase, row.exact) == ("upstream_reset", "mid_stream", False)


def test_reset_before_head_has_no_status(simulator: Simulator, client: httpx.Client) -> None:
    forced = json.dumps({"ttft_ms": 1, "fault": "reset_before_head"})
    with pytest.raises(httpx.ReadError):
        client.post("/v1/messages", json={}, headers={"x-simulate": forced, "x-request-id": "before-head"})
    row = ended(simulator, "before-head")
    assert (row.status, row.expected_outcome, row.error_phase) == (None, "upstream_reset", "pre_headers")


def test_fault_before_the_first_output_has_phase_pre_first_output(script: Script) -> None:
    _, _, row = script(fault="truncate", fault_after=0)
    assert (row.output_events, row.error_phase) == (0, "pre_first_output")


def test_fault_after_the_last_output_precedes_the_finish(script: Script) -> None:
    _, body, row = script(fault="truncate", fault_after=1000)
    assert row.output_events == 10
    assert row.expected_outcome == "truncated"
    assert b"[DONE]" not in body


@pytest.mark.parametrize("model", MODELS)
def test_inband_error_is_in_the_body_in_the_vendors_format(script: Script, model: str) -> None:
    response, body, row = script(model, PROFILES[model].path, fault="inband_error", fault_after=2)
    assert failure(response) is None
    assert response.status_code == 200
    assert row.expected_outcome == "inband_error"
    assert b"error" in body.lower()


def test_xerotier_sends_done_after_its_error_and_lm_studio_its_end(script: Script) -> None:
    _, xerotier, _ = script("llama-sim-8b", fault="inband_error")
    _, studio, _ = script("oss-sim-20b", "/api/v1/chat", fault="inband_error")
    assert xerotier.endswith(b"data: [DONE]\n\n")
    assert b"event: error\n" in xerotier
    assert studio.index(b"event: error\n") < studio.index(b"event: chat.end\n")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503, 529])
@pytest.mark.parametrize(
    "model", ["gpt-sim-mini", "claude-sim-large", "gemini-sim-pro", "command-sim", "oss-sim-20b"]
)
def test_http_errors_have_a_json_body_with_the_error_type_of_the_ledger(
    script: Script, model: str, status: int
) -> None:
    response, body, row = script(model, PROFILES[model].path, fault=f"http_{status}")
    assert response.status_code == status
    assert (row.expected_outcome, row.error_phase) == ("http_error", "pre_headers")
    if row.error_type != str(status):
        assert f'"{row.error_type}"'.encode() in body
    assert json.loads(body)


def test_stream_continues_after_malformed_event(script: Script) -> None:
    _, body, row = script(fault="malformed_event", fault_after=3)
    bad = [line for line in body.split(b"\n") if line.startswith(b"data: {") and not _is_json(line[6:])]
    assert len(bad) == row.malformed_events == 1
    assert body.endswith(b"data: [DONE]\n\n")
    assert row.expected_outcome == "ok"


def test_malformed_ends_after_the_malformed_event(script: Script) -> None:
    _, body, row = script(fault="malformed", fault_after=3)
    last = body.rstrip(b"\n").split(b"\n")[-1]
    assert not _is_json(last[6:])
    assert row.expected_outcome == "malformed"


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_burst_sends_the_remaining_output_in_one_write(script: Script) -> None:
    _, _, row = script(fault="burst", fault_after=4, gap_ms=2, tokens=12)
    assert len(set(row.outputs_ns[4:])) == 1
    assert len(set(row.outputs_ns[:5])) == 5
    assert row.output_events == 12


def test_stall_lasts_at_least_the_forced_time(script: Script) -> None:
    _, _, row = script(fault="stall", fault_after=4, stall_ms=150)
    gaps = [b - a for a, b in zip(row.outputs_ns, row.outputs_ns[1:], strict=False)]
    assert gaps[3] >= 150_000_000
    assert row.expected_outcome == "ok"


def test_linger_ends_long_after_the_terminal(script: Script) -> None:
    _, _, row = script(fault="linger", stall_ms=120)
    assert row.end_ns is not None
    assert row.terminal_ns is not None
    assert row.end_ns - row.terminal_ns >= 120_000_000
    assert row.expected_outcome == "ok"


def test_no_write_is_early(script: Script) -> None:
    _, _, row = script(ttft_ms=80, gap_ms=7, tokens=8)
    assert row.first_output_ns is not None
    assert row.first_output_ns - row.complete_ns >= 80_000_000
    due = [80_000_000 + 7_000_000 * i for i in range(8)]
    assert all(at - row.complete_ns >= d for at, d in zip(row.outputs_ns, due, strict=True))


def test_ledger_times_are_in_order(script: Script) -> None:
    _, _, row = script(
        "claude-sim-thinker", "/v1/messages", tokens=5, reasoning_tokens=5, ttft_ms=20, gap_ms=1
    )
    times = [
        row.received_ns, row.complete_ns, row.head_ns, row.first_byte_ns, row.first_event_ns, row.first_output_ns,
        row.first_answer_ns, row.last_output_ns, row.terminal_ns, row.end_ns,
    ]  # fmt: skip
    assert None not in times
    assert times == sorted(times, key=lambda at: at or 0)
    assert row.first_answer_ns != row.first_output_ns
    assert row.end_ns is not None
    assert row.end_ns <= time.monotonic_ns()


def test_client_receives_the_first_output_no_earlier_than_the_ledger_time(
    simulator: Simulator, client: httpx.Client
) -> None:
    headers = {"x-simulate": json.dumps({"ttft_ms": 30, "gap_ms": 1, "tokens": 3}), "x-request-id": "early"}
    body = {"model": "gpt-sim-mini", "stream": True}
    arrivals: list[tuple[int, int]] = []
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        so_far = 0
        for part in response.iter_raw():
            so_far += len(part)
            arrivals.append((time.monotonic_ns(), so_far))
    row = ended(simulator, "early")
    assert row.first_output_end_byte is not None
    assert row.first_output_ns is not None
    seen_ns = next(at for at, n in arrivals if n >= row.first_output_end_byte)
    assert seen_ns >= row.first_output_ns


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_streams_contain_the_same_events(script: Script, coding: str) -> None:
    response, body, row = script(coding=coding)
    assert response.headers["content-encoding"] == coding
    plain = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body)
    assert plain.count(b"data: ") == row.events
    assert len(body) == row.body_bytes


def test_body_with_close_framing_is_complete(script: Script) -> None:
    response, body, row = script(framing="close")
    assert "transfer-encoding" not in response.headers
    assert body.endswith(b"data: [DONE]\n\n")
    assert row.expected_outcome == "ok"


def test_output_times_are_bounded_and_further_ones_are_counted(script: Script) -> None:
    _, _, row = script(tokens=1500)
    assert (len(row.outputs_ns), row.outputs_beyond, row.output_events) == (1000, 500, 1500)


def test_client_disconnect_is_detected_and_timed(simulator: Simulator) -> None:
    body = json.dumps({"model": "gpt-sim-mini", "stream": True}).encode()
    forced = json.dumps({"ttft_ms": 1, "gap_ms": 20, "tokens": 5000})
    address = urlsplit(simulator.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as raw:
        raw.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: leaver\r\nx-simulate: {forced}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        raw.recv(100)
    row = ended(simulator, "leaver")
    assert row.expected_outcome == "client_abort"
    assert row.client_left_ns == row.end_ns
    assert not row.exact

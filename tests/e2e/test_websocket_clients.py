"""OpenAI's client over WebSocket: the tap forwards its bytes, it receives the same as without the tap, and the rows are what it saw."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from tests.deadline import until
from tests.e2e.running import Up, simulator, up
from tests.openai_sockets import LOUD, QUIET, read


@dataclass
class Wire:
    """A forwarder of TCP connections to a URL, and the bytes of either side."""

    url: str
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    def after_heads(self) -> tuple[bytes, bytes]:
        """What the client and the server sent after the heads of the only request."""
        return bytes(self.sent.partition(b"\r\n\r\n")[2]), bytes(self.received.partition(b"\r\n\r\n")[2])


def pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def wire(target: str) -> Iterator[Wire]:
    host, port = target.removeprefix("http://").split(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as server:
                back = threading.Thread(target=pump, args=(server, self.request, made.received))
                back.start()
                pump(self.request, server, made.sent)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads, listening.block_on_close = True, False
        made = Wire(f"http://127.0.0.1:{listening.server_address[1]}")
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield made
        listening.shutdown()


@dataclass
class Running:
    """A simulator and a tap before it, and the wires on both sides of the tap."""

    upstream: str
    instance: Up
    outer: Wire
    inner: Wire

    def assert_equal_bytes(self) -> None:
        """What followed the heads is equal on both sides of the tap."""
        until(lambda: self.outer.after_heads() == self.inner.after_heads(), "equal bytes on both sides")
        assert all(self.outer.after_heads())
        for side in (self.outer, self.inner):
            side.sent.clear()
            side.received.clear()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with (
        simulator("--seed", "7", "--rate-faults", "0") as upstream,
        wire(upstream) as inner,
        up(f"sim={inner.url}", tmp_path_factory.mktemp("ws") / "data") as instance,
        wire(instance.tap) as outer,
    ):
        yield Running(upstream, instance, outer, inner)


def client(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key="sk-client", max_retries=0)


def headers(request_id: str, **forced: Any) -> dict[str, str]:
    simulate = json.dumps({"ttft_ms": 5, "gap_ms": 1, **forced})
    return {"x-request-id": request_id, "session-id": f"session-{request_id}", "x-simulate": simulate}


def without_times(event: Any) -> Any:
    found = json.loads(event.to_json())
    found.pop("event_id", None)
    found.get("response", {}).pop("created_at", None)
    return found


def responses(base: str, name: str) -> list[list[Any]]:
    """Three answers on one socket: a warm-up, text, and a tool call in another conversation."""
    with (
        client(base) as one,
        one.responses.connect(
            extra_headers=headers(name, tokens=8), websocket_connection_options={"compression": "deflate"}
        ) as connection,
    ):
        found = []
        create = connection.response.create
        create(model="gpt-sim-responses", input="hi", generate=False)
        found.append(read(connection))
        create(model="gpt-sim-responses", input="hi", previous_response_id=found[0][-1].response.id)
        found.append(read(connection))
        forced = json.dumps({"tool_calls": 1, "tokens": 0, "ttft_ms": 1})
        create(model="gpt-sim-responses", input="hi", stream_id="b", metadata={"x-simulate": forced})
        found.append(read(connection))
    return found


def test_responses_over_websocket(running: Running) -> None:
    direct = responses(running.upstream, "responses")
    tapped = responses(running.outer.url, "responses")
    assert [list(map(without_times, events)) for events in tapped] == [
        list(map(without_times, events)) for events in direct
    ]
    rows = running.instance.rows(3, "request_id = 'responses' AND connection_id IS NOT NULL")
    rows.sort(key=lambda row: row["response_index"])
    for row, events in zip(rows, tapped, strict=True):
        end = events[-1].response
        assert (row["response_id"], row["request_model"], row["outcome"]) == (end.id, end.model, "ok")
        assert (row["event_count"], row["input_tokens"]) == (len(events), end.usage.input_tokens)
        assert (row["output_tokens"] or 0) == end.usage.output_tokens
        assert row["text_chars"] == sum(
            len(e.delta) for e in events if e.type == "response.output_text.delta"
        )
    assert [row["operation"] for row in rows] == ["warm_up", "chat", "chat"]
    assert [row["tool_call_count"] for row in rows] == [0, 0, 1]
    assert [row["turn"] for row in rows][:2] == [None, 1]
    assert len({row["session_id"] for row in rows}) == 1
    assert all(row["client_app"].startswith("OpenAI/Python") for row in rows)
    running.assert_equal_bytes()


def realtime(base: str, name: str) -> list[list[Any]]:
    """An answer to speech that more speech interrupts, and one in text."""
    with (
        client(base) as one,
        one.realtime.connect(
            model="gpt-sim-realtime", extra_headers=headers(name, tokens=100, gap_ms=20)
        ) as connection,
    ):
        audio: Any = {"format": {"type": "audio/pcmu"}}
        connection.session.update(session={"type": "realtime", "audio": {"input": audio, "output": audio}})
        for sample in [LOUD, *[QUIET] * 5]:
            connection.input_audio_buffer.append(audio=sample)
        heard = read(connection, {"response.output_audio.delta"})
        connection.input_audio_buffer.append(audio=LOUD)
        heard += read(connection)
        connection.input_audio_buffer.clear()
        forced = json.dumps({"tokens": 5, "ttft_ms": 1, "gap_ms": 0})
        connection.response.create(
            response={"output_modalities": ["text"], "metadata": {"x-simulate": forced}}
        )
        return [heard, read(connection)]


def test_realtime(running: Running) -> None:
    instance = running.instance
    spoken, text = realtime(running.outer.url, "realtime")
    running.assert_equal_bytes()
    direct = realtime(running.upstream, "realtime")[1]
    assert list(map(without_times, text)) == list(map(without_times, direct))
    rows = instance.rows(2, "request_id = 'realtime' AND connection_id IS NOT NULL")
    first, second = sorted(rows, key=lambda row: row["response_index"])
    sound = [e for e in spoken if e.type == "response.output_audio.delta"]
    assert first["audio_ns"] == sum(len(b64decode(e.delta)) for e in sound) * 125_000
    assert (first["outcome"], first["finish_reason"]) == ("ok", "turn_detected")
    assert 0 <= first["silence_ns"] < first["end_ns"]
    # 0: on a busy machine the tap reads the end of speech and the first audio at once.
    assert 0 <= first["first_audio_ns"] <= first["last_output_ns"]
    assert (second["audio_ns"], second["silence_ns"]) == (None, None)
    for row, events in ((first, spoken), (second, text)):
        end = events[-1].response
        assert (row["response_id"], row["output_tokens"]) == (end.id, end.usage.output_tokens)
        assert (row["request_model"], row["dialect"]) == ("gpt-sim-realtime", "openai_realtime")
    named = instance.sql(
        f"SELECT name FROM server_stats WHERE stream_id = '{first['stream_id']}' AND source = 'rate_limits'"
    )
    assert {"requests.remaining", "tokens.remaining"} <= {row["name"] for row in named}

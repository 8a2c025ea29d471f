"""The official client over the simulator's WebSockets: what it receives agrees with the ledger."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed

from streamgauge.simulator.incidents import SimulatedIncident
from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.profiles import PROFILES
from streamgauge.simulator.server import Simulator, SimulatorOptions
from streamgauge.simulator.traffic import Traffic, TrafficOptions
from tests.deadline import until
from tests.openai_sockets import LOUD, QUIET, read
from tests.streamgauge.simulator.conftest import all_ended
from tests.streamgauge.simulator.simulator_thread import simulator_thread

DEFLATE: Any = {"compression": "deflate"}
MODEL = "gpt-sim-responses"


def forced(**values: Any) -> dict[str, str]:
    return {"x-simulate": json.dumps({"ttft_ms": 1, "gap_ms": 0, "tokens": 6, **values})}


def rows(simulator: Simulator, request_id: str, count: int) -> list[LedgerRow]:
    """The completed rows of a socket's answers."""

    def ended() -> list[LedgerRow] | None:
        found = list(simulator.ledger.rows(request_id=request_id))
        return found if len(found) == count and all(row.end_ns is not None for row in found) else None

    return sorted(until(ended, f"{count} answers of {request_id}"), key=lambda row: row.response_index or 0)


@pytest.fixture
def client(simulator: Simulator) -> Iterator[openai.OpenAI]:  # type: ignore[override]
    with openai.OpenAI(base_url=f"{simulator.url}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


def test_answers_of_responses_are_events_of_sse_and_can_be_continued(
    simulator: Simulator, client: openai.OpenAI
) -> None:
    headers = {"x-request-id": "responses", **forced(reasoning_tokens=3)}
    with client.responses.connect(extra_headers=headers, websocket_connection_options=DEFLATE) as connection:
        connection.response.create(model=MODEL, input="hi", generate=False, store=False)
        (*_, warm) = read(connection)
        connection.response.create(
            model=MODEL, input="hi", store=False, previous_response_id=warm.response.id
        )
        events = read(connection)
        connection.response.create(model=MODEL, input="hi", store=False, previous_response_id="resp_unknown")
        (unknown,) = read(connection)
    first, second, third = rows(simulator, "responses", 3)
    assert (first.warm_up, first.output_events, first.response_id) == (True, 0, warm.response.id)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert (text, second.text) == (second.text, text)
    assert text
    assert (len(events), second.expected_outcome) == (second.events, "ok")
    assert second.body_bytes < sum(len(event.to_json()) for event in events)
    assert events[-1].response.usage.output_tokens == second.output_tokens
    assert (unknown.error.code, unknown.status) == ("previous_response_not_found", 400)
    assert (third.expected_outcome, third.error_type) == ("inband_error", "invalid_request_error")


def test_answers_of_one_stream_id_follow_one_another_and_others_run_side_by_side(
    simulator: Simulator, client: openai.OpenAI
) -> None:
    headers = {"x-request-id": "lanes", **forced(gap_ms=5)}
    with client.responses.connect(extra_headers=headers) as connection:
        for lane in ("a", "a", "b"):
            connection.response.create(model=MODEL, input="hi", stream_id=lane)
        events = [event for _ in range(3) for event in read(connection)]
    by_lane = {lane: [e for e in events if e.stream_id == lane] for lane in ("a", "b")}
    assert len(by_lane["a"]) == 2 * len(by_lane["b"])
    created = [event.response.id for event in by_lane["a"] if event.type == "response.created"]
    done = [event.response.id for event in by_lane["a"] if event.type == "response.completed"]
    assert created == done
    first, second, other = rows(simulator, "lanes", 3)
    assert (first.end_ns or 0) <= (second.first_byte_ns or 0)
    assert (other.first_output_ns or 0) < (first.end_ns or 0)


def test_faults_end_the_socket_or_only_the_answer(simulator: Simulator, client: openai.OpenAI) -> None:
    expected = {
        "http_429": ("inband_error", False), "inband_error": ("inband_error", False), "connection_limit": ("inband_error", True),
        "truncate": ("truncated", True), "cut": ("upstream_reset", True), "reset": ("upstream_reset", True),
    }  # fmt: skip
    for fault, (outcome, ends) in expected.items():
        headers = {"x-request-id": fault, **forced(fault=fault, fault_after=2)}
        with client.responses.connect(extra_headers=headers) as connection:
            connection.response.create(model=MODEL, input="hi")
            try:
                read(connection)
                connection.response.create(model=MODEL, input="hi", metadata=forced())
                ended = not read(connection)
            except (openai.APIConnectionError, ConnectionClosed):
                ended = True
        found = rows(simulator, fault, 1 if ends else 2)
        assert (found[0].expected_outcome, ended) == (outcome, ends), fault
        assert ends or found[1].expected_outcome == "ok"


def test_client_that_leaves_aborts_the_open_answer_only(simulator: Simulator, client: openai.OpenAI) -> None:
    with client.responses.connect(extra_headers={"x-request-id": "left", **forced()}) as connection:
        connection.response.create(model=MODEL, input="hi")
        read(connection)
        connection.response.create(model=MODEL, input="hi", metadata=forced(tokens=500, gap_ms=20))
        read(connection, {"response.output_text.delta"})
    first, second = rows(simulator, "left", 2)
    assert (first.expected_outcome, second.expected_outcome) == ("ok", "client_abort")


def test_speech_begins_and_interrupts_answers(simulator: Simulator, client: openai.OpenAI) -> None:
    headers = {"x-request-id": "voice", **forced(tokens=200, gap_ms=10)}
    with client.realtime.connect(model="gpt-sim-realtime", extra_headers=headers) as connection:
        assert read(connection, {"session.created"})[-1].session.model == "gpt-sim-realtime"
        audio: Any = {"format": {"type": "audio/pcmu"}}
        connection.session.update(session={"type": "realtime", "audio": {"input": audio, "output": audio}})
        for sample in [LOUD, *[QUIET] * 5]:
            connection.input_audio_buffer.append(audio=sample)
        heard = read(connection, {"response.output_audio.delta"})
        connection.input_audio_buffer.append(audio=LOUD)
        interrupted = read(connection)
        connection.input_audio_buffer.clear()
        connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        )
        connection.response.create(response={"metadata": forced(tool_calls=1, tokens=0)})
        call = read(connection)
    kinds = [event.type for event in heard]
    assert kinds.index("input_audio_buffer.speech_started") < kinds.index("input_audio_buffer.speech_stopped")
    assert kinds.index("input_audio_buffer.committed") < kinds.index("response.created")
    assert "rate_limits.updated" in kinds
    first, second = rows(simulator, "voice", 2)
    assert interrupted[-1].response.status_details.reason == first.finish_reason == "turn_detected"
    assert (first.asked_by_server, first.expected_outcome) == (True, "ok")
    assert first.interrupted_ns is not None
    sound = [e for e in heard + interrupted if e.type == "response.output_audio.delta"]
    assert sum(len(b64decode(e.delta)) for e in sound) / 8000 == first.audio_ns / 1e9
    arguments = [event.arguments for event in call if event.type == "response.function_call_arguments.done"]
    assert json.loads(arguments[0])
    assert (second.tool_calls, second.asked_by_server) == (1, False)


def test_answer_in_progress_refuses_another_and_can_be_cancelled(
    simulator: Simulator, client: openai.OpenAI
) -> None:
    headers = {"x-request-id": "cancel", **forced(tokens=200, gap_ms=10)}
    with client.realtime.connect(model="gpt-sim-realtime", extra_headers=headers) as connection:
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        connection.response.create()
        read(connection, {"response.output_text.delta"})
        connection.response.create()
        assert read(connection)[-1].error.code == "conversation_already_has_active_response"
        connection.response.cancel()
        assert read(connection)[-1].response.status_details.reason == "client_cancelled"
        connection.response.cancel()
        assert read(connection)[-1].error.code == "response_cancel_not_active"
    row, refused = rows(simulator, "cancel", 2)
    assert refused.expected_outcome == "inband_error"
    assert (row.finish_reason, row.audio_ns, row.expected_outcome) == ("client_cancelled", 0, "ok")


def test_upgrades_are_refused_where_they_are_not_offered(simulator: Simulator) -> None:
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x"}
    assert httpx.get(f"{simulator.url}/v1/messages", headers=upgrade).status_code == 426
    with simulator_thread(SimulatorOptions(listen="127.0.0.1:0", websockets=False)) as refusing:
        assert httpx.get(f"{refusing.url}/v1/responses", headers=upgrade).status_code == 426
        (row,) = refusing.ledger.rows()
        assert (row.status, row.expected_outcome) == (426, "refused")


def test_clients_of_the_demo_have_conversations(simulator: Simulator) -> None:
    async def send() -> Traffic:
        models = (MODEL, "gpt-sim-realtime")
        options = TrafficOptions(
            base_url=simulator.url, run="ws", abort_share=0, models=models, socket_share=1.0
        )
        traffic = Traffic(options)
        slow = {
            "ttft_ms": 1,
            "gap_ms": 100,
            "tokens": 30,
        }  # an answer has not ended when its interruption arrives
        traffic.incident = SimulatedIncident(
            text="", dimension="model", value="gpt-sim-realtime", forced=slow
        )
        await traffic.send(24)
        return traffic

    traffic = asyncio.run(send())
    all_ended(simulator)
    found = [row for row in simulator.ledger.rows() if row.request_id.startswith("ws-")]
    assert {(client.status, client.error) for client in traffic.rows.values()} == {(101, None)}
    assert {row.request_id for row in found} == set(traffic.rows)
    assert len(found) > 15
    assert {PROFILES[row.model or ""].vendor for row in found} == {"responses", "realtime"}
    assert any(row.interrupted_ns for row in found)
    assert {row.expected_outcome for row in found} <= {
        "ok",
        "client_abort",
        "inband_error",  # a request during an answer to speech
    }

"""Google's and OpenAI's clients of live audio through a tap: the rows are what the simulator did."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import AnyRecord
from streamgauge.ingest.redaction.record_redactor import Redactor
from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.measurement_check import check_measurements, pairs
from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.deadline import until
from tests.ingest.running_tap import RunningTap, running_tap
from tests.ingest.tap.test_tls import pki as pki
from tests.live_clients import (
    LOUD,
    QUIET,
    TOOL,
    close,
    closed_by_server,
    gemini,
    gpt_session,
    headers,
    listen,
    say,
    speak,
    turn,
)
from tests.streamgauge.simulator.conftest import all_ended
from tests.streamgauge.simulator.simulator_thread import simulator_thread

MS = 1_000_000


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Simulator]:
    with simulator_thread(SimulatorOptions(listen="127.0.0.1:0", rate_faults=0)) as running:
        yield running


@pytest.fixture
async def tls_tap(upstream: Simulator, pki: Path) -> AsyncIterator[RunningTap]:
    """A tap with a certificate: Google's client needs one."""
    async with running_tap(
        None, upstreams=[upstream.url], tls_cert=pki / "cert.pem", tls_key=pki / "key.pem"
    ) as tap:
        yield tap


@pytest.fixture
def tls(pki: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pki / "ca.pem"))


def url_of(tap: RunningTap, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{tap.worker.address[1]}"


async def answers_of(
    tap: RunningTap, simulator: Simulator, name: str
) -> list[tuple[LedgerRow, dict[str, Any]]]:
    """What the simulator did and the rows, after a comparison of both. Redaction changes nothing that is measured."""
    await tap.wait_until(lambda: not tap.worker.context.exchanges)
    await tap.stop()
    await asyncio.to_thread(all_ended, simulator)
    ledger = list(simulator.ledger.rows(request_id=name))
    rows = rows_of(tap.log.records)
    assert check_measurements(ledger, rows) == []
    redacted = rows_of(Redactor(conversation=ConversationReader(b"")).redact(tap.log.records))
    for row, kept in zip(rows, redacted, strict=True):
        differing = {column for column in row if row[column] != kept[column]}
        assert differing <= {"output_fingerprint", "tool_fingerprint", "malformed_tool_call_count"}
    found = pairs(ledger, rows)
    for simulated, row in found:
        assert (row["audio_ns"] or 0) == simulated.audio_ns
    return sorted(found, key=lambda pair: pair[1]["response_index"])


def rows_of(records: list[AnyRecord]) -> list[dict[str, Any]]:
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    assert not assembler.take_failures()
    streams = measure(assembler.take_finished())["streams"]
    return streams.sort("started_at", "stream_id").to_dicts()


@pytest.mark.parametrize("has_key", [False, True], ids=["gateway", "key"])
async def test_gemini_live(
    tls_tap: RunningTap, upstream: Simulator, tls: ssl.SSLContext, has_key: bool
) -> None:
    name = f"gemini-{has_key}"
    client = gemini(url_of(tls_tap, "https"), headers(name, tokens=40, gap_ms=20), tls, has_key=has_key)
    config: Any = {"response_modalities": ["AUDIO"]}
    async with client.aio.live.connect(model="gemini-live-1", config=config) as session:
        await speak(session)
        spoken = await turn(session)
        await speak(session)
        interrupted = await turn(session, interrupt=True)
        await turn(session)
        await session.send_client_content(turns={"role": "user", "parts": [{"text": "hi"}]})
        await turn(session)
    (_, first), (_, second), (_, third), (_, fourth) = await answers_of(tls_tap, upstream, name)
    sound = [m.data for m in spoken if m.server_content and m.server_content.model_turn]
    assert first["audio_ns"] == sum(map(len, filter(None, sound))) * 1_000_000_000 // 48_000
    if has_key:  # the client of Vertex AI reads other names of the counts
        assert first["output_tokens"] == spoken[-1].usage_metadata.response_token_count  # type: ignore[union-attr]
    assert (first["request_model"], first["dialect"], first["speech_end"]) == (
        "gemini-live-1",
        "gemini_live",
        "audio",
    )
    # The server waits for 500 ms of silence, which the client sends at once.
    assert 0 < first["first_audio_ns"] <= first["last_output_ns"]
    assert any(m.server_content and m.server_content.interrupted for m in interrupted)
    assert (second["finish_reason"], second["outcome"]) == ("interrupted", "ok")
    assert 0 <= second["silence_ns"] < second["end_ns"]
    assert (third["finish_reason"], fourth["speech_end"]) == ("turn_complete", None)
    assert [row["turn"] for row in (first, second, third, fourth)] == [1, 2, 3, 4]
    assert len({row["session_id"] for row in (first, second, third, fourth)}) == 1


async def test_tools_of_gemini_live(tls_tap: RunningTap, upstream: Simulator, tls: ssl.SSLContext) -> None:
    client = gemini(url_of(tls_tap, "https"), headers("gemini-tools", tool_calls=1, tokens=0), tls)
    config: Any = {"response_modalities": ["TEXT"], "tools": [TOOL]}
    async with client.aio.live.connect(model="gemini-live-1", config=config) as session:
        await session.send_realtime_input(text="how high is the river?")
        (called, _) = await turn(session)
        (call,) = called.tool_call.function_calls  # type: ignore[union-attr]
        result: Any = {"id": call.id, "name": call.name, "response": {"level": 2.31}}
        await session.send_tool_response(function_responses=result)
        await turn(session)
    (_, asked), (_, answered) = await answers_of(tls_tap, upstream, "gemini-tools")
    assert (asked["tool_call_count"], asked["finish_reason"], asked["outcome"]) == (1, "tool_calls", "ok")
    assert (answered["tool_call_count"], answered["turn"]) == (0, asked["turn"])


@pytest.mark.parametrize(
    ("fault", "outcome"), [("cut", "upstream_reset"), ("reset", "upstream_reset"), ("truncate", "truncated")]
)
async def test_gemini_live_that_is_cut(
    tls_tap: RunningTap, upstream: Simulator, tls: ssl.SSLContext, fault: str, outcome: str
) -> None:
    client = gemini(url_of(tls_tap, "https"), headers(fault, fault=fault, fault_after=2), tls)
    async with client.aio.live.connect(model="gemini-live-1") as session:
        await speak(session)
        await closed_by_server(session._receive)
    ((_, row),) = await answers_of(tls_tap, upstream, fault)
    assert (row["outcome"], row["error_phase"]) == (outcome, "mid_stream")


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "deflate"])
async def test_gpt_live(upstream: Simulator, compress: bool) -> None:
    name = f"gpt-{compress}"
    async with running_tap(None, upstreams=[upstream.url]) as tap:
        sent = headers(name, tokens=60, gap_ms=20)
        async with gpt_session(url_of(tap), sent, {"type": "client"}, compress=compress) as connection:
            await say(connection, LOUD, LOUD, *[QUIET] * 5)
            await listen(connection)
            await say(connection, LOUD, LOUD, *[QUIET] * 5)
            await listen(connection, interrupt=True)
            await close(connection)
        (_, first), (_, second), (_, third) = await answers_of(tap, upstream, name)
    assert (first["request_model"], first["dialect"], first["speech_end"]) == (
        "gpt-live-1",
        "openai_live",
        "audio",
    )
    assert 0 < first["first_audio_ns"] <= first["last_output_ns"] == first["end_ns"]
    assert [row["finish_reason"] for row in (first, second, third)] == ["silence", "interrupted", "silence"]
    assert 0 < second["silence_ns"] < second["end_ns"]
    assert [row["turn"] for row in (first, second, third)] == [1, 2, 3]


async def test_delegation_of_gpt_live(upstream: Simulator) -> None:
    function = {"type": "function", "name": "read_gauge", "parameters": {"type": "object", "properties": {}}}
    backend = {"model": "gpt-sim-responses", "tools": [function]}
    async with running_tap(None, upstreams=[upstream.url]) as tap:
        delegation = {"type": "responses", "responses": backend}
        sent = headers("delegation", tool_calls=1)
        async with gpt_session(url_of(tap), sent, delegation, compress=True) as connection:
            await say(connection, LOUD, *[QUIET] * 5)
            events = await listen(connection)
            await close(connection)
        (_, asked), (_, continued), (_, spoken) = await answers_of(tap, upstream, "delegation")
    assert {row["request_model"] for row in (asked, continued)} == {"gpt-sim-responses"}
    assert (asked["tool_call_count"], continued["tool_call_count"], spoken["tool_call_count"]) == (1, 0, 0)
    done = [
        e.event["response"]
        for e in events
        if e.type == "response.event" and e.event["type"] == "response.completed"
    ]
    assert done[-1]["usage"]["output_tokens"] == continued["output_tokens"]
    assert (asked["dialect"], spoken["dialect"]) == ("openai_responses", "openai_live")
    assert (asked["speech_end"], spoken["speech_end"]) == ("audio", None)


@pytest.mark.parametrize(
    ("fault", "outcome"), [("cut", "upstream_reset"), ("reset", "upstream_reset"), ("truncate", "truncated")]
)
async def test_gpt_live_that_is_cut(upstream: Simulator, fault: str, outcome: str) -> None:
    name = f"gpt-{fault}"
    async with running_tap(None, upstreams=[upstream.url]) as tap:
        sent = headers(name, fault=fault, fault_after=2)
        async with gpt_session(url_of(tap), sent, {"type": "client"}, compress=True) as connection:
            await say(connection, LOUD, *[QUIET] * 5)
            await closed_by_server(connection.recv)
        ((_, row),) = await answers_of(tap, upstream, name)
    assert (row["outcome"], row["error_phase"]) == (outcome, "mid_stream")


def test_simulator_has_one_row_for_each_answer(upstream: Simulator) -> None:
    """The comparisons above are not of empty lists."""
    rows = until(lambda: list(upstream.ledger.rows()), "rows")
    assert sum(row.speaker in ("gemini_live", "openai_live") for row in rows) >= 20

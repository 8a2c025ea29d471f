"""Agents go on while an answer calls tools, return a result to each call, and name their sessions as the real programs do."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures.operation import is_agent
from streamgauge.ingest.http1.heads import HeadLimits, read_request_head
from streamgauge.ingest.keyed_ids import RECORDED, RECORDED_AGENT, SessionHeaders
from streamgauge.simulator.agents import MAX_REQUESTS, PROGRAMS, Agent, read_answer, run_agents
from streamgauge.simulator.server import Simulator, SimulatorOptions
from streamgauge.simulator.traffic import ClientRequest, Traffic, TrafficOptions
from tests.deadline import DEADLINE_S
from tests.streamgauge.simulator.simulator_thread import simulator_thread


class Asked:
    """The traffic of agents, which keeps each request and the answer to it."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.traffic, self.stop = Traffic(TrafficOptions(base_url=url, run="t")), asyncio.Event()
        self.requests: list[tuple[ClientRequest, int | None, bytes]] = []
        self.many = asyncio.Event()
        """60 requests have ended."""
        ask = self.traffic.ask

        async def kept(request: ClientRequest, key: str) -> tuple[int | None, bytes]:
            status, body = await ask(request, key)
            self.requests.append((request, status, body))
            if len(self.requests) == 60:
                self.many.set()
            return status, body

        monkeypatch.setattr(self.traffic, "ask", kept)

    def by_thread(self) -> dict[str, list[tuple[dict[str, Any], int | None, bytes]]]:
        """The requests of each session and each subagent, in order."""
        found: dict[str, list[tuple[dict[str, Any], int | None, bytes]]] = {}
        for request, status, body in self.requests:
            thread = request.request_id.rpartition("-")[0]
            found.setdefault(thread, []).append((json.loads(request.body), status, body))
        return found


@pytest.fixture(scope="module")
def faulty() -> Iterator[Simulator]:
    """A tenth of its answers fail."""
    with simulator_thread(
        SimulatorOptions(listen="127.0.0.1:0", rate_faults=0.1, time_scale=0.01, seed="a")
    ) as running:
        yield running


@pytest.mark.parametrize("name", PROGRAMS)
def test_session_of_an_agent(faulty: Simulator, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked, program = Asked(faulty.url, monkeypatch), PROGRAMS[name]

    async def sessions() -> None:
        for number in range(6):
            await Agent(program, asked.traffic, asked.stop, f"t-{number}", time_scale=0.002).turns()

    asyncio.run(sessions())
    threads = asked.by_thread()
    subagents = [thread for thread in threads if "-sub" in thread]
    assert len(threads) - len(subagents) == 6
    assert subagents
    calls_seen, (path,) = 0, program.settings["path"]
    (spawns,) = program.settings["spawns"]
    for thread, requests in threads.items():
        for (body, status, answer), (after, _, _) in itertools.pairwise(requests):
            found = read_answer(path, answer) if status == 200 else None
            items = [len(each[next(m for m in ("messages", "input") if m in each)]) for each in (body, after)]
            if found is None:
                continue  # the same request again, or the next one of the user
            assert items[1] > items[0], "the history grows"
            history = json.dumps(after)
            for call in found[1]:
                calls_seen += 1
                assert call["id"]
                assert history.count(f'"{call["id"]}"') == 2, "the call and its result"
                tools = [tool.get("function", tool)["name"] for tool in body["tools"]]
                assert call["name"] in tools
                assert (call["name"] == spawns) <= (thread not in subagents)
                json.loads(call["arguments"])
    assert calls_seen > 10


def test_answer_has_the_calls_that_the_simulator_sent(
    faulty: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(faulty.url, monkeypatch)

    async def run() -> None:
        running = asyncio.create_task(run_agents(asked.traffic, 3, asked.stop, time_scale=0.002))
        async with asyncio.timeout(DEADLINE_S):
            await asked.many.wait()
        asked.stop.set()
        await running

    asyncio.run(run())
    rows = {row.request_id: row for row in faulty.ledger.rows()}
    compared = 0
    for request, status, body in asked.requests:
        row, found = rows[request.request_id], read_answer(request.path, body) if status == 200 else None
        if found is not None:
            compared += 1
            assert len(found[1]) == row.tool_calls
    assert compared > 40
    assert {row.model for row in rows.values()} >= {
        program.settings["model"][0] for program in PROGRAMS.values()
    }


def test_answer_that_did_not_end_is_none() -> None:
    chat = "/v1/chat/completions"
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    assert read_answer(chat, begun) is None
    assert read_answer(
        chat, begun + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    ) == (
        "a",
        [],
    )


def test_answer_without_end_of_calls_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "read_file", "arguments": "{}"}}
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    traffic, asked = Traffic(TrafficOptions(base_url="http://127.0.0.1:1")), list[str]()

    async def ask(request: ClientRequest, key: str) -> tuple[int | None, bytes]:
        asked.append(request.request_id)
        return 200, b"data: " + json.dumps(event).encode() + b"\n\n"

    monkeypatch.setattr(traffic, "ask", ask)
    asyncio.run(Agent(PROGRAMS["qwen-code"], traffic, asyncio.Event(), "t", time_scale=0).turn())
    assert len(asked) == len(set(asked)) == MAX_REQUESTS


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_session_and_parent_are_detected_as_those_of_the_program(name: str) -> None:
    program, key = PROGRAMS[name], b"k" * 32
    traffic = Traffic(TrafficOptions(base_url="http://127.0.0.1:1"))
    main = Agent(program, traffic, asyncio.Event(), "t", time_scale=0)
    subagent = Agent(program, traffic, asyncio.Event(), "t-sub1", time_scale=0, session=main.session)

    def recorded(agent: Agent) -> dict[str, str]:
        request = agent._request()
        assert is_agent(dict(request.headers)["user-agent"])
        assert ConversationReader(key)(request.body, False) is not None
        lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        head = f"POST {request.path} HTTP/1.1\r\nhost: a\r\n{lines}\r\n".encode()
        return dict(SessionHeaders((), key).recorded(read_request_head(head, HeadLimits()).fields))

    own, child = recorded(main), recorded(subagent)
    assert set(own) == {RECORDED}
    assert set(child) == {RECORDED, RECORDED_AGENT}
    assert child[RECORDED] == own[RECORDED]
    assert child[RECORDED_AGENT] != own[RECORDED]

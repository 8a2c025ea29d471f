"""Coding agents: sessions of turns in which a model calls tools, and subagents. `streams/_agent_*.sse` are what the programs send.

An agent sends its whole history with each request, and goes on while the answer calls tools. It returns a result to the id of each
call. A call of the tool `spawns` starts a subagent. A failed request is repeated. The headers name the session and the subagent as
those of the real program do; Qwen Code names none.

Blocks: `request`, and `say-KIND` with a message of the user, a text, tool calls or results; `say-call` and `say-result` are one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path
from random import Random
from typing import Any

from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.simulator.response_plan import words
from streamgauge.simulator.traffic import ClientRequest, Traffic
from streamgauge.simulator.written_streams import Template, WrittenStream

KEY = "sk-demo-agents"
"""API key of all agents."""
MAX_REQUESTS = 12
"""Requests of one turn."""
ATTEMPTS = 3
"""Attempts of one request."""
_SYSTEM_WORDS = 2_000
PROGRAMS = {
    path.stem.removeprefix("_agent_"): WrittenStream(path.stem)
    for path in sorted((Path(__file__).parent / "streams").glob("_agent_*.sse"))
}


class _Stopped(Exception):
    """The traffic ends."""


class Agent:
    """One session of a program, or its subagent."""

    def __init__(
        self, program: WrittenStream, traffic: Traffic, stop: asyncio.Event, name: str, time_scale: float, session: str | None = None
    ) -> None:  # fmt: skip
        """`name` is the seed, and begins the ids of the requests. `session`: that of a subagent's parent."""
        self.program, self.traffic, self.name = program, traffic, name
        self._stop, self._time_scale, self._is_subagent = stop, time_scale, session is not None
        self._rng = Random(name)  # noqa: S311
        self.thread = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        self.session = session or self.thread
        self._history: list[bytes] = []
        self._requests = self._subagents = 0

    async def turns(self) -> None:
        """Some turns, with pauses of the user."""
        for _ in range(self._rng.randint(2, 4)):
            await self.turn()
            await self._pause(self._rng.uniform(4, 15))

    async def turn(self) -> str:
        """Ask until an answer calls no tools, and return its text."""
        self._say("user", text=words(self._rng, 30).strip())
        text = ""
        for _ in range(MAX_REQUESTS):
            text, calls = await self._ask()
            if not calls:
                break
            results = [{"id": call["id"], "text": await self._result(call)} for call in calls]
            for kind, items in (("call", calls), ("result", results)):
                written = [self.program.write(f"say-{kind}", item) for item in items]
                self._say(f"{kind}s", items=b",".join(written))
        self._say("text", text=text)
        return text

    def _say(self, kind: str, **values: Any) -> None:
        self._history.append(self.program.write(f"say-{kind}", values))

    async def _result(self, call: dict[str, Any]) -> str:
        if [call["name"]] == self.program.settings["spawns"] and not self._is_subagent:
            self._subagents += 1
            name = f"{self.name}-sub{self._subagents}"
            subagent = Agent(self.program, self.traffic, self._stop, name, self._time_scale, self.session)
            return await subagent.turn()
        await self._pause(self._rng.lognormvariate(0, 0.7))
        rng = Random(call["name"] + call["arguments_text"])  # noqa: S311
        return words(rng, rng.randint(20, 400)).strip()

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), pause_s * self._time_scale)
        if self._stop.is_set():
            raise _Stopped

    async def _ask(self) -> tuple[str, list[dict[str, Any]]]:
        """Text and tool calls of an answer; an empty one if each attempt fails."""
        for attempt in range(ATTEMPTS):
            await self._pause(2.0**attempt - 0.9)
            request = self._request()
            status, body = await self.traffic.ask(request, KEY)
            if status == 200 and (answer := read_answer(request.path, body)):
                return answer
        return "", []

    def _request(self) -> ClientRequest:
        (model,), (path,) = self.program.settings["model"], self.program.settings["path"]
        self._requests += 1
        values = {
            "model": model, "session": self.session, "thread": self.thread, "is_subagent": self._is_subagent, "key": KEY,
            "request_id": f"{self.name}-{self._requests:04d}", "history": b",".join(self._history),
            "system": words(Random(model), _SYSTEM_WORDS),  # noqa: S311
        }  # fmt: skip
        settings = ("credential", "program-header", *(("subagent-header",) if self._is_subagent else ()))
        lines = [line for setting in settings for line in self.program.header_lines(setting)]
        headers = [(name, Template(value).write(values.__getitem__).decode()) for name, value in lines]
        return ClientRequest(
            request_id=str(values["request_id"]), model=model, path=path, headers=tuple(headers),
            body=self.program.write("request", values), streamed=True,
        )  # fmt: skip


async def run_agents(traffic: Traffic, count: int, stop: asyncio.Event, *, time_scale: float = 1) -> None:
    """Run `count` agents, one session after another, until `stop` is set. Then their open requests end."""

    async def sessions(agent: int) -> None:
        programs, session = list(PROGRAMS.values()), 0
        with contextlib.suppress(_Stopped, asyncio.CancelledError):
            while True:
                name = f"{traffic.options.run}-agent{agent}-{session}"
                program = programs[(agent + session) % len(programs)]
                await Agent(program, traffic, stop, name, time_scale).turns()
                session += 1

    await asyncio.gather(*map(sessions, range(count)))


def read_answer(path: str, body: bytes) -> tuple[str, list[dict[str, Any]]] | None:
    """Text and tool calls of a stream. None: it did not end."""
    decoder = StreamDecoder(ExchangeInfo(path=path, content_type="text/event-stream"), keep_text=True)
    decoder.feed([(0, body)])
    decoder.finish()
    if decoder.finish_reason is None:
        return None
    calls = decoder.tool_calls
    return decoder.text, [
        {**call, "arguments": call["arguments"].encode(), "arguments_text": call["arguments"]} for call in calls
    ]  # fmt: skip

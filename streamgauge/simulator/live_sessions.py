"""What the simulator does on a WebSocket of live audio: Gemini Live, and GPT-Live.

Speech is detected as in a Realtime session, without events. GPT-Live sends silence between its answers. With the delegation `responses`,
an answer of the Responses API precedes the spoken one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any

import msgspec
from wsproto.utilities import LocalProtocolError

from streamgauge.simulator.response_writer import BYTES_PER_S
from streamgauge.simulator.socket_sessions import Message, Session, is_loud
from streamgauge.simulator.sockets import AnswerSender
from streamgauge.simulator.written_streams import WRITTEN_STREAMS

SPEECH_PAUSE_MS = 500
"""A longer silence ends the user's speech."""
REACTION_S = 0.25
"""Time from the start of the user's speech to the silence of GPT-Live."""
FRAME_S = 0.1
PAUSE_S = 0.3
"""Silence between two answers of GPT-Live."""
_FAULTS = frozenset({"none", "cut", "reset", "truncate", "burst", "slow_first_byte"})
"""The protocols have no events for other faults."""
_SILENCE = b64encode(bytes(int(FRAME_S * BYTES_PER_S["audio/pcm"]))).decode()


class LiveSession(Session):
    """Detection of speech, and the answer in progress."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answer: AnswerSender | None = None
        """The newest one."""
        self.lane = asyncio.Lock()
        self._position_ms = self._loud_ms = 0.0
        self._loud_ns = 0
        self._speaks = False

    @property
    def in_progress(self) -> AnswerSender | None:
        return self.answer if self.answer in self._open and self.answer.row.terminal_ns is None else None

    def add_audio(self, audio: str, read_ns: int, kind: str = "audio/pcm", bytes_per_s: int = 0) -> None:
        data = b64decode(audio)
        self._position_ms += len(data) / (bytes_per_s or BYTES_PER_S[kind]) * 1000
        if is_loud(data, kind):
            self._loud_ms, self._loud_ns = self._position_ms, read_ns
            if not self._speaks:
                self._speaks = True
                if (answer := self.in_progress) is not None and answer.row.first_byte_ns is not None:
                    self.interrupt(answer, read_ns)
        elif self._speaks and self._position_ms - self._loud_ms >= SPEECH_PAUSE_MS:
            self._speaks = False
            if self.in_progress is None:
                self.respond(self._loud_ns)

    def interrupt(self, answer: AnswerSender, at_ns: int) -> None:
        """The user begins to speak within the answer."""
        self.answer = None
        answer.interruption, answer.row.interrupted_ns = "interrupted", at_ns
        answer.task.cancel()

    def respond(self, asked_ns: int) -> None:
        """Begin the answer to the input until then."""

    def prepared(self, sender: AnswerSender, **changes: Any) -> AnswerSender:
        """An answer without the faults that the protocol does not have."""
        fault = sender.plan.fault if sender.plan.fault in _FAULTS else "none"
        sender.plan = sender.writer.plan = replace(sender.plan, fault=fault, refusal=False, **changes)
        sender.row.fault, sender.row.asked_by_server = fault, True
        return sender


class GeminiLiveSession(LiveSession):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setup: Message = {}

    def receive(self, message: Message, read_ns: int) -> None:
        members = {name.replace("_", "").lower(): value for name, value in message.items()}
        if (setup := members.get("setup")) is not None:
            self._setup = setup
            self.socket.send({"setupComplete": {}})
        elif (sent := members.get("realtimeinput")) is not None:
            if "audio" in sent:
                self.add_audio(sent["audio"]["data"], read_ns, bytes_per_s=32_000)
            elif "text" in sent or "activityEnd" in sent or "activity_end" in sent:
                self.respond(read_ns)
        elif "toolresponse" in members:
            self.respond(read_ns, has_result=True)
        elif "clientcontent" in members:
            self.respond(read_ns)

    def respond(self, asked_ns: int, *, has_result: bool = False) -> None:
        model = self._setup["model"].rpartition("/")[2]
        body = {"model": model, "input": "", "tools": self._setup.get("tools") or []}
        changes = {"tool_calls": 0} if has_result else {}
        self.answer = sender = self.prepared(self.asked(body, asked_ns), **changes)
        sender.row.response_id, sender.row.unframed = None, 1  # the user's speech may be an event
        modalities = (self._setup.get("generationConfig") or {}).get("responseModalities") or ["AUDIO"]
        sender.writer.audio_format = "audio/pcm" if modalities == ["AUDIO"] else None
        self.start(sender, self.lane, asked_ns)


class _DelegatedSender(AnswerSender):
    """Sends the events of a delegated answer."""

    def message(self, text: str) -> str:
        return f'{{"type":"response.event","event_id":"e","delegation_id":"{self.stream_id}","event":{text}}}'


class OpenAILiveSession(LiveSession):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        values = {"session_id": f"live_{self.socket.request.headers['x-request-id']}"}
        self._session: Message = msgspec.json.decode(WRITTEN_STREAMS["openai_live"].write("session", values))
        self._silence: asyncio.Task[None] | None = None
        self._spoke_s = 0.0
        """Time of the end of the last answer."""

    def _send(self, kind: str, **members: Any) -> None:
        self.socket.send({"type": kind, "event_id": f"event_{time.monotonic_ns()}", **members})

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._silence is not None:
                self._silence.cancel()

    def receive(self, message: Message, read_ns: int) -> None:
        kind = message.get("type")
        if kind == "session.start":
            self._session |= message["session"]
            self._send("session.started", session=self._session)
            self._silence = asyncio.get_running_loop().create_task(self._be_silent())
        elif kind == "session.input_audio.append":
            self.add_audio(message["audio"], read_ns, self._session["audio"]["format"]["type"])
        elif kind == "session.commentary.append":
            self._speak(read_ns)
        elif kind == "response.create":
            self._delegate(read_ns, tool_calls=0)
        elif kind == "session.close":
            self._send(
                "session.closed", reason="close_requested", session=self._session, usage={"seconds": 2.0}
            )
            self.socket.close()

    async def _be_silent(self) -> None:
        with contextlib.suppress(LocalProtocolError):  # the socket is closed
            while True:
                await asyncio.sleep(FRAME_S)
                if self.answer not in self._open or self.answer.row.first_byte_ns is None:
                    self.socket.send({"type": "session.output_audio.delta", "delta": _SILENCE})

    def respond(self, asked_ns: int) -> None:
        if self._session["delegation"]["type"] != "responses":
            self._speak(asked_ns)
            return
        delegation = {"id": f"item_{self._answers}", "type": "delegation", "target": "responses"}
        self._send("session.delegation.created", offset_ms=0, delegation=delegation)
        self._delegate(asked_ns)

    def _delegate(self, asked_ns: int, **changes: Any) -> None:
        body = {**self._session["delegation"]["responses"], "input": ""}
        key = f"item_{self._answers}"
        sender = self.prepared(self.asked(body, asked_ns, key, "responses", _DelegatedSender), **changes)
        self.start(sender, self.lane, asked_ns)
        sender.task.add_done_callback(lambda _: self._has_delegated(sender))

    def _has_delegated(self, sender: AnswerSender) -> None:
        row = sender.row
        if row.terminal_ns is not None and not row.tool_calls:
            self._speak(row.terminal_ns)

    def _speak(self, asked_ns: int) -> None:
        body = {"model": self._session["model"], "input": ""}
        self.answer = sender = self.prepared(self.asked(body, asked_ns), tool_calls=0)
        pause_s = self._spoke_s + PAUSE_S - asked_ns / 1e9
        sender.plan = sender.writer.plan = replace(sender.plan, ttft_s=max(sender.plan.ttft_s, pause_s))
        row = sender.row
        # Beside them, `answer.started` and the user's speech may be events.
        row.response_id, row.events, row.unframed = None, 1, 1
        sender.writer.audio_format = self._session["audio"]["format"]["type"]
        self.start(sender, self.lane, asked_ns)
        sender.task.add_done_callback(lambda _: self._has_spoken(sender))

    def _has_spoken(self, sender: AnswerSender) -> None:
        row, self._spoke_s = sender.row, time.monotonic()
        if row.terminal_ns is not None:
            row.events += 1  # `answer.ended`
            began_ns, last_ns = row.interrupted_ns, row.last_output_ns
            spoken_over = began_ns is not None and last_ns is not None and last_ns > began_ns
            row.finish_reason = "interrupted" if spoken_over else "silence"

    def interrupt(self, answer: AnswerSender, at_ns: int) -> None:
        answer.row.interrupted_ns = at_ns
        asyncio.get_running_loop().call_later(REACTION_S, self._fall_silent, answer)

    def _fall_silent(self, answer: AnswerSender) -> None:
        if self.in_progress is answer:
            answer.interruption = "silence"
            answer.task.cancel()

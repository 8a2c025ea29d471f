"""What the simulator does on a WebSocket: OpenAI Responses, and Realtime with a server VAD.

Responses: each `response.create` is an answer. Those with one `stream_id` follow one another, others run side by side. A response
that is not stored can be continued only on its socket. After `SOCKET_LIMIT_S`, or with the fault `connection_limit`, an answer is
the error `websocket_connection_limit_reached`, and the socket closes.

Realtime: an answer follows `response.create`, or the end of speech in the input audio. Speech is audio louder than `SILENCE`.
"""

from __future__ import annotations

import array
import asyncio
import time
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import msgspec

from streamgauge.simulator.connection import Request
from streamgauge.simulator.ledger import RowBuilder
from streamgauge.simulator.response_plan import ResponsePlan
from streamgauge.simulator.response_writers.realtime import BYTES_PER_S, Realtime
from streamgauge.simulator.response_writers.responses import Responses
from streamgauge.simulator.sockets import CONNECTION_LIMIT, AnswerSender, Socket

SOCKET_LIMIT_S = 3600
MAX_LANES = 32
"""Maximum number of `stream_id`s of one socket."""
SILENCE = 500
"""Largest sample of 16 bits that is no speech."""
Message = dict[str, Any]
Begin = Callable[[Request, Message, int], tuple[ResponsePlan, Responses, RowBuilder]]
"""Plan the answer to a request with this body and index, and add its row to the ledger."""


class Session(ABC):
    """One socket. `run` returns when it has ended, and the rows of all answers are complete."""

    def __init__(
        self, socket: Socket, request: Request, begin: Begin, open_answer: Callable[[], AbstractContextManager[None]]
    ) -> None:  # fmt: skip
        self.socket, self.request = socket, request
        self._begin, self._open_answer = begin, open_answer
        self._tasks: dict[asyncio.Task[None], AnswerSender] = {}
        self.answers = 0

    async def run(self) -> None:
        try:
            async for data, read_ns in self.socket.messages():
                try:
                    self.receive(msgspec.json.decode(data, type=Message), read_ns)
                except (msgspec.DecodeError, ValueError) as e:
                    self.error(f"Invalid message: {e}")
        finally:
            for task, sender in self._tasks.items():
                if (
                    self.socket.connection.client_left_ns is None
                ):  # a fault of another answer ended the socket
                    sender.row.fault = "cut"
                    sender.row_builder.fault_occurred(time.monotonic_ns())
                task.cancel()
            senders = list(self._tasks.values())
            try:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:
                for sender in senders:  # a task may not have begun
                    sender.conclude()

    @abstractmethod
    def receive(self, message: Message, read_ns: int) -> None:
        """Handle a message of the client. Raises ValueError for an invalid one."""

    def error(self, message: str, code: str | None = None) -> None:
        """Report an error that belongs to no answer."""
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        self.socket.send({"type": "error", "event_id": f"event_{time.monotonic_ns()}", "error": error})

    def asked(self, body: Message, asked_ns: int, stream_id: str | None = None) -> AnswerSender:
        """Prepare an answer, which a task of `start` sends."""
        headers = self.request.headers
        if forced := (body.get("metadata") or {}).get("x-simulate"):
            headers = {**headers, "x-simulate": forced}
        request = replace(self.request, headers=headers, wall_ns=time.time_ns(), received_ns=asked_ns, complete_ns=asked_ns)  # fmt: skip
        plan, writer, row_builder = self._begin(request, body, self.answers)
        self.answers += 1
        if plan.fault == "linger":  # a socket stays open anyway
            plan, row_builder.row.fault = replace(plan, fault="none"), "none"
        return AnswerSender(self.socket, request, plan, writer, row_builder, stream_id)

    def start(self, sender: AnswerSender, lane: asyncio.Lock) -> asyncio.Task[None]:
        async def send() -> None:
            with self._open_answer():
                async with lane:
                    sender.request.complete_ns = time.monotonic_ns()
                    await sender.run()

        task = asyncio.get_running_loop().create_task(send())
        self._tasks[task] = sender
        task.add_done_callback(self._tasks.pop)
        return task


class ResponsesSession(Session):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lanes: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._known: set[str] = set()

    def receive(self, message: Message, read_ns: int) -> None:
        if message.get("type") != "response.create":
            raise ValueError(f"unknown type {message.get('type')!r}")
        stream_id = message.get("stream_id")
        sender = self.asked(message, read_ns, stream_id)
        self._known.add(sender.writer.id)
        sender.row.warm_up = message.get("generate") is False
        if sender.row.warm_up:
            nothing: Any = {"text_tokens": 0, "reasoning": "none", "reasoning_tokens": 0, "tool_calls": 0}
            sender.plan = sender.writer.plan = replace(sender.plan, fault="none", **nothing)
        sender.refusal = self._refusal(message, sender, stream_id)
        self.start(sender, self._lanes[stream_id])

    def _refusal(
        self, message: Message, sender: AnswerSender, stream_id: str | None
    ) -> tuple[int, str, str] | None:
        """Status, message and code of an answer that is only an error."""
        previous = message.get("previous_response_id")
        age_s = (time.monotonic_ns() - self.socket.opened_ns) / 1e9
        if age_s > SOCKET_LIMIT_S or sender.plan.fault == "connection_limit":
            text = "Responses websocket connection limit reached (60 minutes). Create a new websocket connection."
            return 400, text, CONNECTION_LIMIT
        if message.get("store") is False and previous is not None and previous not in self._known:
            return 400, f"Previous response with id {previous!r} not found.", "previous_response_not_found"
        if stream_id is not None and len(self._lanes.keys() | {stream_id}) > MAX_LANES:
            return 400, "Too many streams on one connection.", "websocket_stream_limit_reached"
        return None


class RealtimeSession(Session):
    def __init__(self, *args: Any, model: str) -> None:
        super().__init__(*args)
        self._answer: tuple[asyncio.Task[None], AnswerSender] | None = None
        self._lane = asyncio.Lock()
        self._items: list[Message] = []
        self._position_ms = self._loud_ms = 0.0
        self._speech: str | None = None
        """Id of the item of the speech in progress."""
        pcm = {"type": "audio/pcm", "rate": 24_000}
        self._input: Message = {
            "format": pcm, "transcription": None, "noise_reduction": None,
            "turn_detection": {
                "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500,
                "create_response": True, "interrupt_response": True,
            },
        }  # fmt: skip
        self._output: Message = {"format": pcm, "voice": "marin", "speed": 1.0}
        self._session: Message = {
            "type": "realtime", "object": "realtime.session", "id": f"sess_{self.request.headers['x-request-id']}", "model": model,
            "output_modalities": ["audio"], "instructions": "", "tools": [], "tool_choice": "auto", "max_output_tokens": "inf",
            "audio": {"input": self._input, "output": self._output},
        }  # fmt: skip
        self._send("session.created", session=self._session)

    def _send(self, kind: str, **members: Any) -> int:
        return self.socket.send({"type": kind, "event_id": f"event_{time.monotonic_ns()}", **members})

    def receive(self, message: Message, read_ns: int) -> None:
        kind = message.get("type")
        if kind == "input_audio_buffer.append":
            self._hear(b64decode(message["audio"]))
        elif kind == "input_audio_buffer.commit":
            self._commit(f"item_{read_ns}")
        elif kind == "input_audio_buffer.clear":
            self._speech = None
            self._send("input_audio_buffer.cleared")
        elif kind == "session.update":
            self._update(message["session"])
        elif kind == "conversation.item.create":
            self._add({"id": f"item_{read_ns}", **message["item"]})
        elif kind == "conversation.item.truncate":
            named = {name: message[name] for name in ("item_id", "content_index", "audio_end_ms")}
            self._send("conversation.item.truncated", **named)
        elif kind == "response.create":
            self._respond(message.get("response") or {}, read_ns)
        elif kind == "response.cancel":
            if not self._interrupt("client_cancelled", read_ns):
                self.error("Cancellation failed: no active response found.", "response_cancel_not_active")
        else:
            self.error(f"Invalid value: {kind!r}", "invalid_value")

    def _update(self, session: Message) -> None:
        audio = session.pop("audio", None) or {}
        self._input |= audio.get("input") or {}
        self._output |= audio.get("output") or {}
        self._session |= session
        self._send("session.updated", session=self._session)

    def _add(self, item: Message) -> None:
        self._items.append(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._send(kind, previous_item_id=None, item={**item, "object": "realtime.item", "status": "completed"})  # fmt: skip

    # speech

    def _hear(self, audio: bytes) -> None:
        vad = self._input["turn_detection"]
        kind = self._input["format"]["type"]
        self._position_ms += len(audio) / BYTES_PER_S[kind] * 1000
        if not vad:
            return
        if _is_loud(audio, kind):
            self._loud_ms = self._position_ms
            if self._speech is None:
                self._speech = f"item_{time.monotonic_ns()}"
                begin_ms = max(0, int(self._position_ms) - vad["prefix_padding_ms"])
                interrupted_ns = time.monotonic_ns()
                kind = "input_audio_buffer.speech_started"
                wire_bytes = self._send(kind, audio_start_ms=begin_ms, item_id=self._speech)
                for sender in self._tasks.values():
                    if sender.row.first_byte_ns is not None:
                        sender.row.events += 1
                        sender.row.body_bytes += wire_bytes
                if vad["interrupt_response"]:
                    self._interrupt("turn_detected", interrupted_ns)
        elif self._speech is not None and self._position_ms - self._loud_ms >= vad["silence_duration_ms"]:
            item, asked_ns = self._speech, time.monotonic_ns()
            self._send("input_audio_buffer.speech_stopped", audio_end_ms=int(self._position_ms), item_id=item)
            self._commit(item)
            if vad["create_response"] and self._answer is None:
                self._respond({}, asked_ns, by_server=True)

    def _commit(self, item_id: str) -> None:
        self._speech = None
        self._send("input_audio_buffer.committed", previous_item_id=None, item_id=item_id)
        content = {"type": "input_audio", "transcript": None}
        self._add({"id": item_id, "type": "message", "role": "user", "content": [content]})
        if self._input["transcription"]:
            usage = {"type": "duration", "seconds": 1}
            self._send(
                "conversation.item.input_audio_transcription.completed", item_id=item_id, content_index=0,
                transcript="How high is the water?", usage=usage,
            )  # fmt: skip

    # answers

    def _respond(self, options: Message, asked_ns: int, *, by_server: bool = False) -> None:
        apart = options.get("conversation") == "none"
        body = {"input": self._items, **self._session, **options}
        sender = self.asked(body, asked_ns)
        sender.row.asked_by_server = by_server
        sender.row.unframed = 1  # a cancellation of the client counts as an event, and may come too late
        if isinstance(sender.writer, Realtime) and body["output_modalities"] == ["audio"]:
            sender.writer.audio_format = self._output["format"]["type"]
        if self._answer is not None and not apart:
            text = "Conversation already has an active response in progress."
            sender.refusal, apart = (400, text, "conversation_already_has_active_response"), True
        task = self.start(sender, asyncio.Lock() if apart else self._lane)
        if not apart:
            self._answer = task, sender
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        if self._answer is not None and self._answer[0] is task:
            self._answer = None

    def _interrupt(self, reason: str, at_ns: int) -> bool:
        """Cancel the answer in progress. False: there is none."""
        if self._answer is None:
            return False
        task, sender = self._answer
        if sender.row.first_byte_ns is None or sender.row.terminal_ns is not None:
            return False
        self._answer = None
        sender.interruption, sender.row.interrupted_ns = reason, at_ns
        task.cancel()
        return True


def _is_loud(audio: bytes, kind: str) -> bool:
    if kind == "audio/pcm":
        samples = array.array("h", audio[: len(audio) // 2 * 2])
        return any(abs(sample) > SILENCE for sample in samples)
    return any(byte & 0x7F < 0x60 for byte in audio)  # G.711: small samples have the largest codes

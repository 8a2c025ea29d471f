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
from streamgauge.simulator.response_sender import Planned
from streamgauge.simulator.response_writer import BYTES_PER_S
from streamgauge.simulator.sockets import CONNECTION_LIMIT, AnswerSender, Socket
from streamgauge.simulator.written_streams import WRITTEN_STREAMS

SOCKET_LIMIT_S = 3600
SILENCE = 500
"""Largest sample of 16 bits that is no speech."""
Message = dict[str, Any]
Begin = Callable[[Request, Message, int, str | None], Planned]
"""Plan the answer to a request with this body, index and API, and add its row to the ledger."""


class Session(ABC):
    """One socket. `run` returns when it has ended, and the rows of all answers are complete."""

    def __init__(
        self, socket: Socket, begin: Begin, open_answer: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.socket = socket
        self._begin, self._open_answer = begin, open_answer
        self._open: set[AnswerSender] = set()
        self._answers = 0

    async def run(self) -> None:
        try:
            async for data, read_ns in self.socket.messages():
                try:
                    self.receive(msgspec.json.decode(data, type=Message), read_ns)
                except (msgspec.DecodeError, ValueError, KeyError) as e:
                    self.error(f"Invalid message: {e}")
        finally:
            for sender in self._open:
                # A fault of another answer ended the socket.
                if self.socket.connection.client_left_ns is None:
                    sender.row.fault = "cut"
                    sender.row_builder.fault_occurred(time.monotonic_ns())
                sender.task.cancel()
            await asyncio.gather(*(sender.task for sender in self._open), return_exceptions=True)

    @abstractmethod
    def receive(self, message: Message, read_ns: int) -> None:
        """Handle a message of the client. Raises ValueError or KeyError for an invalid one."""

    def error(self, message: str, code: str | None = None) -> None:
        """Report an error that belongs to no answer."""
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        self.socket.send({"type": "error", "event_id": f"event_{time.monotonic_ns()}", "error": error})

    def asked(
        self,
        body: Message,
        asked_ns: int,
        stream_id: str | None = None,
        api: str | None = None,
        sender: type[AnswerSender] = AnswerSender,
    ) -> AnswerSender:
        """Prepare an answer, which `start` sends. `api`: of this one, if it is not that of the socket."""
        request = replace(
            self.socket.request, wall_ns=time.time_ns(), received_ns=asked_ns, complete_ns=asked_ns
        )
        if forced := (body.get("metadata") or {}).get("x-simulate"):
            request.headers = {**request.headers, "x-simulate": forced}
        planned = self._begin(request, body, self._answers, api)
        self._answers += 1
        if planned.plan.fault == "linger":  # a socket stays open anyway
            planned.row_builder.row.fault = "none"
            planned = planned._replace(plan=replace(planned.plan, fault="none"))
        return sender(self.socket, planned, stream_id)

    def start(self, sender: AnswerSender, lane: asyncio.Lock, asked_ns: int | None = None) -> None:
        """Send an answer after those that have the lane. `asked_ns`: its time zero, if it is earlier."""

        async def send() -> None:
            with self._open_answer():
                async with lane:
                    sender.request.complete_ns = asked_ns or time.monotonic_ns()
                    await sender.run()

        def ended(task: asyncio.Task[None]) -> None:
            self._open.discard(sender)
            sender.conclude()  # the task may not have begun

        sender.task = asyncio.get_running_loop().create_task(send())
        self._open.add(sender)
        sender.task.add_done_callback(ended)


class ResponsesSession(Session):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lanes: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._known: set[str] = set()

    def receive(self, message: Message, read_ns: int) -> None:
        if message.get("type") != "response.create":
            raise ValueError(f"unknown type {message.get('type')!r}")
        stream_id, previous = message.get("stream_id"), message.get("previous_response_id")
        sender = self.asked(message, read_ns, stream_id)
        sender.row.warm_up = message.get("generate") is False
        if sender.row.warm_up:
            nothing: Any = {"text_tokens": 0, "reasoning": "none", "reasoning_tokens": 0, "tool_calls": 0}
            sender.plan = sender.writer.plan = replace(sender.plan, fault="none", **nothing)
        age_s = (time.monotonic_ns() - self.socket.request.complete_ns) / 1e9
        if age_s > SOCKET_LIMIT_S or sender.plan.fault == "connection_limit":
            text = "Responses websocket connection limit reached (60 minutes). Create a new websocket connection."
            sender.refusal = text, CONNECTION_LIMIT
        elif message.get("store") is False and previous is not None and previous not in self._known:
            text = f"Previous response with id {previous!r} not found."
            sender.refusal = text, "previous_response_not_found"
        self._known.add(sender.writer.id)
        self.start(sender, self._lanes[stream_id])


class RealtimeSession(Session):
    def __init__(self, *args: Any, model: str) -> None:
        super().__init__(*args)
        self._answer: AnswerSender | None = None
        """The newest answer, unless it was interrupted."""
        self._lane = asyncio.Lock()
        self._items: list[Message] = []
        self._position_ms = self._loud_ms = 0.0
        self._speech: str | None = None
        """Id of the item of the speech in progress."""
        values = {"model": model, "session_id": f"sess_{self.socket.request.headers['x-request-id']}"}
        self._session: Message = msgspec.json.decode(WRITTEN_STREAMS["realtime"].write("session", values))
        self._input: Message = self._session["audio"]["input"]
        self._output: Message = self._session["audio"]["output"]
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
        elif kind != "response.cancel":
            self.error(f"Invalid value: {kind!r}", "invalid_value")
        elif not self._interrupt("client_cancelled", read_ns):
            self.error("Cancellation failed: no active response found.", "response_cancel_not_active")

    def _update(self, session: Message) -> None:
        audio = session.pop("audio", None) or {}
        self._input |= audio.get("input") or {}
        self._output |= audio.get("output") or {}
        self._session |= session
        self._send("session.updated", session=self._session)

    def _add(self, item: Message) -> None:
        self._items.append(item)
        item = {**item, "object": "realtime.item", "status": "completed"}
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._send(kind, previous_item_id=None, item=item)

    # speech

    def _hear(self, audio: bytes) -> None:
        vad, kind = self._input["turn_detection"], self._input["format"]["type"]
        self._position_ms += len(audio) / BYTES_PER_S[kind] * 1000
        if not vad:
            return
        now_ns = time.monotonic_ns()
        if is_loud(audio, kind):
            self._loud_ms = self._position_ms
            if self._speech is not None:
                return
            self._speech = f"item_{now_ns}"
            begin_ms = max(0, int(self._position_ms) - vad["prefix_padding_ms"])
            wire_bytes = self._send("input_audio_buffer.speech_started", audio_start_ms=begin_ms, item_id=self._speech)  # fmt: skip
            for sender in self._open:
                if sender.row.first_byte_ns is not None:
                    sender.row.events += 1
                    sender.row.body_bytes += wire_bytes
            if vad["interrupt_response"]:
                self._interrupt("turn_detected", now_ns)
        elif self._speech is not None and self._position_ms - self._loud_ms >= vad["silence_duration_ms"]:
            item = self._speech
            self._send("input_audio_buffer.speech_stopped", audio_end_ms=int(self._position_ms), item_id=item)
            self._commit(item)
            if vad["create_response"] and self._in_progress is None:
                self._respond({}, now_ns, by_server=True)

    def _commit(self, item_id: str) -> None:
        self._speech = None
        self._send("input_audio_buffer.committed", previous_item_id=None, item_id=item_id)
        content = {"type": "input_audio", "transcript": None}
        self._add({"id": item_id, "type": "message", "role": "user", "content": [content]})

    # answers

    @property
    def _in_progress(self) -> AnswerSender | None:
        return self._answer if self._answer in self._open else None

    def _respond(self, options: Message, asked_ns: int, *, by_server: bool = False) -> None:
        body = {"input": self._items, **self._session, **options}
        sender = self.asked(body, asked_ns)
        sender.row.asked_by_server = by_server
        sender.row.unframed = 1  # a cancellation of the client counts as an event, and may come too late
        if body["output_modalities"] == ["audio"]:
            sender.writer.audio_format = self._output["format"]["type"]
        if self._in_progress is not None:
            text = "Conversation already has an active response in progress."
            sender.refusal = text, "conversation_already_has_active_response"
            self.start(sender, asyncio.Lock())
            return
        self.start(sender, self._lane)
        self._answer = sender

    def _interrupt(self, reason: str, at_ns: int) -> bool:
        """Cancel the answer in progress. False: there is none."""
        sender = self._in_progress
        if sender is None or sender.row.first_byte_ns is None or sender.row.terminal_ns is not None:
            return False
        self._answer = None
        sender.interruption, sender.row.interrupted_ns = reason, at_ns
        sender.task.cancel()
        return True


def is_loud(audio: bytes, kind: str) -> bool:
    if kind == "audio/pcm":
        samples = array.array("h", audio[: len(audio) // 2 * 2])
        return any(abs(sample) > SILENCE for sample in samples)
    return any(byte & 0x7F < 0x60 for byte in audio)  # G.711: small samples have the largest codes

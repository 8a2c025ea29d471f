"""WebSockets of the simulator: their handshake, their messages, and the sender of one answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

import msgspec
from wsproto.connection import Connection as Protocol
from wsproto.connection import ConnectionType
from wsproto.events import CloseConnection, Message, Ping, Pong, TextMessage
from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.handshake import server_extensions_handshake
from wsproto.utilities import LocalProtocolError, generate_accept_token

from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.ledger import RowBuilder
from streamgauge.simulator.response_plan import ResponsePlan
from streamgauge.simulator.response_sender import MESSAGES, ResponseSender
from streamgauge.simulator.response_writers.realtime import Realtime
from streamgauge.simulator.response_writers.response_writer import BodyPart
from streamgauge.simulator.response_writers.responses import Responses

READ_BYTES = 65_536
CONNECTION_LIMIT = "websocket_connection_limit_reached"
"""Code of the error that closes the socket."""


class Socket:
    """The server's side of one WebSocket, after the request of the client."""

    def __init__(self, connection: Connection, request: Request) -> None:
        """Write the 101. permessage-deflate is used if the client offers it, with context takeover as it asks."""
        self.connection, self.opened_ns = connection, request.complete_ns
        offers = request.headers.get("sec-websocket-extensions", "").split(",")
        extensions: list[Extension] = [PerMessageDeflate()]
        accepted = server_extensions_handshake([offer.strip() for offer in offers], extensions)
        self._protocol = Protocol(ConnectionType.SERVER, [e for e in extensions if e.enabled()])
        key = request.headers.get("sec-websocket-key", "").encode()
        headers = [
            ("upgrade", "websocket"), ("connection", "Upgrade"), ("x-request-id", request.headers["x-request-id"]),
            ("sec-websocket-accept", generate_accept_token(key).decode()),
        ]  # fmt: skip
        if accepted is not None:
            headers.append(("sec-websocket-extensions", accepted.decode()))
        if "realtime" in request.headers.get("sec-websocket-protocol", ""):
            headers.append(("sec-websocket-protocol", "realtime"))
        connection.respond(101, headers, None)

    async def messages(self) -> AsyncIterator[tuple[str | bytes, int]]:
        """Each message and the time of the read that completed it, until either side closes."""
        reader, parts = self.connection.upgraded, list[str | bytes]()
        assert reader is not None
        while data := await reader.read(READ_BYTES):
            read_ns = time.monotonic_ns()
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                if isinstance(event, Ping):
                    self.connection.write(self._protocol.send(Pong(event.payload)))
                elif isinstance(event, CloseConnection):
                    self._closed_by_client(event)
                    return
                elif isinstance(event, Message):
                    parts.append(event.data)
                    if event.message_finished:
                        yield parts[0][:0].join(parts), read_ns  # type: ignore[arg-type]
                        parts = []

    def _closed_by_client(self, event: CloseConnection) -> None:
        try:
            self.connection.write(self._protocol.send(event.response()))
        except LocalProtocolError:  # it answers our own Close frame
            pass
        else:
            self.connection.client_left_ns = time.monotonic_ns()
        if self.connection.transport is not None:
            self.connection.transport.close()

    def frame(self, message: str) -> tuple[bytes, int]:
        """A message as it is sent, and the size of its payload on the wire."""
        data = self._protocol.send(TextMessage(message))
        return data, len(data) - {126: 4, 127: 10}.get(data[1], 2)

    def send(self, message: object) -> int:
        """Send a message that belongs to no answer. Returns the size of its payload on the wire."""
        data, payload_bytes = self.frame(msgspec.json.encode(message).decode())
        self.connection.write(data)
        return payload_bytes

    def close(self, code: int = CloseReason.NORMAL_CLOSURE) -> None:
        """Send a Close frame and close the connection."""
        self.connection.write(self._protocol.send(CloseConnection(code)))
        self.connection.close()


class AnswerSender(ResponseSender):
    """Sends one answer as messages of a socket. A fault that ends the stream ends the socket."""

    writer: Responses

    def __init__(
        self,
        socket: Socket,
        request: Request,
        plan: ResponsePlan,
        writer: Responses,
        row_builder: RowBuilder,
        stream_id: str | None = None,
    ) -> None:
        super().__init__(socket.connection, request, plan, writer, row_builder, math.inf)
        self.socket, self.row.status = socket, 101
        self._lane = f',"stream_id":{msgspec.json.encode(stream_id).decode()}}}' if stream_id else "}"
        self.interruption: str | None = None
        """Why the answer is cancelled, if not because the socket ends."""
        self.refusal: tuple[int, str, str] | None = None
        """Status, message and code of an answer that is only an error."""

    async def _run(self) -> None:
        if self.refusal is not None:
            self.fail(*self.refusal)
            if self.refusal[2] == CONNECTION_LIMIT:
                self.socket.close()
            return
        try:
            await super()._run()
        except asyncio.CancelledError:
            if self.interruption is None or not isinstance(self.writer, Realtime):
                raise
            self._held = None
            self._write(self.writer.interrupted(self.interruption))

    def _respond(self) -> None:
        self.row.head_ns = time.monotonic_ns()

    def _frame(self, body_parts: list[BodyPart]) -> tuple[bytes, bytes, int]:
        framed, body, wire_bytes = [], [], 0
        for body_part in body_parts:
            message = body_part.data.partition(b"data: ")[2].rstrip(b"\n").decode()
            if message.endswith("}"):
                message = message[:-1] + self._lane
            data, payload_bytes = self.socket.frame(message)
            framed.append(data)
            if body_part.events:
                body.append(message.encode())
                wire_bytes += payload_bytes
        return b"".join(framed), b"".join(body), wire_bytes

    def _end(self, *, complete: bool = True) -> None:
        if not complete:
            self.socket.close()

    def _http_error(self, status: int) -> None:
        """Over a socket, an error is a message."""
        self.fail(status, MESSAGES.get(status, "The request failed."))

    def fail(self, status: int, message: str, code: str | None = None) -> None:
        """End the answer with an error that has a status."""
        body_parts, self.row.error_type = self.writer.socket_error(status, message, code)
        self.row.fault = "inband_error"
        self.row_builder.fault_occurred(time.monotonic_ns())
        self._write(body_parts)

"""WebSockets of the simulator: the server's side of one, and the sender of one answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

import msgspec
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, TextMessage
from wsproto.events import Request as Upgrade
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason

from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.response_sender import MESSAGES, Planned, ResponseSender
from streamgauge.simulator.response_writer import BodyPart
from streamgauge.simulator.socket_traffic import events

CONNECTION_LIMIT = "websocket_connection_limit_reached"
"""Code of the error that closes the socket."""


class Socket:
    """The server's side of one WebSocket, after the request of the client."""

    def __init__(self, connection: Connection, request: Request) -> None:
        """Write the 101. permessage-deflate is used if the client offers it, with context takeover as it asks. Raises
        RemoteProtocolError if the request is invalid."""
        self.connection, self.request = connection, request
        self._protocol, self.is_binary = WSConnection(ConnectionType.SERVER), False
        headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        self._protocol.initiate_upgrade_connection(headers, request.target)
        (upgrade,) = self._protocol.events()
        assert isinstance(upgrade, Upgrade)
        accepted = AcceptConnection(
            subprotocol="realtime" if "realtime" in upgrade.subprotocols else None,
            extensions=[PerMessageDeflate()],
            extra_headers=[(b"x-request-id", request.headers["x-request-id"].encode())],
        )
        connection.write(self._protocol.send(accepted))

    async def messages(self) -> AsyncIterator[tuple[str | bytes, int]]:
        """Each message and the time of the read that completed it, until either side closes."""
        assert self.connection.upgraded is not None
        async for event, read_ns in events(self._protocol, self.connection.upgraded, self.connection.write):
            if isinstance(event, CloseConnection):
                self._closed_by_client(event)
                return
            if isinstance(event, Message):
                yield event.data, read_ns

    def _closed_by_client(self, event: CloseConnection) -> None:
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:  # else it answers our own Close frame
            self.connection.write(self._protocol.send(event.response()))
            self.connection.client_left_ns = time.monotonic_ns()
        if self.connection.transport is not None:
            self.connection.transport.close()

    def frame(self, message: str) -> tuple[bytes, int]:
        """A message as it is sent, and the size of its payload on the wire."""
        data = self._protocol.send(BytesMessage(message.encode()) if self.is_binary else TextMessage(message))
        return data, len(data) - {126: 4, 127: 10}.get(data[1], 2)

    def send(self, message: object) -> int:
        """Send a message that belongs to no answer. Returns the size of its payload on the wire."""
        data, payload_bytes = self.frame(msgspec.json.encode(message).decode())
        self.connection.write(data)
        return payload_bytes

    def close(self) -> None:
        """Send a Close frame and close the connection."""
        self.connection.write(self._protocol.send(CloseConnection(CloseReason.NORMAL_CLOSURE)))
        self.connection.close()


class AnswerSender(ResponseSender):
    """Sends one answer as messages of a socket. A fault that ends the stream ends the socket."""

    task: asyncio.Task[None]

    def __init__(self, socket: Socket, planned: Planned, stream_id: str | None) -> None:
        super().__init__(socket.connection, planned, math.inf)
        self.socket, self.row.status, self.stream_id = socket, 101, stream_id
        self.interruption: str | None = None
        """Why the answer is cancelled, if not because the socket ends."""
        self.refusal: tuple[str, str] | None = None
        """Message and code of an answer that is only an error."""

    async def _run(self) -> None:
        if self.refusal is not None:
            self._fail(400, *self.refusal)
            if self.refusal[1] == CONNECTION_LIMIT:
                self.socket.close()
            return
        try:
            await super()._run()
        except asyncio.CancelledError:
            if self.interruption is None:
                raise
            self._held = None
            self._write(self.writer.interrupted(self.interruption))

    def _respond(self) -> None:
        self.row.head_ns = time.monotonic_ns()

    def _frame(self, body_parts: list[BodyPart]) -> tuple[bytes, bytes, int]:
        framed, body, wire_bytes = [], [], 0
        for body_part in body_parts:
            message = body_part.data.partition(b"data: ")[2].rstrip(b"\n").decode()
            message = self.message(message) if message.endswith("}") else message
            data, payload_bytes = self.socket.frame(message)
            framed.append(data)
            if body_part.events:
                body.append(message.encode())
                wire_bytes += payload_bytes
        return b"".join(framed), b"".join(body), wire_bytes

    def message(self, text: str) -> str:
        """A message with this event."""
        return (
            f'{text[:-1]},"stream_id":{msgspec.json.encode(self.stream_id).decode()}}}'
            if self.stream_id
            else text
        )

    def _end(self, *, complete: bool = True) -> None:
        if not complete:
            self.socket.close()

    def _http_error(self, status: int) -> None:
        """Over a socket, an error is a message."""
        self._fail(status, MESSAGES.get(status, "The request failed."))

    def _fail(self, status: int, message: str, code: str | None = None) -> None:
        body_parts, self.row.error_type = self.writer.socket_error(status, message, code)
        self.row.fault = "inband_error"
        self.row_builder.fault_occurred(time.monotonic_ns())
        self._write(body_parts)

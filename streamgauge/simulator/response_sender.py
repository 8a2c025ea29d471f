"""Send one planned response: pacing, framing, compression and faults.

Times are measured from the end of the request. A write is never early, and a late write does not delay the next ones.
Each write goes to the `RowBuilder` with the time taken immediately before it.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.ledger import RowBuilder
from streamgauge.simulator.response_plan import Piece, ResponsePlan, http_fault_status
from streamgauge.simulator.response_writer import BodyPart, ResponseWriter

_YIELD_EVERY = 64
"""Consecutive writes without a wait before the sender yields to other streams."""


class Planned(NamedTuple):
    """A planned response."""

    request: Request
    plan: ResponsePlan
    writer: ResponseWriter
    row_builder: RowBuilder


class ResponseSender:
    """Sends one response."""

    def __init__(self, connection: Connection, planned: Planned, keepalive_s: float) -> None:
        self.connection = connection
        self.request, self.plan, self.writer, self.row_builder = planned
        self.row = self.row_builder.row
        self.keepalive_s = keepalive_s
        self._due_s = 0.0
        self._sent_outputs = 0
        self._compress = None
        if self.plan.coding != "identity":
            self._compress = zlib.compressobj(6, zlib.DEFLATED, 31 if self.plan.coding == "gzip" else 15)
        self._held: list[BodyPart] | None = None
        self._unpaused = 0

    async def run(self) -> None:
        """Send the response. The ledger row is complete when this returns or is cancelled."""
        try:
            await self._run()
        finally:
            self.conclude()

    def conclude(self) -> None:
        """Complete the ledger row."""
        if self.row.end_ns is None:
            self.row_builder.copy_totals(self.writer)
            client_left_ns = self.connection.client_left_ns
            if client_left_ns is not None and not self.connection.closing:
                self.row.client_left_ns = client_left_ns
            self.row_builder.ended(time.monotonic_ns() if client_left_ns is None else client_left_ns)

    async def _run(self) -> None:
        plan = self.plan
        status = http_fault_status(plan.fault)
        if status is not None:
            await self._until(plan.head_s)
            self._http_error(status)
        elif plan.fault == "reset_before_head":
            await self._until(plan.head_s)
            self.row_builder.fault_occurred(time.monotonic_ns())
            await self.connection.reset()
        elif plan.streamed:
            await self._stream()
        else:
            await self._whole()

    # time

    def _elapsed_s(self) -> float:
        """Seconds since the end of the request."""
        return (time.monotonic_ns() - self.request.complete_ns) / 1e9

    async def _until(self, due_s: float) -> None:
        """Wait until `due_s` after the end of the request. Never returns early."""
        self._due_s = max(self._due_s, due_s)
        due_ns = self.request.complete_ns + int(self._due_s * 1e9)
        waited = False
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            waited = True
            # Loop timers have millisecond resolution and may fire 1 ms early.
            await asyncio.sleep(left_ns // 1_000_000 / 1000 + 0.001)
        self._unpaused = 0 if waited else self._unpaused + 1
        if self._unpaused >= _YIELD_EVERY:
            self._unpaused = 0
            await asyncio.sleep(0)
        await self.connection.writable()

    async def _until_with_keepalives(self, due_s: float) -> None:
        """Wait like `_until`, and send the vendor's keep-alives meanwhile."""
        while due_s - self._due_s > self.keepalive_s * 1.5 and self._held is None:
            body_part = self.writer.keepalive()
            if body_part is None:
                break
            await self._until(self._due_s + self.keepalive_s)
            self._write([body_part])
        await self._until(due_s)

    # bytes

    def _headers(self, status: int, content_type: str, more: list[tuple[str, str]]) -> list[tuple[str, str]]:
        self.row.status = status
        self.row.head_ns = time.monotonic_ns()
        headers = [
            ("content-type", content_type),
            ("cache-control", "no-cache"),
            ("x-request-id", self.plan.request_id),
            *self.writer.stream.headers,
            *(self.writer.stream.rate_limit_headers(self.plan.rate_limit) if self.plan.rate_limit else ()),
            *more,
        ]
        if not self.request.keep_alive or self.plan.framing == "close":
            headers.append(("connection", "close"))
        return headers

    def _write(self, body_parts: list[BodyPart]) -> None:
        if not body_parts:
            return
        if self._held is not None:
            self._held += body_parts
            return
        framed, body, wire_bytes = self._frame(body_parts)
        # Before the write: the ledger promises that nothing arrives earlier than its time.
        at_ns = time.monotonic_ns()
        self.connection.write(framed)
        self.row_builder.wrote(body_parts, body, at_ns, wire_bytes)

    def _frame(self, body_parts: list[BodyPart]) -> tuple[bytes, bytes, int]:
        """The bytes to write, those of the body in them, and the size of the body on the wire."""
        body = b"".join(body_part.data for body_part in body_parts)
        if self._compress is not None:
            body = self._compress.compress(body) + self._compress.flush(zlib.Z_SYNC_FLUSH)
        framed = body if self.plan.framing == "close" else b"%x\r\n%b\r\n" % (len(body), body)
        return framed, body, len(body)

    def _end(self, *, complete: bool = True) -> None:
        """End the body cleanly. `complete`: with a terminal or an error."""
        if self._compress is not None:
            trailer, self._compress = self._compress.flush(), None
            self._write([BodyPart(data=trailer, events=0)])
        if self.plan.framing == "close":
            self.connection.close()
        else:
            self.connection.write(b"0\r\n\r\n")

    # responses

    def _http_error(self, status: int) -> None:
        data, kind = self.writer.stream.http_error(status, MESSAGES.get(status, "The request failed."))
        more = (
            [("retry-after", str(self.plan.rate_limit.get("retry_s") or 1))] if status in (429, 503) else []
        )
        headers = self._headers(status, "application/json", more)
        self.row.error_type = kind or str(status)
        self.row_builder.fault_occurred(time.monotonic_ns())
        self.row_builder.wrote([BodyPart(data=data, events=0)], data, time.monotonic_ns())
        self.connection.respond(status, headers, data)

    async def _whole(self) -> None:
        """Send a non-streamed response after the time that its stream would have taken."""
        gaps, total_s = self.plan.gaps(), self.plan.ttft_s
        for piece in self._pieces():
            self.writer.add_piece(piece)
            total_s += next(gaps)
        await self._until(total_s)
        data, usage = self.writer.whole_body()
        headers = self._headers(200, "application/json", [])
        body_part = BodyPart(data=data, events=0, usage=usage, final_usage=True, terminal=True)
        self.row_builder.wrote([body_part], data, time.monotonic_ns())
        self.connection.respond(200, headers, data)

    def _pieces(self) -> Iterator[Piece]:
        for piece in self.plan.pieces():
            if piece.kind == "refusal" and "refusal" not in self.writer.stream.blocks:
                piece = Piece(kind="text", text=piece.text, tokens=piece.tokens, choice=piece.choice)
            yield piece

    async def _stream(self) -> None:
        await self._begin_stream()
        gaps, due_s = self.plan.gaps(), self.plan.ttft_s
        for index, (piece, is_last) in enumerate(_with_last(self._pieces())):
            if index:
                due_s += next(gaps)
            if self._sent_outputs == self.plan.fault_after and self.row.fault_ns is None:
                due_s, continues = await self._fault(due_s)
                if not continues:
                    return
            if self._held is None:
                await self._until_with_keepalives(due_s)
            self.writer.add_piece(piece)
            body_parts = self.writer.write_piece(is_last)
            self._write(body_parts)
            self._sent_outputs += sum(part.piece is not None for part in body_parts)
        await self._until(due_s)
        # A fault after the last piece comes before the finish, unless the last piece included the finish.
        if self.row.fault_ns is None and self.row.terminal_ns is None:
            due_s, continues = await self._fault(due_s)
            if not continues:
                return
        held, self._held = self._held or [], None
        self._write(held + self.writer.finish())
        if self.plan.fault == "linger":
            await self._until(self._elapsed_s() + self.plan.stall_s)
        self._end()

    async def _begin_stream(self) -> None:
        """Send the headers and the parts before the first piece."""
        await self._until(self.plan.head_s)
        self._respond()
        for ttft_share, body_part in self.writer.preamble():
            await self._until_with_keepalives(self.plan.ttft_s * ttft_share)
            self._write([body_part])

    def _respond(self) -> None:
        plan = self.plan
        more = [] if plan.framing == "close" else [("transfer-encoding", "chunked")]
        if plan.coding != "identity":
            more.append(("content-encoding", plan.coding))
        self.connection.respond(200, self._headers(200, "text/event-stream", more), None)

    async def _fault(self, due_s: float) -> tuple[float, bool]:
        """Execute the planned fault. Returns the new due time, and whether the stream continues."""
        fault, plan = self.plan.fault, self.plan
        if fault in ("none", "linger", "slow_first_byte"):
            return due_s, True
        await self._until_with_keepalives(due_s)
        self.row_builder.fault_occurred(time.monotonic_ns())
        if fault == "stall":
            # Measured from now, not from the schedule, so the silence is not shorter than planned.
            return max(due_s, self._elapsed_s()) + plan.stall_s, True
        if fault == "burst":
            self._held = []
            return due_s, True
        if fault in ("malformed", "malformed_event"):
            self._write([self.writer.malformed_event()])
            self.row.malformed_events += 1
            if fault == "malformed_event":
                return due_s, True
            self._end(complete=False)
        elif fault == "truncate":
            self._end(complete=False)
        elif fault == "inband_error":
            body_parts, self.row.error_type = self.writer.inband_error()
            self._write(body_parts)
            self._end()
        elif fault == "cut":
            self.connection.close()
        elif fault == "reset":
            await self.connection.reset()
        return due_s, False


def _with_last(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, bool]]:
    """Each piece, and whether it is the last."""
    previous: Piece | None = None
    for piece in pieces:
        if previous is not None:
            yield previous, False
        previous = piece
    if previous is not None:
        yield previous, True


MESSAGES = {
    400: "The request is not valid.",
    401: "Incorrect API key provided.",
    404: "The model does not exist.",
    429: "Rate limit reached. Please try again in 1s.",
    500: "The server had an error while processing your request.",
    503: "The engine is currently overloaded, please try again later.",
    529: "Overloaded",
}

"""Perform a plan on a connection: the pacing, the framing and the faults.

The schedule is absolute from the end of the request: a write is never early, and one late write does not delay those
after it. Every write is told to the account with the time taken just before it.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterator

import msgspec

from streamgauge.simulator.connection import Connection, Request
from streamgauge.simulator.ledger import Account
from streamgauge.simulator.plan import Piece, Plan, http_fault
from streamgauge.simulator.speakers.speaker import Speaker, Wire

_YIELD_EVERY = 64
"""Writes without a pause after which other streams get their turn."""


class Performance:
    """One response."""

    def __init__(
        self,
        connection: Connection,
        request: Request,
        plan: Plan,
        speaker: Speaker,
        account: Account,
        keepalive_s: float,
    ) -> None:
        self.connection = connection
        self.request = request
        self.plan = plan
        self.speaker = speaker
        self.account = account
        self.keepalive_s = keepalive_s
        self._due_s = 0.0
        self._compress = None
        if plan.coding != "identity":
            self._compress = zlib.compressobj(6, zlib.DEFLATED, 31 if plan.coding == "gzip" else 15)
        self._held: list[Wire] | None = None
        self._unpaused = 0

    async def run(self) -> None:
        """Answer the request as planned; the account is complete when this returns or is cancelled."""
        try:
            await self._run()
        finally:
            self.account.said(self.speaker)
            left_ns = self.connection.left_ns
            if left_ns is not None and not self.connection.closing:
                self.account.row.client_left_ns = left_ns
            self.account.ended(time.monotonic_ns() if left_ns is None else left_ns)

    async def _run(self) -> None:
        plan = self.plan
        status = http_fault(plan.fault)
        if status is not None:
            await self._until(plan.head_s)
            self._http_error(status)
        elif plan.fault == "reset_before_head":
            await self._until(plan.head_s)
            self.account.fault_came(time.monotonic_ns())
            await self.connection.reset()
        elif plan.streamed:
            await self._stream()
        else:
            await self._whole()

    # time

    def _now_s(self) -> float:
        """Seconds since the end of the request."""
        return (time.monotonic_ns() - self.request.complete_ns) / 1e9

    async def _until(self, due_s: float) -> None:
        """Wait until `due_s` after the end of the request. Never returns early."""
        self._due_s = max(self._due_s, due_s)
        due_ns = self.request.complete_ns + int(self._due_s * 1e9)
        waited = False
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            waited = True
            # The loop's timers count whole milliseconds and may fire one early: one more spares a second sleep.
            await asyncio.sleep(left_ns // 1_000_000 / 1000 + 0.001)
        self._unpaused = 0 if waited else self._unpaused + 1
        if self._unpaused >= _YIELD_EVERY:
            self._unpaused = 0
            await asyncio.sleep(0)
        await self.connection.writable()

    async def _through_silence(self, due_s: float) -> None:
        """Wait like `_until`, sending what this vendor sends into a long silence."""
        while due_s - self._due_s > self.keepalive_s * 1.5 and self._held is None:
            wire = self.speaker.keepalive()
            if wire is None:
                break
            await self._until(self._due_s + self.keepalive_s)
            self._write([wire])
        await self._until(due_s)

    # bytes

    def _head(self, status: int, content_type: str, more: list[tuple[str, str]]) -> list[tuple[str, str]]:
        self.account.row.status = status
        self.account.row.head_ns = time.monotonic_ns()
        vendor = getattr(self.speaker, "vendor", None)
        headers = [
            ("content-type", content_type),
            ("cache-control", "no-cache"),
            ("x-request-id", self.plan.request_id),
            *(vendor.headers if vendor is not None else self.speaker.provider_headers),
            *more,
        ]
        if not self.request.keep_alive or self.plan.framing == "close":
            headers.append(("connection", "close"))
        return headers

    def _write(self, wires: list[Wire]) -> None:
        if not wires:
            return
        if self._held is not None:
            self._held += wires
            return
        body = b"".join(wire.data for wire in wires)
        if self._compress is not None:
            body = self._compress.compress(body) + self._compress.flush(zlib.Z_SYNC_FLUSH)
        framed = body if self.plan.framing == "close" else b"%x\r\n%b\r\n" % (len(body), body)
        at_ns = time.monotonic_ns()
        self.connection.write(framed)
        self.account.wrote(wires, body, at_ns)

    def _end(self) -> None:
        """The clean end of the body."""
        if self._compress is not None:
            # Written like any other bytes: the coding's trailer belongs to the body.
            trailer, self._compress = self._compress.flush(), None
            self._write([Wire(data=trailer, events=0)])
        if self.plan.framing == "close":
            self.connection.close()
        else:
            self.connection.write(b"0\r\n\r\n")

    # responses

    def _http_error(self, status: int) -> None:
        body, kind = self.speaker.http_error(status, _MESSAGES.get(status, "The request failed."))
        data = msgspec.json.encode(body)
        more = [("retry-after", "1")] if status in (429, 503) else []
        headers = self._head(status, "application/json", more)
        self.account.row.error_type = kind or str(status)
        self.account.fault_came(time.monotonic_ns())
        self.account.wrote([Wire(data=data, events=0)], data, time.monotonic_ns())
        self.connection.respond(status, headers, data)

    async def _whole(self) -> None:
        """A response that is not streamed: it takes as long as the stream would have."""
        gaps, total_s = self.plan.gaps(), self.plan.ttft_s
        for piece in self._pieces():
            self.speaker.note(piece)
            total_s += next(gaps)
        await self._until(total_s)
        body, usage = self.speaker.answer()
        data = msgspec.json.encode(body)
        headers = self._head(200, "application/json", [])
        wire = Wire(data=data, events=0, usage=usage, final_usage=True, terminal=True)
        self.account.wrote([wire], data, time.monotonic_ns())
        self.connection.respond(200, headers, data)

    def _pieces(self) -> Iterator[Piece]:
        for piece in self.plan.pieces():
            if piece.kind == "refusal" and not self.speaker.refuses:
                piece = Piece(kind="text", text=piece.text, tokens=piece.tokens, choice=piece.choice)
            yield piece

    async def _stream(self) -> None:
        plan, row = self.plan, self.account.row
        await self._until(plan.head_s)
        more = [] if plan.framing == "close" else [("transfer-encoding", "chunked")]
        if plan.coding != "identity":
            more.append(("content-encoding", plan.coding))
        self.connection.respond(200, self._head(200, self.speaker.content_type, more), None)
        for share, wire in self.speaker.opening():
            await self._through_silence(plan.ttft_s * share)
            self._write([wire])
        gaps, due_s = plan.gaps(), plan.ttft_s
        said, pending = 0, None
        for piece in self._pieces():
            if pending is not None:
                due_s, said, go_on = await self._say(pending, False, due_s, said)
                if not go_on:
                    return
                due_s += next(gaps)
            pending = piece
        if pending is not None:
            due_s, said, go_on = await self._say(pending, True, due_s, said)
            if not go_on:
                return
        await self._until(due_s)
        # A fault drawn beyond the last piece comes before the finish, unless the last piece brought the finish.
        if row.fault_ns is None and row.terminal_ns is None:
            due_s, go_on = await self._fault(due_s)
            if not go_on:
                return
        held, self._held = self._held or [], None
        self._write(held + self.speaker.finish())
        if plan.fault == "linger":
            await self._until(self._now_s() + plan.stall_s)
        self._end()

    async def _say(self, piece: Piece, last: bool, due_s: float, said: int) -> tuple[float, int, bool]:
        """One piece at its time; the fault first, when its turn has come."""
        if said == self.plan.fault_after and self.account.row.fault_ns is None:
            due_s, go_on = await self._fault(due_s)
            if not go_on:
                return due_s, said, False
        if self._held is None:
            await self._through_silence(due_s)
        self.speaker.note(piece)
        wires = self.speaker.say(piece, last)
        self._write(wires)
        return due_s, said + sum(wire.piece is not None for wire in wires), True

    async def _fault(self, due_s: float) -> tuple[float, bool]:
        """Let the planned fault happen; when everything is due from now on, and whether the stream goes on."""
        fault, plan = self.plan.fault, self.plan
        if fault in ("none", "linger", "slow_first_byte"):
            return due_s, True
        await self._through_silence(due_s)
        self.account.fault_came(time.monotonic_ns())
        if fault == "stall":
            # From now, not from the schedule: the silence is never shorter than was asked.
            return max(due_s, self._now_s()) + plan.stall_s, True
        if fault == "burst":
            self._held = []
            return due_s, True
        if fault in ("malformed", "malformed_event"):
            self._write([self.speaker.broken()])
            self.account.row.malformed_events += 1
            if fault == "malformed_event":
                return due_s, True
            self._end()
        elif fault == "truncate":
            self._end()
        elif fault == "inband_error":
            wires, self.account.row.error_type = self.speaker.fail()
            self._write(wires)
            self._end()
        elif fault == "cut":
            self.connection.close()
        elif fault == "reset":
            await self.connection.reset()
        return due_s, False


_MESSAGES = {
    400: "The request is not valid.",
    401: "Incorrect API key provided.",
    404: "The model does not exist.",
    429: "Rate limit reached. Please try again in 1s.",
    500: "The server had an error while processing your request.",
    503: "The engine is currently overloaded, please try again later.",
    529: "Overloaded",
}

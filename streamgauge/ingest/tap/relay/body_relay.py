"""Hand response bodies over to the native relay and pass its results back to their exchanges.

Contract
- A body is handed over after its head and first bytes were forwarded, if both connections are plain TCP and the kernel has
  accepted all bytes for the client. Reading stays paused on both transports until the body ends, so the event loop does not
  use the sockets.
- The relay reports records, runs of dropped frames, waits and the end in the order in which they occurred.
- The event loop is woken when a body ends or 256 KiB of records wait. Other records wait for the record buffer's next tick.
- An exchange that ends earlier takes its body back. From then on the relay does not use the sockets.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from streamgauge.ingest.http1.bodies import BodyReader
from streamgauge.ingest.recording.failures import RecordingFailures
from streamgauge.ingest.recording.record_buffer import RecordBuffer
from streamgauge.ingest.recording.relayed import RelayedBatch, RelayedEnd, RelayedRecords
from streamgauge.ingest.records import WaitedFor
from streamgauge.ingest.tap.relay.choice import native_relay

COMPLETE, UPSTREAM_LOST, CLIENT_LOST, MALFORMED = range(4)
"""Causes of an end, as in `native_relay`. Any other value: the exchange took its body back."""
MIN_BODY_BYTES = 262_144
"""Bodies of a known shorter length stay with the event loop: they end within a few reads."""


class RelayedExchange(Protocol):
    """Interface of an exchange that the relay uses."""

    def relay_lost_frames(self, seq: int, size_bytes: int) -> None: ...
    def relay_waited(self, from_ns: int, until_ns: int, waited_for: WaitedFor) -> None: ...
    def relay_ended(self, end: RelayedEnd) -> None: ...


class BodyRelay:
    """The relay of one worker. Create it inside the running event loop. Raises OSError if its thread cannot start."""

    def __init__(self, loop: asyncio.AbstractEventLoop, failures: RecordingFailures) -> None:
        self._loop = loop
        self._failures = failures
        self._native = native_relay.NativeRelay()
        self._native.start()
        self._exchanges: dict[int, RelayedExchange] = {}
        self._buffer: RecordBuffer | None = None
        loop.add_reader(self._native.fileno(), self.take)

    def record_in(self, buffer: RecordBuffer) -> None:
        """Append records to `buffer`."""
        self._buffer = buffer
        buffer.relay = self

    @property
    def active(self) -> int:
        """Number of bodies that the relay forwards."""
        return len(self._exchanges)

    @property
    def pending_bytes(self) -> int:
        """Bytes that it keeps for records."""
        return int(self._native.counts()[0])

    @property
    def waits_dropped(self) -> int:
        return int(self._native.counts()[1])

    @property
    def blocks(self) -> bool:
        """Whether the client of any body does not read."""
        return bool(self._native.counts()[2])

    def add(
        self,
        exchange: RelayedExchange,
        upstream: asyncio.Transport,
        client: asyncio.Transport,
        reader: BodyReader,
        now_ns: int,
        records: RelayedRecords,
    ) -> int:
        """Hand over the rest of a body. Only the relay may use `reader` until the end. Returns its number. Raises OSError."""
        upstream_descriptor, client_descriptor = _descriptor(upstream), _descriptor(client)
        # The grant of an idle relay is what it holds: nothing. The first body needs room before its first read, which
        # may come before the next tick.
        if not self._exchanges:
            self._grant(more=True)
        if self._buffer is not None:
            self._buffer.arm()
        number: int = self._native.add(
            upstream_descriptor, client_descriptor, reader, now_ns, records.last_output_ns or now_ns, records.event_stream,
            records.head, records.seq, records.t0_ns, records.capture_bytes,
        )  # fmt: skip
        self._exchanges[number] = exchange
        return number

    def progress(self, number: int) -> tuple[int, int, int, bool]:
        """Returns (time of the last read, time of the last output, time when the client last resumed reading, whether the
        client is blocked now). Times in ns."""
        found: tuple[int, int, int, bool] = self._native.progress(number)
        return found

    def take_back(self, number: int, now_ns: int) -> None:
        """Stop forwarding a body. `relay_ended` of its exchange is called before this returns."""
        # At once, because the caller continues with the body's counts: they come with its end, after all its records.
        self._native.take_back(number, now_ns)
        self._take(0)

    def take(self, records_before_ns: int = 0) -> None:
        """Process the relay's reports, and records whose first frame arrived before a time."""
        self._failures.attempt(self._take, records_before_ns)  # the next tick takes what is left

    def _take(self, records_before_ns: int) -> None:
        events = self._native.take(records_before_ns)
        if self._buffer is not None:
            # The bytes of the records count again when they are appended. The relay keeps its room.
            self._buffer.grant(self._native.counts()[0], more=False)
        for kind, number, a, b in events:
            if kind == native_relay.RECORD:
                self._append(a)
            else:
                self._failures.attempt(self._report, kind, number, a, b)
        # Last, when the appended records have been counted: before, half of the free room would still include theirs.
        self._grant(more=bool(self._exchanges))

    def _append(self, encoded: RelayedBatch) -> None:
        if self._buffer is None:
            return
        try:
            self._buffer.append_relayed(encoded)
        except Exception as e:  # the reports that follow must be processed
            self._buffer.lose_records(encoded.take(), e)
        self._buffer.counters.frames += encoded.frames
        self._buffer.counters.captured_bytes += encoded.captured_bytes

    def _report(self, kind: int, number: int, a: Any, b: Any) -> None:
        """Pass one event of the relay to its exchange."""
        if kind == native_relay.END:
            self._exchanges.pop(number).relay_ended(RelayedEnd(*a))
        elif kind == native_relay.LOST:
            self._exchanges[number].relay_lost_frames(a, b)
        else:
            self._exchanges[number].relay_waited(a, b, "tap" if kind == native_relay.TAP_WAIT else "client")

    def close(self) -> None:
        """Stop the thread. No body may be with the relay."""
        self._loop.remove_reader(self._native.fileno())
        self._native.close()

    def _grant(self, *, more: bool) -> None:
        """Renew the relay's share of the record buffer. `more`: bodies are being forwarded, so reserve room for new frames."""
        if self._buffer is not None:
            room_bytes = self._buffer.grant(self._native.counts()[0], more=more)
            self._native.set_room(room_bytes, self._buffer.epoch())


def _descriptor(transport: asyncio.Transport) -> int:
    found: int = transport.get_extra_info("socket").fileno()
    return found

"""Streams in flight: the rows of table `open_streams`, and how long each has been without output. No I/O; clocks are arguments.

Rules of silence
1. Silence begins with the last output event, or with t0 while there is no output. Comments and other events do not end it.
2. It ends at the newest `Alive` of the stream's tap in the stream's partition, on the tap's own monotonic clock. So a log that is
   read late, a stopped tap or a different wall clock cannot make a stream look silent.
3. Between two `Alive` records the clock advances by at most `MAX_ADVANCE_NS`.
4. The tap names the streams whose client it waits for. Their silence is the client's, not the model's.
5. Excluded: streams that have their terminal, that have record gaps, or whose operation generates no output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import polars as pl

from streamgauge.analytics.assembly.open_stream import OpenStream
from streamgauge.analytics.measures.headers import client_app_of
from streamgauge.analytics.measures.operation import is_websocket, operation_of
from streamgauge.analytics.measures.stream_latency import first_output_ns, last_output_ns
from streamgauge.analytics.schema.dimensions import INFERENCE, WEBSOCKET
from streamgauge.analytics.schema.frames import frame
from streamgauge.analytics.schema.stream_columns import OPENED, with_hint
from streamgauge.analytics.schema.tables import OPEN_STREAMS
from streamgauge.ingest.labels import Label, labels_of
from streamgauge.ingest.records import Alive

_OPENED = [name for name in with_hint(OPENED) if name in OPEN_STREAMS.types]
_DECODED = ("dialect", "operation", "response_model", "last_event_ns")
"""Columns with the names of attributes."""


def waiting_for_client(taps: Iterable[Alive]) -> frozenset[str]:
    """Ids of the streams whose client does not read, or does not send the rest of its request. `taps`: the newest `Alive` of each
    incarnation."""
    return frozenset(stream for alive in taps for stream in alive.waiting_for_client)


def open_stream_frame(
    streams: Sequence[OpenStream], waiting: Collection[str] = (), labels: Sequence[Label] = ()
) -> pl.DataFrame:
    """One row per stream. Their pending frames must be decoded first. `waiting`: as from `waiting_for_client`."""
    rows = [{**_row(stream, labels), "waits_for_client": _waits(stream, waiting)} for stream in streams]
    return frame(OPEN_STREAMS, {name: [row[name] for row in rows] for name in OPEN_STREAMS.types})


def _waits(stream: OpenStream, waiting: Collection[str]) -> bool:
    """The tap names the WebSocket of an answer."""
    return stream.stream_id in waiting or (
        stream.opened is not None and stream.opened.connection_id in waiting
    )


def _row(stream: OpenStream, labels: Sequence[Label]) -> dict[str, object]:
    opened, decoder = stream.opened, stream.decoder
    app = client_app_of(opened.headers) if opened is not None else None
    usage = decoder.usage if decoder is not None and not decoder.usage_denies_output else None
    return {
        "stream_id": stream.stream_id,
        "client_app": app,
        "labels": labels_of(labels, opened, stream.conversation, app),
        "request_model": stream.request.model,
        "started_at": stream.started_wall_ns // 1000,
        "http_status": stream.response.status if stream.response else None,
        "ttft_ns": first_output_ns(decoder.events) if decoder else None,
        "last_output_ns": last_output_ns(decoder.events) if decoder else None,
        "event_count": decoder.event_count if decoder else 0,
        "output_event_count": decoder.output_event_count if decoder else 0,
        "output_tokens": usage.output_tokens if usage is not None else None,
        "response_bytes": stream.body_bytes + stream.uncaptured_bytes,
        "updated_at": (stream.started_wall_ns + stream.last_ns) // 1000,
        **{name: getattr(opened, name, None) for name in _OPENED},
        **{name: getattr(decoder, name, None) for name in _DECODED},
        **({"operation": WEBSOCKET} if is_websocket(opened, stream.response) else {}),
    }


class OpenPartition(NamedTuple):
    """A partition of the log at one moment. Pending frames are decoded."""

    name: str
    high: int
    """Offset of the next entry."""
    streams: Sequence[OpenStream]
    """In flight."""
    reports: Sequence[Alive]
    """The newest of each incarnation in this partition."""


Phase = Literal["pre_first_output", "mid_stream"]
"""Values of `streams.error_phase`."""
PHASES: tuple[Phase, ...] = ("pre_first_output", "mid_stream")
MAX_ADVANCE_NS = 2_000_000_000
"""Interval of a tap's `Alive` records."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One stream in flight and its time without output."""

    stream_id: str
    gateway: str
    model: str | None
    """The requested model, else the one in the response."""
    client_id: str | None
    phase: Phase
    silent_ns: int
    waits_for_client: bool = False


class TapClocks:
    """What the newest `Alive` of each run of a tap worker in one partition says: its current monotonic time, and the clients that it
    waits for."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """Incarnation → (its time in the newest `Alive`, our time when we saw that)."""
        self.waiting_for_client: frozenset[str] = frozenset()

    def update(self, taps: Iterable[Alive], at_ns: int) -> None:
        """`taps`: the newest `Alive` of each incarnation. `at_ns`: our monotonic time."""
        taps = list(taps)
        self.waiting_for_client = waiting_for_client(taps)
        seen = self._seen
        self._seen = {
            # A repeated report keeps its first time: otherwise its clock would go back at each update.
            alive.incarnation: known
            if (known := seen.get(alive.incarnation)) is not None and known[0] == alive.mono_ns
            else (alive.mono_ns, at_ns)
            for alive in taps
        }

    def now_ns(self, incarnation: str, at_ns: int) -> int | None:
        """The incarnation's monotonic time at our time `at_ns`. None if it has sent no `Alive`."""
        seen = self._seen.get(incarnation)
        return seen[0] + min(at_ns - seen[1], MAX_ADVANCE_NS) if seen is not None else None


def silences(streams: Iterable[OpenStream], clocks: TapClocks, at_ns: int) -> list[Silence]:
    """The silence of each stream that is expected to generate output. Pending frames must be decoded first."""
    now_ns: dict[str, int | None] = {}
    found = []
    for stream in streams:
        opened, decoder = stream.opened, stream.decoder
        if opened is None or stream.incomplete or not opened.gateway:
            continue
        if opened.incarnation not in now_ns:
            now_ns[opened.incarnation] = clocks.now_ns(opened.incarnation, at_ns)
        tap_ns = now_ns[opened.incarnation]
        if tap_ns is None or (decoder is not None and decoder.terminal_ns is not None):
            continue
        operation = (decoder.operation if decoder is not None else None) or operation_of(opened.path)
        if operation not in INFERENCE or is_websocket(opened, stream.response):
            continue
        last_ns = last_output_ns(decoder.events) if decoder is not None else None
        response_model = decoder.response_model if decoder is not None else None
        found.append(
            Silence(
                stream.stream_id,
                opened.gateway,
                stream.request.model or response_model,
                opened.client_id,
                PHASES[last_ns is not None],
                max(0, tap_ns - opened.mono_ns - (last_ns or 0)),
                _waits(stream, clocks.waiting_for_client),
            )
        )
    return found


def longest(found: Iterable[Silence]) -> Mapping[tuple[str, str | None, Phase], tuple[int, int]]:
    """(number of streams, longest silence in ns) by gateway, model and phase."""
    groups: dict[tuple[str, str | None, Phase], tuple[int, int]] = {}
    for one in found:
        key = (one.gateway, one.model, one.phase)
        streams, silent_ns = groups.get(key, (0, 0))
        groups[key] = (streams + 1, max(silent_ns, one.silent_ns))
    return groups

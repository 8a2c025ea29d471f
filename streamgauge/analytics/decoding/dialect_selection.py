"""Select the dialect that decodes a stream: first by the request, then by the first events.

Dialects score the request (`Dialect.claims`) and events (`Dialect.recognises`); the highest score wins, and a tie goes to the
name that sorts first. Selection is settled by an event with a score of at least `CERTAIN`, or after `MAX_FIRST_EVENTS` events
or `MAX_FIRST_BYTES`. Without a dialect the stream is `unknown`: bytes, events and times are still measured,
and `UnknownReader` finds errors labelled as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter

from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo
from streamgauge.analytics.dialects.error_bodies import error_in
from streamgauge.analytics.dialects.events import DecodedEvent, RawEvent
from streamgauge.analytics.dialects.tolerant_json import json_or_none

CERTAIN = 5
"""An event with this score settles the selection."""
LIKELY = 3
"""A claim below this is dropped when no event confirms it."""
CERTAIN_CLAIM = 10
"""A body that was not streamed does not outweigh this claim of a protocol that carries any JSON."""
MAX_FIRST_EVENTS = 16
MAX_FIRST_BYTES = 2**20


class DialectSelector:
    """Selects the dialect of one stream."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self.exchange = exchange
        request = exchange.method, exchange.path, exchange.host, exchange.rpc_method
        self.dialect, self._claim = _select_by_request(*request, tuple(exchange.request_headers))
        self.settled = False
        self.confirmed = False
        """The dialect recognised an event."""
        self.first_events: Sequence[RawEvent] = ()
        """Dispatched events so far; empty once selection is settled. Decode them again when `dialect` changes."""
        self._first_bytes = 0

    def consider(self, events: Sequence[RawEvent], *, dispatched: bool = True) -> None:
        """Score the next events. `dispatched=False`: they are not events of the stream, so they are not kept."""
        for count, event in enumerate(events, len(self.first_events) + 1):
            certain = self._score(event) >= CERTAIN
            self._first_bytes += len(event.data)
            if certain or count > MAX_FIRST_EVENTS or self._first_bytes > MAX_FIRST_BYTES:
                self.settle()
                return
        if dispatched:
            self.first_events = [*self.first_events, *events]

    def settle(self) -> None:
        """End the selection. Drop a dialect that was selected by an ambiguous path and that no event confirmed."""
        self.settled = True
        self.first_events = ()
        if not self.confirmed and self._claim < LIKELY:
            self.dialect = None

    def consider_body(self, body: bytes) -> None:
        """Select by a body that was not streamed."""
        if self.dialect is not None and (self._claim >= CERTAIN_CLAIM or self.dialect.recognises("", body)):
            return
        scores = [(dialect.recognises("", body), dialect) for dialect in all_dialects()]
        score, dialect = max(scores, key=itemgetter(0))
        if score >= CERTAIN:
            self.dialect = dialect

    def _score(self, event: RawEvent) -> int:
        """Select the dialect that recognises this event best; return its score."""
        if not event.data or event.data.strip() == b"[DONE]":
            return 0
        current = self.dialect
        score = current.recognises(event.name, event.data) if current is not None else 0
        if current is not None and score >= CERTAIN:
            self.confirmed = True
            return score
        best, best_total = current, score and score + self._claim
        for dialect in all_dialects():
            event_score = dialect.recognises(event.name, event.data)
            if event_score < LIKELY <= self._claim and not score:
                continue  # an event name that many dialects share (`error`, `ping`) does not outweigh the path
            claim = dialect.claims(self.exchange) if event_score else 0
            if event_score and event_score + claim > best_total:
                best, best_total, score, self._claim = dialect, event_score + claim, event_score, claim
        self.dialect = best
        self.confirmed |= best_total > 0
        return score


# Every stream asks, but requests are few: the same path, host and header names.
@lru_cache(4096)
def _select_by_request(
    method: str, path: str, host: str, rpc_method: str, header_names: tuple[str, ...]
) -> tuple[Dialect | None, int]:
    """The dialect with the highest claim, and the claim; (None, 0) when there is none."""
    headers = dict.fromkeys(header_names, "")
    exchange = ExchangeInfo(
        method=method, path=path, host=host, request_headers=headers, rpc_method=rpc_method
    )
    claims = [(dialect.claims(exchange), dialect) for dialect in all_dialects()]
    claim, dialect = max(claims, key=itemgetter(0))
    return (dialect, claim) if claim else (None, 0)


UNKNOWN = "unknown"
"""Value of `streams.dialect` without a dialect."""


class UnknownReader:
    """Decodes pings and labelled errors of a stream without a dialect. Every other event is `other`."""

    def read(self, name: str, data: bytes) -> DecodedEvent:
        if name == "ping":
            return DecodedEvent(kind="ping")
        if b"error" in data[:65536] or name == "error":
            value = json_or_none(data)
            error = error_in(value)
            if error is None and name == "error":
                error = error_in({"error": value if value else data.decode("utf-8", "replace")[:4096]})
            if error is not None:
                return DecodedEvent(kind="error", error=error)
        return DecodedEvent()

    def read_body(self, body: bytes) -> list[DecodedEvent]:
        return [self.read("", body)] if body.lstrip()[:1] == b"{" else []

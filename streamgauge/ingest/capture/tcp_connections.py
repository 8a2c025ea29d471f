"""The TCP connections in a sequence of packets. No I/O, no clock: the packets have the time.

- A connection is known from its SYN, or from the first packet that begins like an HTTP request. What came before is not recorded.
- Missing bytes are given up when their receiver has acknowledged them and `_GRACE_NS` have passed, because capturing may reorder
  packets a little; or when too much waits for them. Without the acknowledgement they may still be sent again.
- Bytes of the server wait for those of the client that it had received before, because packets may be captured in another order.
- TLS, HTTP/2 and other protocols cannot be read. Their connections are counted.
- Memory is bounded. Connections above the limits are dropped, the longest idle ones or those with the most bytes first, and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from streamgauge.ingest.capture.exchanges import EVICTED, Exchanges
from streamgauge.ingest.capture.tcp_packets import ACK, FIN, RST, SYN, Segment, address, opposite, tcp_segment
from streamgauge.ingest.capture.tcp_reassembly import (
    CLOSED,
    ESTABLISHED,
    INACTIVE,
    MAX_AHEAD_BYTES,
    PARTIAL,
    RESET,
    Endpoint,
)
from streamgauge.ingest.http1.heads import BadRequest, other_protocol
from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.listening import join_address
from streamgauge.ingest.metrics import CAPTURE, FAMILIES
from streamgauge.ingest.recording.recorder import Recorders

MAX_CONNECTIONS = 65_536
MAX_HELD_BYTES = 256 * 2**20
"""Bytes of all connections that wait for others."""
_GRACE_NS = 10_000_000
_SWEEP_NS = 1_000_000_000
_CLOSED_NS, _IDLE_NS = 10_000_000_000, 600_000_000_000
"""How long a closed connection, and one that has no exchange, is remembered."""
_MAX_NS = 2**61
_FLAGS, _FROM_CLIENT, _DATA, _GAP = FIN | SYN | RST | ACK, 0x100, 0x200, 0x400
_REQUEST = re.compile(rb"[A-Z]{3,16} (?:/|\*|https?://)[\x21-\x7e]* ?")
_TLS = re.compile(rb"[\x14-\x17]\x03[\x00-\x04]")


class _Connection:
    def __init__(self, recorders: Recorders, client_source: bytes) -> None:
        self.client_source = client_source
        self.client, self.server = Endpoint(), Endpoint()
        host, port = address(opposite(client_source))
        server = Upstream(join_address(host, port), "http", host, port, "")
        self.exchanges = Exchanges(recorders, server, self.server)
        self.seeks_request = True
        """The next request is found by its start: nothing is known of the client's bytes before it."""
        self.ignored = False
        self.window_is_open = True
        self.gap_since_ns = self.last_ns = self.held_bytes = 0
        self.early: list[tuple[bytes, int]] = []
        """Bytes of the server that answer missing ones of the client, with their times."""
        self.early_bytes = 0
        self.history = ""
        """A letter for each kind of packet, once, as in Zeek: `s` SYN, `h` SYN with ACK, `a` only ACK, `d` data, `f` FIN, `r` RST, `g`
        bytes are lost. A capital is the client's."""
        self.seen = set[int]()

    def __repr__(self) -> str:
        host, port = address(self.client_source)
        return f"<{join_address(host, port)} {self.history}: client {self.client}, server {self.server}>"

    @property
    def closed(self) -> bool:
        states = self.client.state, self.server.state
        return RESET in states or states == (CLOSED, CLOSED)

    def note(self, kind: int) -> None:
        """Add a kind of packet to the history: the flags FIN, SYN, RST and ACK, `_DATA` and `_FROM_CLIENT`."""
        self.seen.add(kind)
        flags = (SYN | ACK, "h"), (SYN, "s"), (_DATA, "d"), (FIN, "f"), (RST, "r"), (_GAP, "g"), (ACK, "a")
        letter = next((letter for flag, letter in flags if kind & flag == flag), "")
        letter = letter.upper() if kind & _FROM_CLIENT else letter
        if letter not in self.history:
            self.history += letter

    def answer(self) -> None:
        """Take the bytes of the server whose turn it is now."""
        if self.seeks_request or not self.client.missing_bytes:
            early, self.early, self.early_bytes = self.early, [], 0
            for data, at_ns in early:
                self.exchanges.server_data(data, at_ns)


class Connections:
    """All connections of one source of packets."""

    def __init__(self, recorders: Recorders, ports: Collection[int] = ()) -> None:
        """`ports`: record only servers that listen there. Empty: all."""
        self._recorders = recorders
        self._ports = frozenset(ports)
        self._by_source: dict[bytes, tuple[_Connection, bool]] = {}
        """By the addresses of each direction; with whether it is the client's."""
        self.other_ports: set[int] = set()
        """Of servers that are not recorded."""
        self.unknown_links: Counter[int] = Counter()
        """Packets by their link type, if it is not read."""
        self._held_bytes = 0
        self._sweep_at_ns = 0
        self.counters = {name.removeprefix(CAPTURE): 0 for name in FAMILIES if name.startswith(CAPTURE)}

    def packet(self, at_ns: int, link: int, data: bytes) -> None:
        """Take one packet. Never raises for bad data."""
        self.counters["packets"] += 1
        segment = tcp_segment(link, data)
        if isinstance(segment, str):
            self.counters[segment] += 1
            if segment == "packets_unknown_link":
                self.unknown_links[link] += 1
            return
        if not 0 <= at_ns < _MAX_NS:
            self.counters["packets_untimed"] += 1
            return
        if at_ns >= self._sweep_at_ns:
            self.sweep(at_ns)
        found = self._by_source.get(segment.source)
        if found is None or (segment.flags & SYN and self._is_new(segment, *found)):
            found = self._open(segment)
            if found is None:
                return
        try:
            self._take(found[0], found[1], segment, at_ns)
        except Exception as e:  # a bug; the other connections go on
            self._recorders.buffer.failures.count(e)
            self._evict([found[0]])

    def stop(self) -> None:
        """The packets end here."""
        for connection in self._all():
            self._give_up(connection)
            connection.exchanges.stop()
            self._forget(connection)

    # --- which connection

    def _is_new(self, segment: Segment, connection: _Connection, from_client: bool) -> bool:
        """Whether a SYN begins another connection with the same addresses."""
        stream = connection.client if from_client else connection.server
        if stream.state == INACTIVE or stream.first_seq == segment.seq + 1 & 0xFFFFFFFF:
            return False
        self._give_up(connection)
        connection.exchanges.stop()
        self._forget(connection)
        return True

    def _open(self, segment: Segment) -> tuple[_Connection, bool] | None:
        """The connection that a packet begins; None if it says nothing of one."""
        source, other = segment.source, opposite(segment.source)
        ports = int.from_bytes(source[-4:-2]), int.from_bytes(source[-2:])
        is_other_port = bool(self._ports) and self._ports.isdisjoint(ports)
        self.counters["packets_other_ports"] += is_other_port
        is_tls = _TLS.match(segment.payload)
        if segment.flags & SYN:
            from_client = not segment.flags & ACK
        elif is_tls or _REQUEST.match(segment.payload):
            from_client = True
        else:
            self.counters["packets_without_start"] += not is_other_port
            return None
        client_source = source if from_client else other
        port = int.from_bytes(client_source[-2:])
        if self._ports and port not in self._ports:
            self.other_ports.add(port)
            return None
        if len(self._by_source) >= 2 * MAX_CONNECTIONS:
            self._evict(sorted(self._all(), key=lambda one: one.last_ns)[: MAX_CONNECTIONS // 16])
        connection = _Connection(self._recorders, client_source)
        self.counters["connections"] += 1
        self._by_source[client_source] = connection, True
        self._by_source[other if from_client else source] = connection, False
        if not segment.flags & SYN and is_tls:
            self._ignore(connection, "connections_tls")
        return connection, from_client

    def _forget(self, connection: _Connection) -> None:
        self.counters["connections_without_request"] += not (connection.ignored or connection.exchanges.count)
        self._held_bytes -= connection.held_bytes
        connection.held_bytes = 0
        self._by_source.pop(connection.client_source, None)
        self._by_source.pop(opposite(connection.client_source), None)

    def _all(self) -> list[_Connection]:
        return [connection for connection, from_client in self._by_source.values() if from_client]

    def _ignore(self, connection: _Connection, counter: str) -> None:
        self.counters[counter] += 1
        connection.ignored = True

    # --- the packets of a connection

    def _take(self, connection: _Connection, from_client: bool, segment: Segment, at_ns: int) -> None:
        now_ns = connection.last_ns = max(at_ns, connection.last_ns)
        if connection.ignored:
            if segment.flags & (FIN | RST):
                connection.client.state = RESET
            return
        if connection.gap_since_ns:
            self._give_up(connection, now_ns)
        client, server, exchanges = connection.client, connection.server, connection.exchanges
        mine, other = (client, server) if from_client else (server, client)
        _, seq, ack, flags, window, payload = segment
        kind = flags & _FLAGS | (_DATA if payload else 0) | (_FROM_CLIENT if from_client else 0)
        if kind not in connection.seen:
            connection.note(kind)
        if flags & SYN:
            if mine.state == INACTIVE:
                mine.start(seq + 1 & 0xFFFFFFFF, ESTABLISHED)
                connection.seeks_request = connection.seeks_request and not from_client
            seq += 1
        if flags & ACK:
            if other.state == INACTIVE and (from_client or not payload):
                # The packet that would say where the other side begins is missing.
                other.start(ack, PARTIAL)
                connection.seeks_request = connection.seeks_request and from_client
            if other.state != INACTIVE:
                other.acknowledged = max(other.acknowledged, other.position(ack))
            if from_client:
                exchanges.acknowledged(now_ns)
        if payload:
            self._payload(connection, from_client, seq, payload, now_ns)
        if flags & FIN and mine.state != INACTIVE:
            mine.end(seq + len(payload) & 0xFFFFFFFF)
        if connection.early:
            connection.answer()
        if client.state == CLOSED:
            exchanges.client_ended(now_ns)
        if server.state == CLOSED and not connection.early:
            exchanges.server_ended(now_ns)
        if flags & RST:
            self._give_up(connection)
            mine.state = RESET
            exchanges.reset(now_ns, by_client=from_client)
        elif from_client and (window > 0) != connection.window_is_open:
            connection.window_is_open = window > 0
            exchanges.client_window(window > 0, now_ns)
        held_bytes = client.ahead_bytes + server.ahead_bytes + connection.early_bytes
        if (held_bytes or server.at < server.acknowledged or client.at < client.acknowledged) and (
            client.missing_bytes or server.missing_bytes
        ):
            connection.gap_since_ns = connection.gap_since_ns or now_ns
            self._give_up(connection, now_ns)
        else:
            connection.gap_since_ns = 0
        held_bytes += exchanges.held_bytes
        if held_bytes != connection.held_bytes:
            self._held_bytes += held_bytes - connection.held_bytes
            connection.held_bytes = held_bytes
            if self._held_bytes > MAX_HELD_BYTES:
                self._evict_largest()

    def _payload(
        self, connection: _Connection, from_client: bool, seq: int, payload: bytes, now_ns: int
    ) -> None:
        client, exchanges = connection.client, connection.exchanges
        stream = client if from_client else connection.server
        if from_client and connection.seeks_request:
            if not _REQUEST.match(payload):
                return
            stream.start(seq, PARTIAL)
            connection.seeks_request = False
        if stream.state == INACTIVE:
            return
        inconsistent = stream.inconsistent
        data = stream.take(seq, payload)
        self.counters["segments_inconsistent"] += stream.inconsistent - inconsistent
        if not data:
            return
        if not from_client and not connection.early and client.at >= client.acknowledged:
            exchanges.server_data(data, now_ns)
        elif not from_client:
            connection.early.append((data, now_ns))
            connection.early_bytes += len(data)
        else:
            try:
                exchanges.client_data(data, now_ns)
            except BadRequest:
                if exchanges.count:
                    exchanges.client_gap(0)
                    connection.seeks_request = True
                else:
                    refusal = other_protocol(data)
                    kind = "other" if refusal is None else refusal.refusal
                    self._ignore(connection, f"connections_{kind}")

    # --- gaps

    def _give_up(self, connection: _Connection, now_ns: int | None = None) -> None:
        """Lose what is missing, as far as it cannot arrive any more. Only this method decides that packets were lost.

        `now_ns`: None at the end of the connection, when nothing more arrives."""
        client, server, exchanges = connection.client, connection.server, connection.exchanges
        most_bytes = max(client.ahead_bytes, server.ahead_bytes, connection.early_bytes)
        if (
            now_ns is not None
            and most_bytes <= MAX_AHEAD_BYTES
            and now_ns - connection.gap_since_ns <= _GRACE_NS
        ):
            return
        at_once = now_ns is None
        if not connection.seeks_request and (size_bytes := client.lost_bytes(at_once=at_once)):
            self._count_gap(connection, size_bytes, _FROM_CLIENT)
            connection.seeks_request = True
            client.skip_gap()
            exchanges.client_gap(size_bytes)
        connection.answer()
        if size_bytes := server.lost_bytes(at_once=at_once):
            self._count_gap(connection, size_bytes, 0)
            exchanges.server_gap(size_bytes)
        connection.gap_since_ns = 0

    def _count_gap(self, connection: _Connection, size_bytes: int, sender: int) -> None:
        self.counters["gaps"] += 1
        self.counters["gap_bytes"] += size_bytes
        connection.note(_GAP | sender)

    # --- limits

    def sweep(self, now_ns: int) -> None:
        """Give up gaps of silent connections, and forget those that are over."""
        self._sweep_at_ns = now_ns + _SWEEP_NS
        for connection in self._all():
            idle_ns = now_ns - connection.last_ns
            if connection.gap_since_ns:
                self._give_up(connection, now_ns)
            limit_ns = _CLOSED_NS if connection.closed else _IDLE_NS
            if idle_ns > limit_ns and not connection.exchanges.is_open:
                connection.exchanges.stop()
                self._forget(connection)

    def _evict(self, connections: Collection[_Connection]) -> None:
        for connection in connections:
            self.counters["connections_evicted"] += connection.exchanges.is_open
            connection.exchanges.lose_all(EVICTED)
            self._forget(connection)

    def _evict_largest(self) -> None:
        by_size = sorted(self._all(), key=lambda one: one.held_bytes, reverse=True)
        while by_size and self._held_bytes > MAX_HELD_BYTES // 2:
            self._evict(by_size[:1])
            del by_size[0]

"""Compare measured streams with the simulator's ground truth. Pure, except `streams_since`.

`check_measurements` takes the ledger, rows of `streams`, and optionally the clients' own measurements. It returns one
`Discrepancy` per difference. If there are none:

- Each simulated request has exactly one row in `streams`, and no other POST has one.
- Outcome, error type and phase, status, finish reason, ids and trace are as simulated.
- Events, output events, comments, malformed events, characters, tool calls, bytes and tokens are equal. After a reset or an
  abort they may be smaller, because not all sent bytes arrive.
- `ttft`, `ttfo` and `last_output`, measured from t0, are at least the simulator's times from the end of the request: t0
  precedes the arrival of the request, and an arrival follows its write. Tap and simulator must run on one machine, because
  both use CLOCK_MONOTONIC.
- No client measured a shorter TTFT, from the start of its request, than the tap measured from t0.
- Measured times exceed their minimum by at most `Bounds`.

Values that the simulator did not send, such as usage, are not compared. `comparison_table` is the table at the end of a demo.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from streamgauge.analytics.measures.stream_latency import quantile
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.schema.outcomes import NOT_ERRORS
from streamgauge.simulator.ledger import LedgerRow
from streamgauge.simulator.traffic import ClientRow

Row = Mapping[str, Any]
"""A row of `streams`, by column name."""

CLOCK_GRANULARITY_NS = 1_000
STREAMING = (200, 101)
"""Status codes of streams."""
_MIN_FOR_MEDIAN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Largest differences between measured and simulated times. A discrepancy states the exceeded bound."""

    ttft_each_ns: int = 5_000_000_000
    """Delay of one TTFT by connecting, forwarding and scheduling on a busy machine."""
    ttft_median_ns: int = 250_000_000
    """Median delay of TTFT: about 1 ms on an idle machine. The bound allows for a machine without a free core."""
    span_each_ns: int = 5_000_000_000
    """Difference of the time from first to last output of one stream, in either direction."""
    span_median_ns: int = 100_000_000


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One difference between measured and simulated."""

    kind: str
    """`missing`, `doubled`, `unknown`, `open`, `span`, `median …`, `client …`, or the column that differs."""
    request_id: str
    simulated: object
    measured: object
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.request_id}: {self.kind}: simulated {self.simulated!r}, measured {self.measured!r}"
        return f"{text} ({self.note})" if self.note else text


def check_measurements(
    ledger: Iterable[LedgerRow],
    streams: Iterable[Row],
    *,
    clients: Iterable[ClientRow] | None = None,
    bounds: Bounds | None = None,
    tap_may_lose: bool = False,
) -> list[Discrepancy]:
    """Return all discrepancies, in the order of the requests.

    `tap_may_lose` accepts missing streams and the outcome `tap_lost`, for tests that kill the tap.
    """
    bounds = bounds or Bounds()
    clients_by_id = {c.request_id: c for c in clients or ()}
    measured = _measured(streams)
    found: list[Discrepancy] = []
    ttft_late: list[int] = []
    span_off: list[int] = []
    for request_id, in_order, streams_of in _by_request(ledger, measured, clients_by_id):
        client = clients_by_id.get(request_id)
        if len(streams_of) != len(in_order):
            if len(streams_of) > len(in_order) or not tap_may_lose:
                kind = "missing" if len(streams_of) < len(in_order) else "doubled"
                found.append(Discrepancy(kind, request_id, len(in_order), len(streams_of)))
            continue
        for row, stream in zip(in_order, streams_of, strict=True):
            comparison = _Comparison(row, stream, client, bounds)
            found += comparison.compare(tap_may_lose)
            if comparison.ttft_late_ns is not None:
                ttft_late.append(comparison.ttft_late_ns)
            if comparison.span_off_ns is not None:
                span_off.append(comparison.span_off_ns)
    found += _unknown(measured, clients_by_id)
    found += _medians(ttft_late, span_off, bounds)
    return found


def _measured(streams: Iterable[Row]) -> dict[str | None, list[Row]]:
    measured: dict[str | None, list[Row]] = defaultdict(list)
    for stream in streams:
        if stream["http_status"] != 101 or stream["response_index"] is not None:  # else a socket
            measured[stream["request_id"]].append(stream)
    return measured


def _by_request(
    ledger: Iterable[LedgerRow], measured: dict[str | None, list[Row]], clients_by_id: Mapping[str, ClientRow]
) -> Iterator[tuple[str, list[LedgerRow], list[Row]]]:
    """Request id, rows, and streams in the same order. They differ in number if not each has been measured once. Takes the streams
    from `measured`."""
    simulated: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger:
        simulated[row.request_id].append(row)
    for request_id, rows in simulated.items():
        rows.sort(key=lambda r: (r.response_index or 0, r.received_ns))
        streams = measured.pop(request_id, [])
        streams.sort(key=lambda s: (s["response_index"] or 0, s["started_at"]))
        if rows[0].response_index is not None:
            rows, streams = _of_socket(rows, streams, clients_by_id.get(request_id))
        yield request_id, rows, streams


def pairs(
    ledger: Iterable[LedgerRow], streams: Iterable[Row], clients: Iterable[ClientRow] = ()
) -> list[tuple[LedgerRow, Row]]:
    """Each simulated response with its stream, of the requests whose responses were measured exactly once."""
    clients_by_id = {client.request_id: client for client in clients}
    return [
        pair
        for _, rows, found in _by_request(ledger, _measured(streams), clients_by_id)
        if len(rows) == len(found)
        for pair in zip(rows, found, strict=True)
    ]


def _of_socket(
    rows: list[LedgerRow], streams: list[Row], client: ClientRow | None
) -> tuple[list[LedgerRow], list[Row]]:
    """The answers of a socket in one order. It may end before an answer to speech begins, or after the client asked for one."""
    if len(streams) < len(rows):
        begun = [row.exact and row.first_byte_ns is not None for row in rows]
        rows = [row for row, is_begun in zip(rows, begun, strict=True) if is_begun or not row.asked_by_server]
    if client is not None and client.aborted:
        del streams[len(rows) :]
    ids = {stream["response_id"]: stream for stream in streams if stream["response_id"] is not None}
    rest = iter(
        [stream for stream in streams if stream["response_id"] not in {row.response_id for row in rows}]
    )
    paired = [ids.get(row.response_id) or next(rest, None) for row in rows]
    return rows, streams if None in paired else [stream for stream in paired if stream is not None]


def _unknown(
    measured: Mapping[str | None, Sequence[Row]], clients_by_id: Mapping[str, ClientRow]
) -> Iterable[Discrepancy]:
    """Streams without a simulated request. A client may abort, or the tap refuse, before it is forwarded."""
    for request_id, streams in measured.items():
        client = clients_by_id.get(request_id or "")
        for stream in streams:
            before_upstream = client is not None and client.aborted and stream["outcome"] == "client_abort"
            is_request = stream["method"] == "POST" or stream["response_index"] is not None
            if is_request and not before_upstream and stream["outcome"] != "refused":
                note = f"stream {stream['stream_id']} was not simulated"
                yield Discrepancy("unknown", request_id or "?", None, stream["outcome"], note)


def _medians(ttft_late: Sequence[int], span_off: Sequence[int], bounds: Bounds) -> Iterable[Discrepancy]:
    for kind, values, bound in (
        ("median ttft", ttft_late, bounds.ttft_median_ns),
        ("median span", [abs(v) for v in span_off], bounds.span_median_ns),
    ):
        if len(values) >= _MIN_FOR_MEDIAN and (middle := int(median(values))) > bound:
            yield Discrepancy(kind, f"all {len(values)} streams", 0, middle, f"ns; more than {bound}")


class _Comparison:
    """Compares one request with one row of `streams`."""

    def __init__(self, row: LedgerRow, stream: Row, client: ClientRow | None, bounds: Bounds) -> None:
        self.row, self.stream, self.client, self.bounds = row, stream, client, bounds
        self.found: list[Discrepancy] = []
        self.ttft_late_ns: int | None = None
        self.span_off_ns: int | None = None
        self.aborted = (client is not None and client.aborted) or row.client_left_ns is not None
        self.exact = row.exact and not self.aborted
        """Whether all sent bytes must have arrived."""

    def compare(self, tap_may_lose: bool) -> list[Discrepancy]:
        row, stream = self.row, self.stream
        if row.end_ns is None:
            self._differs("open", "not complete", stream["outcome"])
            return self.found
        if tap_may_lose and stream["outcome"] == "tap_lost":
            return self.found
        self._identity()
        same_outcome = self._outcome()
        if same_outcome and row.streamed and row.status in STREAMING:
            self._counts()
            self._times()
        if same_outcome:
            self._tokens()
        self._transparency()
        return self.found

    def _identity(self) -> None:
        row, stream = self.row, self.stream
        self._equal("method", row.method)
        if row.trace_id is not None:
            self._equal("trace_id", row.trace_id)
            self._equal("span_id", row.span_id, when=row.response_index is None)  # else that of the socket
        if row.speaker is None:
            return
        # Answers to speech begin later than they were planned.
        self._equal(
            "response_index", row.response_index, when=not row.asked_by_server and row.speaker != "realtime"
        )
        # If the client leaves before the response headers, status and `streamed` are unknown.
        has_status = stream["http_status"] is not None or self.exact
        self._equal("streamed", row.streamed, when=has_status and row.status in STREAMING)
        self._equal("http_status", row.status, when=has_status)
        if stream["dialect"] == "unknown" and row.status in STREAMING and row.output_events and self.exact:
            self._differs("dialect", row.speaker, stream["dialect"])

    def _outcome(self) -> bool:
        """Whether the outcomes agree. If not, the other columns are not compared."""
        row, outcome = self.row, self.stream["outcome"]
        allowed = {row.expected_outcome}
        if self.aborted:
            # The disconnect may reach the tap before the last bytes do.
            allowed.add("client_abort")
        if outcome not in allowed:
            self._differs("outcome", row.expected_outcome, outcome, f"fault {row.fault}")
            return False
        if outcome != row.expected_outcome:
            return True
        if outcome == "ok":
            self._equal("error_type", None)
            # A disconnect after the terminal changes only the phase.
            self._equal(
                "error_phase", None, when=not (self.aborted and self.stream["error_phase"] == "post_finish")
            )
        else:
            # A client may leave between the head and the body of an error response, whose type is in the body.
            self._equal("error_type", row.error_type, when=row.error_type is not None and self.exact)
            self._equal("error_phase", row.error_phase, when=self.exact)
        return True

    def _counts(self) -> None:
        row = self.row
        for column, value in (
            ("output_event_count", row.output_events),
            ("comment_count", row.comments),
            ("malformed_events", row.malformed_events),
            ("reasoning_chars", row.reasoning_chars),
            ("response_bytes", row.body_bytes),
        ):
            self._count(column, value)
        events = self.stream["event_count"] or 0
        if self.exact and events not in (row.events, row.events + row.unframed):
            self._differs("event_count", row.events, events)
        elif events > row.events + row.unframed:
            self._differs("event_count", row.events, events, "more than was sent")
        if not row.refusal_chars and row.choices == 1:
            self._count("text_chars", row.text_chars)
        if self.exact and row.expected_outcome == "ok":
            self._count("tool_call_count", row.tool_calls)
            self._equal("finish_reason", row.finish_reason, when=row.finish_reason is not None)
        self._equal("response_id", row.response_id, when=self.exact and row.expected_outcome == "ok")

    def _count(self, column: str, value: int) -> None:
        measured = self.stream[column]
        if self.exact:
            if (measured or 0) != value:
                self._differs(column, value, measured)
        elif (measured or 0) > value:
            self._differs(column, value, measured, "more than was sent")

    def _tokens(self) -> None:
        row, usage = self.row, self.row.usage
        if usage is None or not row.usage_final or not self.exact:
            return
        if row.warm_up:  # it reports no output
            return
        for column in ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens"):
            self._equal(column, getattr(usage, column))
        if self.stream["token_source"] not in ("usage", "usage_delta"):
            self._differs("token_source", "usage", self.stream["token_source"])

    def _times(self) -> None:
        row, stream = self.row, self.stream
        for column, at_ns in (
            ("ttfb_ns", row.first_byte_ns),
            ("ttfc_ns", row.first_event_ns),
            ("ttft_ns", row.first_output_ns),
            ("ttfo_ns", row.first_answer_ns),
            ("last_output_ns", row.last_output_ns if self.exact else None),
        ):
            measured = stream[column]
            if at_ns is None or (measured is None and not self.exact):
                continue
            if measured is None:
                self._differs(column, at_ns - row.complete_ns, None)
                continue
            late_ns = measured - (at_ns - row.complete_ns)
            # What the server began has t0 at the arrival of its own message, whose delay is not known.
            early_ns = self.bounds.span_each_ns if row.asked_by_server else CLOCK_GRANULARITY_NS
            if late_ns < -early_ns:
                self._differs(column, at_ns - row.complete_ns, measured, "earlier than sent: impossible")
            elif late_ns > self.bounds.ttft_each_ns:
                note = f"more than {self.bounds.ttft_each_ns} ns late"
                self._differs(column, at_ns - row.complete_ns, measured, note)
            if column == "ttft_ns":
                self.ttft_late_ns = late_ns
                client = self.client if row.response_index is None else None
                seen_ns = client.ttft_ns(row) if client is not None else None
                if seen_ns is not None and measured > seen_ns + CLOCK_GRANULARITY_NS:
                    self._differs(
                        "client ttft", seen_ns, measured, "later than the client received it: impossible"
                    )
        if self.exact:
            self._gaps()

    def _gaps(self) -> None:
        row, stream = self.row, self.stream
        simulated_ns = row.span_ns
        if simulated_ns is None or stream["ttft_ns"] is None or stream["last_output_ns"] is None:
            return
        span_ns = stream["last_output_ns"] - stream["ttft_ns"]
        self.span_off_ns = span_ns - simulated_ns
        if abs(self.span_off_ns) > self.bounds.span_each_ns:
            self._differs("span", simulated_ns, span_ns, f"ns; more than {self.bounds.span_each_ns} apart")
        n, sent_itl_ns = row.visible_tokens or 0, row.itl_ns
        if row.usage is None or not row.usage_final or sent_itl_ns is None:
            return
        itl_ns = stream["itl_ns"]
        waits_ns = (stream["waited_client_ns"] or 0) + (stream["tap_delay_ns"] or 0)
        if itl_ns is None or not 0 <= span_ns - itl_ns * (n - 1) + 1_000 + n <= waits_ns + 2 * (1_000 + n):
            note = f"(last - first output) / (N - 1) with N = {n}, minus waits of at most {waits_ns} ns"
            self._differs("itl_ns", sent_itl_ns, itl_ns, note)

    def _transparency(self) -> None:
        """Check that the client received exactly the bytes that were sent."""
        row, client = self.row, self.client
        if client is None or not self.exact or row.speaker is None or row.body_sha256 is None:
            return
        if row.response_index is not None:  # the client measures the socket
            return
        if row.status is None:  # the tap generated the response
            return
        if client.body_bytes != row.body_bytes:
            self._differs("client bytes", row.body_bytes, client.body_bytes)
        elif client.body_sha256 is not None and client.body_sha256 != row.body_sha256:
            self._differs("client body", row.body_sha256, client.body_sha256)

    def _equal(self, column: str, value: object, *, when: bool = True) -> None:
        if when and self.stream[column] != value:
            self._differs(column, value, self.stream[column])

    def _differs(self, kind: str, simulated: object, measured: object, note: str = "") -> None:
        details = ", ".join(
            filter(None, (note, f"{self.row.speaker} {self.row.model}", f"fault {self.row.fault}"))
        )
        self.found.append(Discrepancy(kind, self.row.request_id, simulated, measured, details))


@dataclass(frozen=True, slots=True)
class TtftOverhead:
    """Measured minus simulated TTFT. `streams` is the number of exact streams."""

    streams: int
    median_ns: int
    largest_ns: int


def ttft_overhead(compared: Iterable[tuple[LedgerRow, Row]]) -> TtftOverhead | None:
    """The time that forwarding, connecting and scheduling add to TTFT; None without exact streams."""
    late = [
        stream["ttft_ns"] - (row.first_output_ns - row.complete_ns)
        for row, stream in compared
        if row.exact and row.first_output_ns is not None and stream["ttft_ns"] is not None
    ]
    return TtftOverhead(len(late), int(median(late)), max(late)) if late else None


def report_discrepancies(
    found: Iterable[Discrepancy], limit: int = 20, write: Callable[[str], None] = print
) -> int:
    """Print the first `limit` discrepancies and counts by kind. Returns the total."""
    found = list(found)
    for discrepancy in found[:limit]:
        write(str(discrepancy))
    if len(found) > limit:
        kinds = Counter(discrepancy.kind for discrepancy in found)
        write(f"… {len(found)} in total: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))
    return len(found)


STREAM_COLUMNS = (
    "stream_id", "request_id", "method", "dialect", "started_at", "http_status", "streamed", "outcome", "error_type",
    "error_phase", "finish_reason", "response_id", "trace_id", "span_id", "ttfb_ns", "ttfc_ns", "ttft_ns", "ttfo_ns",
    "last_output_ns", "itl_ns", "waited_client_ns", "tap_delay_ns",
    "input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens",
    "token_source", "event_count", "output_event_count", "text_chars", "reasoning_chars", "tool_call_count",
    "comment_count", "response_bytes", "malformed_events", "response_index",
)  # fmt: skip
"""The columns of `streams` that `check_measurements` reads."""


def comparison_table(compared: Iterable[tuple[LedgerRow, Row]]) -> list[str]:
    """Lines with responses, errors, TTFT p50 and p95, ITL p50 and tokens per second of each model. Both sides have the same streams."""
    by_model: dict[str, list[tuple[LedgerRow, Row]]] = defaultdict(list)
    for row, stream in compared:
        if row.speaker is not None:
            by_model[row.model or "?"].append((row, stream))
    header = (
        "model", "dialect", "responses", "errors", "TTFT p50 ms", "sim", "TTFT p95 ms", "sim", "ITL p50 ms", "sim", "tok/s"
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [header, *(_line(model, by_model[model]) for model in sorted(by_model))]
    if len(by_model) > 1:
        lines.append(_line("all", [pair for pairs in by_model.values() for pair in pairs]))
    return _aligned(lines)


def _line(model: str, pairs: Sequence[tuple[LedgerRow, Row]]) -> tuple[str, ...]:
    streams = [stream for _, stream in pairs]
    dialects = sorted({stream["dialect"] or "?" for stream in streams})
    errors = sum(stream["outcome"] not in NOT_ERRORS for stream in streams)
    timed = [(row, s) for row, s in pairs if row.first_output_ns is not None and s["ttft_ns"] is not None]
    simulated_ttft_ns = [(row.first_output_ns or 0) - row.complete_ns for row, _ in timed]
    paced = [
        (sent_ns, s["itl_ns"]) for row, s in timed if s["itl_ns"] is not None and (sent_ns := row.itl_ns)
    ]
    rates = [1e9 / s["itl_ns"] for s in streams if s["itl_ns"]]
    return (
        model,
        dialects[0] if len(dialects) == 1 else f"{len(dialects)} dialects",
        str(len(pairs)),
        str(errors),
        _ms([s["ttft_ns"] for _, s in timed], 0.5),
        _ms(simulated_ttft_ns, 0.5),
        _ms([s["ttft_ns"] for _, s in timed], 0.95),
        _ms(simulated_ttft_ns, 0.95),
        _ms([itl for _, itl in paced], 0.5, 2),
        _ms([sent_ns for sent_ns, _ in paced], 0.5, 2),
        f"{median(rates):.0f}" if rates else "–",
    )


def _ms(values_ns: Iterable[float], q: float, digits: int = 0) -> str:
    found_ns = quantile(sorted(values_ns), q)
    return "–" if found_ns is None else f"{found_ns / 1e6:.{digits}f}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]  # fmt: skip
    return [text[0], "─" * len(text[0]), *text[1:]]


PAGE_ROWS = 20_000


def streams_since(tables: QueryPool, since: datetime, gateway: str | None = None) -> list[dict[str, Any]]:
    """Rows of `streams` that started at or after `since`, with `STREAM_COLUMNS`; with `gateway`, only its rows. Raises QueryError."""
    of_gateway = "" if gateway is None else f"AND gateway = '{gateway}' "
    found: list[dict[str, Any]] = []
    while True:
        page = tables.query(
            f"SELECT {', '.join(STREAM_COLUMNS)} FROM streams WHERE started_at >= TIMESTAMPTZ '{since.isoformat()}' {of_gateway}"
            f"ORDER BY started_at, stream_id LIMIT {PAGE_ROWS} OFFSET {len(found)}",
            max_rows=PAGE_ROWS,
            timeout_s=30,
        )
        found += page.to_dicts()
        if page.height < PAGE_ROWS:
            return found

"""Each answer on a WebSocket is measured like a stream, however its messages are framed, cut, compressed and read again."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.measures.open_streams import open_stream_frame
from streamgauge.analytics.storage.reconciliation import RECORDED_BY_TAP
from streamgauge.ingest.identifiers import is_answer
from streamgauge.ingest.keyed_ids import RECORDED, keyed_hash, session_hash
from streamgauge.ingest.records import NO_SEGMENTS, AnyRecord, Frames, Lost, RequestAnatomy, encode, unpack
from streamgauge.ingest.redaction.record_redactor import Redactor
from streamgauge.ingest.ship import RedactionStateFile
from streamgauge.ingest.websockets import splitter
from streamgauge.ingest.websockets.messages import Message
from streamgauge.ingest.websockets.protocols import Responses
from tests.analytics.sockets import COMPRESSIONS, MS, SOCKET, Sent, create, events, recorded
from tests.analytics.stream_records import (
    SECOND_NS,
    START_NS,
    CrashingStore,
    alive,
    in_entries,
    rows_of,
    stream_id,
)

KEY = b"k" * 32
OF_TEXT = ("output_fingerprint", "tool_fingerprint")
OF_WIRE = ("request_bytes", "response_bytes", "delivered_bytes", "client_start_ns")
"""What compression and the division into reads change."""


def rows(records: Sequence[AnyRecord]) -> list[dict[str, Any]]:
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    assert not assembler.take_failures()
    assert assembler.open_count == 0
    return rows_of(assembler)


def answers(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((row for row in found if row["connection_id"]), key=lambda row: row["response_index"])


def turn(at: int, response_id: str, *texts: str, **more: Any) -> list[Sent]:
    """A request and its answer, an event every 10 ms."""
    key = {"stream_id": more["stream_id"]} if "stream_id" in more else {}
    end = more.pop("end", "completed")
    request: list[Sent] = [(at, "client", create(**more))]
    return request + [
        (at + 100 + 10 * i, "server", event)
        for i, event in enumerate(events(response_id, texts, end=end, **key))
    ]


TWO_TURNS = [
    *turn(1000, "r0", generate=False),
    *turn(2000, "r1", "a ", "b ", "c "),
    *turn(3000, "r2", "d ", previous_response_id="r1"),
]


def test_each_answer_has_a_row_and_the_socket_has_its_own():
    found = rows(recorded(TWO_TURNS))
    warm_up, first, second = answers(found)
    assert [row["operation"] for row in (warm_up, first, second)] == ["warm_up", "chat", "chat"]
    assert [row["outcome"] for row in found] == ["ok"] * 4
    assert {row["transport"] for row in found} == {"websocket"}
    assert {row["connection_id"] for row in answers(found)} == {SOCKET}
    assert [row["response_index"] for row in answers(found)] == [0, 1, 2]
    assert (first["response_id"], first["request_model"], first["response_model"]) == ("r1", "m", "m-1")
    assert (first["output_tokens"], first["text_chars"], first["dialect"]) == (3, 6, "openai_responses")
    assert (first["ttfb_ns"], first["ttft_ns"], first["end_ns"]) == (100 * MS, 110 * MS, 140 * MS)
    assert (first["http_status"], first["streamed"], first["headers_ns"]) == (101, True, None)
    (socket,) = [row for row in found if row["stream_id"] == SOCKET]
    assert (socket["operation"], socket["dialect"], socket["response_index"]) == ("websocket", None, None)
    assert socket["end_ns"] == 1_000_000 * MS


def test_only_the_socket_is_a_stream_that_the_tap_counts() -> None:
    assembler = Assembler()
    assembler.feed("w0", 0, recorded(TWO_TURNS))
    streams = measure(assembler.take_finished())["streams"]
    counted = duckdb.sql(f"SELECT stream_id FROM streams WHERE {RECORDED_BY_TAP}").fetchall()
    assert counted == [(SOCKET,)]
    assert [is_answer(stream) for stream in streams["stream_id"]] == [True, True, True, False]
    assert rollups({"streams": streams})["stream_minutes"]["streams"].sum() == 2  # not the warm-up


def test_answer_joins_the_trace_of_its_request_else_that_of_the_socket() -> None:
    traces = {"other": "a" * 32, "same": "b" * 32}
    sent = turn(1000, "r0")
    for at, name in ((2000, "other"), (3000, "same")):
        caller = {"ws_request_header_traceparent": f"00-{traces[name]}-{'c' * 16}-00"}
        sent += turn(at, name, client_metadata=caller)
    found = rows(recorded(sent, trace_id="b" * 32, span_id="d" * 16, trace_flags=1))
    parents = [(row["trace_id"], row["parent_span_id"], row["trace_flags"]) for row in answers(found)]
    assert parents == [("b" * 32, "d" * 16, 1), ("a" * 32, "c" * 16, 0), ("b" * 32, "c" * 16, 0)]
    assert len({row["span_id"] for row in found}) == 4


def by_operation(records: Sequence[AnyRecord]) -> dict[str, tuple[str, str | None]]:
    """Operation → outcome and error type, of a socket with one answer."""
    return {row["operation"]: (row["outcome"], row["error_type"]) for row in rows(records)}


@pytest.mark.parametrize(
    ("cause", "close_by", "answer", "socket"),
    [
        ("client_left", None, "client_abort", "client_abort"),
        ("upstream_reset", None, "upstream_reset", "upstream_reset"),
        ("complete", "client", "client_abort", "ok"),
        ("complete", "server", "truncated", "ok"),
    ],
)
def test_answer_that_its_socket_ends_has_the_outcome_of_this_end(
    cause: str, close_by: Any, answer: str, socket: str
) -> None:
    records = recorded(turn(1, "r0", "a ", end=""), end=(200, cause), close_by=close_by)
    found = by_operation(records)
    assert (found["chat"][0], found["websocket"][0]) == (answer, socket)


def test_error_belongs_to_the_open_answer_or_to_the_socket() -> None:
    error = {"code": "websocket_connection_limit_reached", "type": "invalid_request_error", "message": "m"}
    event = json.dumps({"type": "error", "status": 400, "error": error}).encode()
    within = by_operation(recorded([*turn(1, "r0", "a ", end=""), (200, "server", event)]))
    assert within == {"chat": ("inband_error", error["type"]), "websocket": ("ok", None)}
    after = by_operation(recorded([*turn(1, "r0", "a "), (200, "server", event)]))
    assert after == {"chat": ("ok", None), "websocket": ("inband_error", error["type"])}


def test_conversations_of_one_socket_are_told_apart() -> None:
    sent = sorted(
        [*turn(1, "r0", "a ", "b ", stream_id="one"), *turn(2, "r1", "c ", stream_id="two")],
        key=lambda m: m[0],
    )
    first, second = answers(rows(recorded(sent)))
    assert [(r["response_id"], r["text_chars"], r["outcome"]) for r in (first, second)] == [
        ("r0", 4, "ok"), ("r1", 2, "ok"),
    ]  # fmt: skip


def test_request_sent_before_the_answer_has_ended_waits_for_its_own() -> None:
    first, second = turn(1, "r0", "a "), turn(2, "r1", "b ", "c ")
    (one, two) = answers(
        rows(recorded([first[0], second[0], *first[1:], *((at + 100, s, m) for at, s, m in second[1:])]))
    )
    assert [(r["response_id"], r["text_chars"], r["outcome"]) for r in (one, two)] == [
        ("r0", 2, "ok"), ("r1", 4, "ok"),
    ]  # fmt: skip


def test_unknown_json_is_one_answer_with_the_times_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitter, "MAX_UNKNOWN_MESSAGES", 3)
    messages: list[Sent] = [(1, "client", b'{"a": 1}'), *((2 + i, "server", b'{"b": 2}') for i in range(3))]
    (row,) = answers(rows(recorded(messages, path="/x", close_by="client", end=(20, "complete"))))
    assert (row["event_count"], row["ttfb_ns"], row["dialect"]) == (3, MS, "unknown")
    messages.append((9, "server", b'{"b": 2}'))
    (row,) = answers(rows(recorded(messages, path="/x", close_by="client", end=(20, "complete"))))
    assert (row["event_count"], row["ttfb_ns"], row["response_bytes"]) == (None, MS, 32)
    (socket,) = rows(recorded([(1, "client", b"no json"), (2, "server", b"no json")], path="/x"))
    assert (socket["operation"], socket["outcome"]) == ("websocket", "ok")


def test_answers_are_lost_at_a_gap_and_what_ended_before_stays() -> None:
    records = recorded([*turn(1, "r0", "a "), *turn(1000, "r1", "b ")])
    del records[-3]
    found = rows([alive(0), *records, alive(61)])
    assert [row["outcome"] for row in answers(found)] == ["ok", "tap_lost"]
    assert [row["outcome"] for row in found if row["stream_id"] == SOCKET] == ["tap_lost"]


WITHIN_AN_ANSWER = recorded([*turn(1, "r0", "a "), *turn(1000, "r1", "b ", "c ")])
"""The last record of its answers that is lost below is -4."""


@pytest.mark.parametrize("later", [-3, -1, 0])
@pytest.mark.parametrize("restarts", [False, True])
def test_answers_get_the_cause_of_a_gap_that_is_reported_later(
    later: int, restarts: bool, tmp_path: Path
) -> None:
    """`later`: where the report comes; 0: after the end of the socket."""
    records = [*WITHIN_AN_ANSWER]
    lost = Lost(SOCKET, records[-4].seq, records[-4].seq, "queue_full", START_NS, 9)  # type: ignore[union-attr]
    at = later % len(records) or len(records)
    records = [alive(0), *records[:-4], *records[len(records) - 3 : at], alive(5), lost, *records[at:]]
    options = {"max_held_bytes": 0} if restarts else {}
    store = CrashingStore({"w0": []}, options, folder=tmp_path if restarts else None)
    for record in records:
        store.entries["w0"].append([record])
        store.run(random.Random(1), crash=0, commit=1)
    outcome = {row["response_index"]: row["outcome"] for row in store.rows}
    assert outcome == {0: "ok", 1: "tap_lost", None: "tap_lost"}
    assert {loss["cause"] for loss in store.losses} == {"queue_full"}
    assert len({loss["stream_id"] for loss in store.losses}) == len(store.losses) == 2


def test_answers_of_a_socket_that_goes_on_wait_a_minute_for_the_cause_of_a_gap() -> None:
    assembler = Assembler()
    first = WITHIN_AN_ANSWER[:-4]
    assembler.feed("w0", 0, [alive(0), *first])
    last_ns = WITHIN_AN_ANSWER[-2].frames[0][0]  # type: ignore[union-attr]
    ended = dict[int, int]()
    for n in range(13):
        read = Frames(SOCKET, len(first) + 1 + n, [(last_ns + n, b"x")], from_client=[])
        assembler.feed("w0", n + 1, [read, alive(5 * n + 1)])
        ended[5 * n + 1] = len(assembler.take_finished())
    assert (sum(ended.values()), ended[61]) == (2, 1)
    assert assembler.take_losses()["cause"].to_list() == ["missing"]


def test_exception_in_the_splitter_is_one_loss_despite_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Responses, "from_server", poisoned(Responses.from_server))
    store = CrashingStore({"w0": []})
    failures = []
    for record in POISONED[:-1]:
        assembler = store.start()
        store.entries["w0"].append([record])
        assembler.feed("w0", len(store.entries["w0"]) - 1, [record])
        failures += assembler.take_failures()
        store.commit(assembler, {"w0": len(store.entries["w0"])})
    assert [failure.stream_id for failure in failures] == [SOCKET]
    of_socket = [loss["cause"] for loss in store.losses if loss["stream_id"] == SOCKET]
    assert of_socket == ["websocket: ZeroDivisionError"]


def test_open_answer_is_shown_live() -> None:
    assembler = Assembler()
    assembler.feed("w0", 0, recorded(turn(1, "r0", "a ", "b ", end=""))[:-1])
    found = {row["operation"]: row for row in open_stream_frame(assembler.open_streams()).to_dicts()}
    assert (found["chat"]["request_model"], found["chat"]["output_event_count"]) == ("m", 2)
    assert found["websocket"]["output_event_count"] == 0


def test_exception_in_the_splitter_is_a_dead_letter_and_loses_only_its_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Responses, "from_server", poisoned(Responses.from_server))
    other = recorded(turn(1, "r9", "a "), stream=stream_id(9))
    assembler = Assembler()
    assembler.feed("w0", 0, [*POISONED[:9], *other[:3]])
    assembler.feed("w0", 1, [*POISONED[9:], *other[3:]])
    (failure,) = assembler.take_failures()
    assert (failure.reason, failure.stream_id) == ("websocket: ZeroDivisionError", SOCKET)
    assert assembler.counters["undecodable_websockets"] == 1
    expected = {"ok": 3, "client_abort": 1, "tap_lost": 1}
    assert Counter(row["outcome"] for row in rows_of(assembler)) == expected


def test_exception_in_the_splitter_is_logged_by_ship(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Responses, "from_server", poisoned(Responses.from_server))
    redactor = Redactor()
    found = rows(redactor.redact(POISONED))
    assert [message for message in caplog.messages if SOCKET in message]
    assert redactor.counters["undecodable_websockets"] == 1
    assert Counter(row["outcome"] for row in found) == {"ok": 1, "client_abort": 1, "tap_lost": 1}


POISONED = recorded([*turn(1, "r0", "a "), *turn(1000, "r1", "poison"), *turn(2000, "r2", "b ")])


def poisoned(method: Any) -> Any:
    def fail(self: Responses, message: Message, answers: object) -> None:
        if b"poison" in message.payload:
            raise ZeroDivisionError
        method(self, message, answers)

    return fail


def test_oldest_socket_gives_up_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitter, "MAX_WINDOWS", 2)
    sockets = [
        recorded(
            turn(1, "r0", "a "), compression=COMPRESSIONS[1], stream=stream_id(n), end=(500, "client_left")
        )
        for n in range(3)
    ]
    records = [record for same in zip(*sockets, strict=True) for record in same]
    assembler, redactor = Assembler(), Redactor()
    assembler.feed("w0", 0, records)
    shipped = redactor.redact(records)
    assert (assembler.counters["evicted_windows"], redactor.counters["evicted_windows"]) == (1, 1)
    expected = {"ok": 4, "tap_lost": 1, "client_abort": 1}
    assert Counter(row["outcome"] for row in rows_of(assembler)) == expected
    assert Counter(row["outcome"] for row in rows(shipped)) == expected


def test_ship_does_not_decode_an_evicted_socket_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = [*turn(1, "r0", "a "), *turn(1000, "r1", "b ")]
    records = recorded(sent, compression=COMPRESSIONS[1])
    redactor = Redactor()
    stored = RedactionStateFile(tmp_path, redactor)
    shipped = redactor.redact(records[:3])
    with monkeypatch.context() as limited:
        limited.setattr(splitter, "MAX_WINDOWS", 1)
        redactor.redact(recorded(sent, compression=COMPRESSIONS[1], stream=stream_id(2))[:3])
    shipped += redactor.redact(records[3:5])
    stored.save()
    stored.close()
    again = Redactor()
    RedactionStateFile(tmp_path, again).close()
    shipped += again.redact(records[5:])
    assert again.counters["undecodable_websockets"] == again.counters["unknown_streams"] == 0
    assert [row["outcome"] for row in answers(rows(shipped))] == ["tap_lost"]


@st.composite
def conversations(draw: st.DrawFn) -> list[Sent]:
    """Answers of one or two conversations, interleaved; perhaps the last one of each does not end."""
    # Characters of private planes stand for halves of characters in the decoder.
    characters = st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs"])
    texts = st.lists(st.text(characters, min_size=1, max_size=40), max_size=8)
    sent: list[Sent] = []
    for key in draw(st.sampled_from([[None], ["s1", "s2"]])):
        at = draw(st.integers(1, 30))
        for index in range(draw(st.integers(1, 3))):
            more = {} if key is None else {"stream_id": key}
            end = draw(st.sampled_from(["completed", "completed", "failed", "incomplete"]))
            new = turn(at, f"resp_{key}_{index}", *draw(texts), end=end, **more)
            sent += new
            at = new[-1][0] + draw(st.integers(1, 300))
    return sorted(sent, key=lambda one: one[0])


@settings(max_examples=40, deadline=None)
@given(
    conversations(),
    st.integers(0, 2**32),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from(["client", "server", None]),
    st.booleans(),
)
def test_framing_compression_and_restarts_do_not_change_the_rows(
    sent: list[Sent], seed: int, compression: str | None, close_by: Any, stored: bool
) -> None:
    rng = random.Random(seed)
    end = (sent[-1][0] + 5, "complete" if close_by else "client_left")
    expected = rows(recorded(sent, end=end, close_by=close_by))
    key = lambda row: row["stream_id"]  # noqa: E731
    for _ in range(3):
        records = recorded(sent, compression=compression, rng=rng, end=end, close_by=close_by)
        with tempfile.TemporaryDirectory() as folder:
            store = crashing(rng, records, Path(folder) if stored else None)
            store.run(rng, crash=0.1, commit=0.4)
            assert not list(Path(folder).iterdir())
        assert sorted(map(without_wire, store.rows), key=key) == sorted(map(without_wire, expected), key=key)


def crashing(rng: random.Random, records: Sequence[AnyRecord], folder: Path | None) -> CrashingStore:
    """A store that makes checkpoints after some time, or early."""
    timed: list[AnyRecord] = []
    for second, record in enumerate(records):
        timed += [record, alive(second)]
    options = {
        "checkpoint_after_ns": rng.choice([1, 3, 100]) * SECOND_NS,
        "max_held_bytes": rng.choice([1000, 2**20]),
    }
    return CrashingStore({"w0": in_entries(rng, timed, most=1)}, options, folder=folder)


def without_wire(row: dict[str, Any]) -> dict[str, Any]:
    if row["stream_id"] == SOCKET:
        row = {**row, "response_headers": None, "ttfb_ns": None}
    return {name: value for name, value in row.items() if name not in OF_WIRE}


@settings(max_examples=25, deadline=None)
@given(conversations(), st.integers(0, 2**32), st.sampled_from(COMPRESSIONS))
def test_lost_and_damaged_states_lose_only_answers_that_are_open(
    sent: list[Sent], seed: int, compression: str | None
) -> None:
    rng = random.Random(seed)
    records = recorded(sent, compression=compression, rng=rng)
    expected = {row["stream_id"]: without_wire(row) for row in rows(records)}
    with tempfile.TemporaryDirectory() as folder:
        store = crashing(rng, records, Path(folder))
        usual = store.start

        def start() -> Assembler:
            for path in Path(folder).iterdir():
                content = bytearray(path.read_bytes())
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                path.write_bytes(content) if rng.random() < 0.5 else path.unlink()
            assembler = usual()
            assert not assembler.take_failures()
            return assembler

        store.start = start  # type: ignore[method-assign]
        store.run(rng, crash=0.1, commit=0.5)
    found = {row["stream_id"]: without_wire(row) for row in store.rows}
    assert len(found) == len(store.rows)
    assert store.was_open <= found.keys() <= expected.keys()
    # Whether the client left within an answer is not known then.
    assert found[SOCKET]["outcome"] in (expected[SOCKET]["outcome"], "client_abort")
    lost = {stream for stream, row in found.items() if row != expected[stream]} - {SOCKET}
    assert all(found[stream]["outcome"] == "tap_lost" for stream in lost)
    assert lost == {row["stream_id"] for row in store.losses}
    assert {row["cause"] for row in store.losses} <= {"websocket_state_lost"}


@pytest.mark.parametrize("shipped", [False, True])
def test_open_socket_does_not_hold_the_log_back(tmp_path: Path, shipped: bool) -> None:
    """In the topic its records are those of any stream, because `ship` has split them."""
    records = recorded([*turn(1, "r0", "a "), *turn(1000, "r1", "b ")], compression=COMPRESSIONS[1])[:-2]
    if shipped:
        records = Redactor().redact(records)
    store = CrashingStore(
        {"w0": [[record] for record in records]}, {"max_held_bytes": 0}, folder=None if shipped else tmp_path
    )
    store.run(random.Random(1), crash=0, commit=1)
    position = store.positions["w0"]
    assert len(position.open_stream_ids) == 2
    assert position.low == position.high == len(records)


def test_lost_states_are_counted_once_after_the_replay() -> None:
    records = recorded([*turn(1, "r0", "a "), *turn(1000, "r1", "b "), *turn(2000, "r2", "c ")])
    first = Assembler(store_websockets=True, max_held_bytes=0)
    first.feed("w0", 0, records[:-6])
    kept = {checkpoint.stream_id: checkpoint.payload for checkpoint in first.checkpoint_records()}
    assembler = Assembler(store_websockets=True)
    assembler.resume("w0", first.position("w0", 1).open_stream_ids)
    for stream, payload in kept.items():
        assembler.restore("w0", stream, [payload], None)
    assert assembler.counters["lost_websocket_states"] == 0
    assembler.end_replay("w0")
    assert assembler.counters["lost_websocket_states"] == 1
    assembler.feed("w0", 1, records[-6:])
    assert [row["outcome"] for row in answers(rows_of(assembler))] == ["tap_lost"]


class Ship:
    """Redacts records and restarts with the stored state, as `ship` does: perhaps before it was stored."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng

    def run(self, records: Sequence[AnyRecord]) -> list[AnyRecord]:
        shipped: list[AnyRecord] = []
        released = 0
        redactor, stored = self._start()
        while released < len(records):
            batch = records[released : released + self._rng.randint(1, 6)]
            shipped += redactor.redact(batch)
            if self._rng.random() < 0.2:  # killed after the delivery
                stored.close()
                redactor, stored = self._start()
                continue
            stored.save()
            released += len(batch)
            if self._rng.random() < 0.2:
                stored.close()
                redactor, stored = self._start()
        stored.close()
        return shipped

    def _start(self) -> tuple[Redactor, RedactionStateFile]:
        redactor = Redactor(conversation=ConversationReader(b""))
        return redactor, RedactionStateFile(self._folder, redactor)


def of_text(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in without_wire(row).items() if "fingerprint" not in name}


@settings(max_examples=20, deadline=None)
@given(conversations(), st.integers(0, 2**32), st.sampled_from(COMPRESSIONS))
def test_redacted_websocket_has_the_same_rows(sent: list[Sent], seed: int, compression: str | None) -> None:
    rng = random.Random(seed)
    records = recorded(sent, compression=compression, rng=rng)
    with tempfile.TemporaryDirectory() as folder:
        shipped = Ship(Path(folder), rng).run(records)
    assert not any(isinstance(r, Frames) and r.from_client is not None for r in shipped)
    assert sorted(map(of_text, rows(shipped)), key=str) == sorted(map(of_text, rows(records)), key=str)


def planted() -> tuple[list[bytes], list[Sent]]:
    """200 secrets, and messages of both sides with them: in every kind of member, and in no JSON."""
    secrets = [f"zwiebel{index:03d}{index * 7919 % 1000:03d}" for index in range(200)]
    waiting = iter(secrets)
    one = waiting.__next__
    sent: list[Sent] = []
    for number in range(10):
        at = 1000 * (number + 1)
        tools = [{"type": "function", "name": "f", "description": one(), "parameters": {one(): one()}}]
        request = create(
            instructions=one(),
            input=[{"role": "user", "content": one()}],
            tools=tools,
            user=one(),
            metadata={one(): one()},
        )
        answer = events(f"r{number}", [one(), one(), "x " + one(), '{"x": "' + one()])
        answer.insert(2, json.dumps({"type": "response.note", one(): one()}).encode())
        if number % 2:
            error = {"type": "error", "error": {"message": one(), "type": "t " + one()}}
            answer[-1] = json.dumps(error).encode()
        else:
            answer[-1] = (
                answer[-1][:-1] + b', "note": ["' + one().encode() + b'", {"a": "' + one().encode() + b'"}]}'
            )
        sent += [(at, "client", request), *((at + 10 + i, "server", event) for i, event in enumerate(answer))]
        sent.append((at + 500, "client", json.dumps({"type": "note", "text": one()}).encode()))
        sent.append((at + 501, "server", one().encode()))
        sent.append((at + 502, "server", json.dumps({"type": "error", "error": {"message": one()}}).encode()))
        sent.append((at + 503, "client", one().encode()))
    assert next(waiting, None) is None
    return [secret.encode() for secret in secrets], sent


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_secrets_in_payloads_are_neither_shipped_nor_stored(
    compression: str | None, stored: bool, tmp_path: Path
) -> None:
    secrets, sent = planted()
    rng = random.Random(1)
    records = recorded(sent, compression=compression, rng=rng)
    shipped = Ship(tmp_path, rng).run(records)
    store = CrashingStore(
        {"w0": in_entries(rng, records, most=1)},
        {"max_held_bytes": 1000},
        folder=tmp_path / "websockets" if stored else None,
    )
    kept: list[bytes] = []
    commit = store.commit

    def commit_and_keep(assembler: Assembler, read: dict[str, int], killed: Any = None) -> None:
        commit(assembler, read, killed)
        kept.extend(encode_all(unpack(p)[0]) for payloads in store.kept.values() for p in payloads)

    store.commit = commit_and_keep  # type: ignore[method-assign]
    store.run(rng, crash=0.05, commit=0.9)
    assert kept
    assert len(store.rows) == 11
    places = {"topic": encode_all(shipped), "checkpoints": b"".join(kept), "rows": repr(store.rows).encode()}
    assembler = Assembler()
    assembler.feed("w0", 0, records)
    for name, table in measure(assembler.take_finished()).items():
        places[name] = repr(table.drop(OF_TEXT, strict=False).to_dicts()).encode()
    leaked = [(place, secret) for place, found in places.items() for secret in secrets if secret in found]
    assert not leaked
    if compression is None:
        assert all(secret in b"".join(payload for _, _, payload in sent) for secret in secrets)


def encode_all(records: Sequence[AnyRecord]) -> bytes:
    return b"".join(map(encode, records))


def test_long_message_of_the_client_has_its_anatomy() -> None:
    thread = {"thread_id": "child", "x-codex-parent-thread-id": "main"}
    results = [{"type": "function_call_output", "call_id": "call_" + "1" * 40, "output": "r" * 99_000}]
    asked = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a" * 99_000}]}]
    message = create(input=[*asked, *results], client_metadata=thread)
    sent: list[Sent] = [(1, "client", message), *((2, "server", event) for event in events("r", ["a"]))]
    expected = RequestAnatomy([keyed_hash(b"a" * 99_000, KEY, kind=b"user_message")], ["call_" + "1" * 40], 1)
    headers = [(RECORDED, session_hash("main", KEY))]
    whole = Assembler(client_key=KEY)
    whole.feed("w0", 0, recorded(sent, request_headers=headers))
    redacted = Assembler(client_key=b"j" * 32)
    redactor = Redactor(conversation=ConversationReader(KEY), key=KEY)
    redacted.feed("w0", 0, redactor.redact(recorded(sent, request_headers=headers)))
    for assembler in (whole, redacted):
        [answer] = [one for one in assembler.take_finished() if one.stream_id != SOCKET]
        assert answer.conversation is not None
        assert answer.conversation.anatomy is not None
        segments = answer.conversation.anatomy.segments or []
        assert [(one.kind, one.message) for one in segments][-2:] == [("text", 0), ("tool_result", 1)]
        assert msgspec.structs.replace(answer.conversation.anatomy, encoded_segments=NO_SEGMENTS) == expected
        [row] = measure([answer])["streams"].to_dicts()
        assert (row["session_id"], row["parent_session_id"]) == (
            session_hash("child", KEY),
            session_hash("main", KEY),
        )

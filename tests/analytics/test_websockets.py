"""Each answer on a WebSocket is measured like a stream, however its messages are framed, cut, compressed and read again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.ingest.records import AnyRecord
from tests.analytics.sockets import COMPRESSIONS, MS, SOCKET, Sent, create, events, recorded
from tests.analytics.stream_records import CrashingStore, in_entries, rows_of

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


@st.composite
def conversations(draw: st.DrawFn) -> list[Sent]:
    """Answers of one or two conversations, interleaved; perhaps the last one of each does not end."""
    texts = st.lists(st.text(max_size=40).filter(bool), max_size=8)
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


@settings(max_examples=60, deadline=None)
@given(
    conversations(),
    st.integers(0, 2**32),
    st.sampled_from(COMPRESSIONS),
    st.sampled_from(["client", "server", None]),
)
def test_framing_compression_and_restarts_do_not_change_the_rows(
    sent: list[Sent], seed: int, compression: str | None, close_by: Any
) -> None:
    rng = random.Random(seed)
    end = (sent[-1][0] + 5, "complete" if close_by else "client_left")
    expected = rows(recorded(sent, end=end, close_by=close_by))
    records = recorded(sent, compression=compression, rng=rng, end=end, close_by=close_by)
    store = CrashingStore({"w0": in_entries(rng, records)}, {"checkpoint_after_ns": 0})
    store.run(rng, crash=0.1, commit=0.3)
    key = lambda row: row["stream_id"]  # noqa: E731
    assert sorted(map(without_wire, store.rows), key=key) == sorted(map(without_wire, expected), key=key)


def without_wire(row: dict[str, Any]) -> dict[str, Any]:
    if row["stream_id"] == SOCKET:
        row = {**row, "response_headers": None, "ttfb_ns": None}
    return {name: value for name, value in row.items() if name not in OF_WIRE}

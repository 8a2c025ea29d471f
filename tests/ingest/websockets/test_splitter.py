"""An exception in any method of a splitter loses only the answers that are open, and windows are limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from streamgauge.ingest.records import AnyRecord, Closed, Frames, Lost, Opened, StreamRecord
from streamgauge.ingest.websockets import splitter
from streamgauge.ingest.websockets.messages import MessageDecoder
from streamgauge.ingest.websockets.protocols import Responses
from streamgauge.ingest.websockets.splitter import AnswerSplitter, Windows
from tests.analytics.sockets import COMPRESSIONS, Sent, create, events, recorded
from tests.analytics.stream_records import stream_id
from tests.guard_injection import Fault, derived, methods

KINDS: Sequence[type] = (AnswerSplitter, MessageDecoder, Responses)
CALLED_BY_OWNERS = {"__init__", "stream", "state", "restored", "split", "lose"}
OF_CONTAINMENT = {"_decoders", "stop", "give_up", "_take_made"}
CASES = [
    (kind, name) for kind in KINDS for name in methods(kind) if name not in CALLED_BY_OWNERS | OF_CONTAINMENT
]


def conversation(stream: str = stream_id(1)) -> list[AnyRecord]:
    """Two whole answers, and one that the end of the socket ends. The first one ends with the fifth record."""
    sent: list[Sent] = []
    for number, end in enumerate(["completed", "completed", ""]):
        at = 50 * number + 1
        sent.append((at, "client", create()))
        sent += [(at + 1, "server", event) for event in events(f"r{number}", ["a "], end=end)]
    return recorded(sent, compression=COMPRESSIONS[1], stream=stream)


def begun(records: Sequence[AnyRecord], windows: Windows) -> AnswerSplitter:
    opened, first = records[:2]
    assert isinstance(opened, Opened)
    assert isinstance(first, Frames)
    assert first.response is not None
    return AnswerSplitter(opened, first.response, windows)


def split_all(
    one: AnswerSplitter, records: Sequence[AnyRecord]
) -> tuple[list[StreamRecord], list[Exception]]:
    answers, errors = [], []
    for record in records[1:]:
        assert isinstance(record, (Frames, Closed))
        own, made, error = one.split(record)
        assert own.seq == record.seq
        assert not (isinstance(own, Frames) and own.frames)
        answers += made
        errors += [error] if error is not None else []
    return answers, errors


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_exception_loses_only_the_open_answers(
    kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, records, windows = Fault(always=False), conversation(), Windows(Counter())
    one = begun(records, windows)
    first, _ = split_all(one, records[:5])
    assert isinstance(first[-1], Closed)
    with monkeypatch.context() as patched:
        patched.setattr(kind, name, derived(kind, name, fault))
        answers, errors = split_all(one, records[4:])
    assert fault.raised
    assert len(errors) == 1
    assert one.fault == "splitter_failed"
    assert windows.counters == {"undecodable_websockets": 1}
    for stream in {record.stream for record in answers}:
        assert stream != first[0].stream
        of_stream = [record for record in answers if record.stream == stream]
        assert [record.seq for record in of_stream] == list(range(len(of_stream)))
        last = of_stream[-1]
        assert isinstance(last, Closed) or (isinstance(last, Lost) and last.cause == "splitter_failed")


def test_evicted_answers_are_lost_with_the_next_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitter, "MAX_WINDOWS", 1)
    windows, records = Windows(Counter()), conversation()
    first = begun(records, windows)
    open_answers, _ = split_all(first, records[:-1])
    second = begun(conversation(stream_id(2)), windows)
    assert (first.fault, second.fault) == ("too_many_windows", None)
    (lost,), _ = split_all(first, [records[0], records[-1]])
    assert isinstance(lost, Lost)
    assert (lost.stream, lost.cause, lost.last) == (open_answers[-1].stream, "too_many_windows", True)
    assert windows.counters == {"evicted_windows": 1}


def test_windows_of_a_dropped_splitter_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitter, "MAX_WINDOWS", 1)
    windows, kept = Windows(Counter()), None
    for number in range(3):
        kept = begun(conversation(stream_id(number)), windows)
        kept = None
    assert kept is None
    assert windows.counters == {}

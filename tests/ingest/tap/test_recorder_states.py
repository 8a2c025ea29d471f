"""The states of a recorder. Each test is a playbook, and together they reach each state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamgauge.ingest.records import Closed, Frames, Lost, Request, decode
from tests.ingest.tap.recorders import RecorderGroup
from tests.playbook import Playbook, begun_by, playbooks_of

STATES = (
    "opening", "request", "request body", "response", "dropping", "ended", "delivered", "abandoned"
)  # fmt: skip
_seen: set[str] = set()


class RecorderPlaybook(Playbook["RecorderPlaybook"]):
    """One recorder, and a log that has room for `queue_bytes`. The log is stalled: it takes nothing by itself."""

    def __init__(self, *, queue_bytes: int = 2**20, **options: Any) -> None:
        super().__init__()
        self.driven = self
        self.group = RecorderGroup(queue_bytes=queue_bytes, **options)
        self.recorder = self.group.start()
        self._records = 0

    def before(self) -> None:
        self._records = len(self._made())

    def _made(self) -> list[Any]:
        queued = [record for records, _ in self.group.sink.batches for record in records]
        return [*self.group.sink.records, *map(decode, queued)]

    def seen(self) -> str:
        """The state, and the records that this step has handed to the log."""
        state = self.recorder.state
        assert f": {state}, " in repr(self.recorder)
        _seen.add(state)
        return " ".join([state, *map(_shown, self._made()[self._records :])])


def _shown(record: Any) -> str:
    kind = type(record).__name__.lower()
    if isinstance(record, Frames):
        head = "" if record.response is None else f"{record.response.status} "
        return f"{kind}({head}{sum(len(data) for _, data in record.frames)})"
    if isinstance(record, Request):
        return f"{kind}({len(record.body)}{' truncated' * record.truncated})"
    if isinstance(record, Lost):
        return f"{kind}({record.seq} {record.cause} {record.bytes}{' last' * record.last})"
    return f"{kind}({record.cause})" if isinstance(record, Closed) else kind


@pytest.fixture
async def play() -> Iterator[Callable[..., RecorderPlaybook]]:
    with begun_by(RecorderPlaybook) as begin:
        yield begin


def ticks(play: RecorderPlaybook) -> None:
    """The buffer hands everything over to the log."""
    play.group.buffer.flush_all()


def log_takes(play: RecorderPlaybook) -> None:
    play.group.sink.take()


def request(size: int) -> Event:
    return lambda play: play.recorder.request_data(b"{" + b"x" * (size - 1))


def request_ends(play: RecorderPlaybook) -> None:
    play.recorder.record_request(True)


def request_is_cut(play: RecorderPlaybook) -> None:
    play.recorder.record_request(False)


def responds(play: RecorderPlaybook) -> None:
    play.group.respond(play.recorder)


def data(size: int) -> Event:
    return lambda play: play.recorder.response_data(b"x" * size, 2)


def ends(play: RecorderPlaybook) -> None:
    play.recorder.ended("complete", None, 3, 0, 0, False, False, [])


def is_delivered(play: RecorderPlaybook) -> None:
    play.recorder.drained(3)


def fails(play: RecorderPlaybook) -> None:
    play.recorder.abandon()


Event = Callable[[RecorderPlaybook], object]
Play = Callable[..., RecorderPlaybook]


async def test_whole_exchange(play: Play):
    (
        play() << "opening"
        >> ticks << "request opened"
        >> request(9) << "request body"
        >> request_ends << "request body"
        >> ticks << "request body request(9)"
        >> responds << "response"
        >> ticks << "response frames(200 0)"
        >> data(30) << "response"
        >> data(40) << "response"
        >> ticks << "response frames(70)"
        >> ends << "ended"
        >> is_delivered << "delivered"
        >> ticks << "delivered closed(complete)"
    )  # fmt: skip


async def test_records_that_wait_keep_the_order_of_the_protocol(play: Play):
    waiting = play() >> request(9) << "request body" >> responds << "response" >> data(5) << "response"
    waiting >> request_is_cut << "response" >> ends << "ended" >> is_delivered << "delivered"
    waiting >> ticks << "delivered opened request(9 truncated) frames(200 5) closed(complete)"


async def test_body_above_the_limit_is_cut(play: Play):
    long = play(request_capture_bytes=10) >> ticks << "request opened" >> request(5) << "request body"
    (
        long
        >> request(20)
        << "request body"
        >> request_ends
        << "request body"
        >> ticks
        << "request body request(10 truncated)"
    )


async def test_frames_without_room_are_one_loss(play: Play):
    full = play(queue_bytes=20_000) >> responds << "response" >> data(5000) << "response"
    full >> data(19_000) << "dropping" >> data(19_000) << "dropping"
    full >> ticks << "dropping opened frames(200 5000)" >> log_takes << "dropping"
    full >> data(10) << "response" >> ticks << "response lost(2 queue_full 38000) frames(10)"
    full >> data(19_990) << "dropping" >> ends << "ended" >> is_delivered << "delivered"
    full >> ticks << "delivered lost(4 queue_full 19990) closed(complete)"


async def test_request_body_without_room_is_lost_and_the_response_recorded(play: Play):
    full = play(queue_bytes=20_000) >> ticks << "request opened" >> request(30_000) << "request body"
    (
        full
        >> ticks
        << "request body lost(1 queue_full 0)"
        >> request(5)
        << "request body"
        >> request_ends
        << "request body"
    )
    full >> responds << "response" >> ticks << "response frames(200 0)"


async def test_opened_without_room_is_lost(play: Play):
    full = play(queue_bytes=100) << "request" >> ticks << "request"
    full >> responds << "response" >> ticks << "response"


@pytest.mark.parametrize("step", [responds, data(5), is_delivered])
async def test_exception_ends_the_records_with_a_loss(play: Play, step: Event):
    failed = play() >> responds << "response" >> data(5) << "response" >> ends << "ended"
    failed >> fails << "abandoned"
    with pytest.raises(AttributeError):
        step(failed)
    failed >> ticks << "abandoned opened frames(200 5) lost(2 recording_failed 0 last)"


async def test_playbooks_reach_each_state(play: Play):
    _seen.clear()
    for playbook in playbooks_of(globals(), but=test_playbooks_reach_each_state):
        await playbook(play)
    await test_exception_ends_the_records_with_a_loss(play, is_delivered)
    assert _seen == set(STATES)

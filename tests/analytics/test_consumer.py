"""The consumer stores every stream once, despite duplicates, invalid entries and restarts."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import polars as pl
import pytest

from streamgauge.analytics import consumer as consumer_module
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.commit_hook import CommitHook
from streamgauge.analytics.consumer import FEW_EVENTS, POSITIONS_EVERY_S, CommitPolicy, Consumer
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.open_streams import OpenPartition
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.partition_positions import PartitionLost
from streamgauge.analytics.storage.store import Store
from streamgauge.analytics.storage.websocket_states import WebSocketStates
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.record_log.interface import Entry, UnreadableRange
from streamgauge.ingest.records import AnyRecord, Frames, Request, pack
from tests.analytics import log_entries, stream_records
from tests.analytics.log_entries import MemoryLog, alive, entries, stream, stream_id
from tests.analytics.sockets import Sent, Side, create, events, recorded
from tests.analytics.stores import ask, ask_as_reader, new_store
from tests.analytics.stream_records import chunk, closed, finish_chunk, head, opened

EAGER = CommitPolicy(commit_interval_s=0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = new_store(tmp_path)
    yield store
    store.close()


def consumer(
    log: MemoryLog, store: Store, assembler: Assembler | None = None, policy: CommitPolicy = EAGER
) -> Consumer:
    made = Consumer(log, store, assembler or Assembler(), measure, policy)
    made.start()
    return made


def drain(run: Consumer) -> None:
    """Read all entries and commit without waiting for the interval."""
    run.step(0)
    run.finish()


def outcomes(store: Store) -> list[tuple[object, ...]]:
    return ask(store, "SELECT stream_id::VARCHAR, outcome FROM streams ORDER BY 1")


def everything(store: Store) -> list[object]:
    return [
        ask(store, f"SELECT * FROM {table} ORDER BY ALL")
        for table in ("streams", "events", "usage_reports", "losses")
    ]


LOST_ENTRIES = (
    "SELECT partition, first_seq, last_seq, cause, dead_letters FROM losses "
    "WHERE stream_id IS NULL ORDER BY first_seq, cause"
)


def test_streams_become_rows_with_events_and_usage(store: Store) -> None:
    log = MemoryLog({"w0": list(entries(range(20), chunks=10))})
    run = consumer(log, store)
    drain(run)
    assert outcomes(store) == [(stream_id(n), "ok") for n in range(20)]
    assert ask(store, "SELECT count(*), count(DISTINCT stream_id) FROM events") == [(20 * 13, 20)]
    assert ask(store, "SELECT DISTINCT ttft_ns, itl_ns, output_tokens FROM streams") == [
        (200_000_000, 20_000_000.0, 10)
    ]
    assert ask(store, "SELECT count(*) FROM usage_reports") == [(20,)]
    assert ask(store, "SELECT high, low, open_stream_ids FROM log_positions") == [
        (len(log.partitions_["w0"]), len(log.partitions_["w0"]), [])
    ]
    assert log.released == {"w0": len(log.partitions_["w0"])}


@pytest.mark.parametrize("cut", range(0, 20, 3))
def test_restart_anywhere_gives_the_rows_of_an_uninterrupted_run(tmp_path: Path, cut: int) -> None:
    payloads = list(entries(range(24), chunks=9, width=6))
    whole = new_store(tmp_path / "whole")
    drain(consumer(MemoryLog({"w0": payloads}), whole))
    broken = new_store(tmp_path / "broken")
    log = MemoryLog({"w0": payloads[:cut]})
    first = consumer(log, broken)
    drain(first)
    for offset, payload in enumerate(payloads[cut : cut + 5], cut):
        first.feed(Entry("w0", offset, payload))  # read but never committed
    second = consumer(MemoryLog({"w0": payloads}), broken)
    drain(second)
    assert everything(broken) == everything(whole)
    assert len(outcomes(whole)) == 24
    whole.close()
    broken.close()


def test_restart_replays_from_the_oldest_open_stream(store: Store) -> None:
    payloads = list(entries(range(80), chunks=9, width=8))
    log = MemoryLog({"w0": payloads[:37]})
    drain(consumer(log, store))
    [(low, high)] = ask(store, "SELECT low, high FROM log_positions")
    assert high == 37
    assert log.released == {"w0": low}
    again = MemoryLog({"w0": payloads})
    drain(consumer(again, store))
    assert [(p, a) for p, a, _ in again.ranges] == [("w0", low)]
    assert low == 35
    assert len(outcomes(store)) == 80


def test_duplicates_after_a_restart_are_not_stored(store: Store) -> None:
    payloads = list(entries(range(8), chunks=5))
    drain(consumer(MemoryLog({"w0": payloads}), store))
    drain(consumer(MemoryLog({"w0": payloads + payloads}), store))
    assert len(outcomes(store)) == 8


def test_long_stream_is_checkpointed_and_releases_the_log(store: Store) -> None:
    long = stream(1, chunks=40, per_record=2)
    payloads = [pack(long[:6], compress=False)]
    payloads += [pack([alive(second * 1000)], compress=False) for second in range(0, 200, 5)]
    log = MemoryLog({"w0": list(payloads)})
    first = consumer(log, store)
    for _ in range(3):
        drain(first)
    [(low, high, ids)] = ask(store, "SELECT low, high, open_stream_ids FROM log_positions")
    assert (low, high, ids) == (len(payloads), len(payloads), [stream_id(1)])
    assert log.released["w0"] == high
    assert [*store.kept_records("memory", "w0")] == [stream_id(1)]
    payloads += [pack(long[6:12], compress=False), pack(long[12:], compress=False)]
    second = consumer(MemoryLog({"w0": payloads}), store)
    drain(second)
    assert ask(store, "SELECT outcome, output_event_count FROM streams") == [("ok", 40)]
    assert store.kept_records("memory", "w0") == {}


def test_open_streams_are_visible_to_readers(store: Store) -> None:
    records = stream(3, chunks=10)
    log = MemoryLog({"w0": [pack(records[:3], compress=False)]})
    run = consumer(log, store)
    drain(run)
    query = "SELECT stream_id, output_event_count, ttft_ns FROM open_streams"
    assert ask_as_reader(store.location, query) == [(stream_id(3), 5, 200_000_000)]
    log.partitions_["w0"].append(pack(records[3:], compress=False))
    drain(run)
    assert ask_as_reader(store.location, query) == []
    assert outcomes(store) == [(stream_id(3), "ok")]


def test_invalid_entries_become_dead_letters_without_content(store: Store) -> None:
    good = list(entries(range(4), chunks=3))
    junk = [b"", b"\x01\xc1", b"\x02planted-secret", b"planted-secret", b"\x01\x91\x92\xa6opened\x01"]
    log = MemoryLog({"w0": [good[0], *junk, *good[1:]]})
    run = consumer(log, store)
    drain(run)
    assert len(outcomes(store)) == 4
    letters = ask(
        store, "SELECT partition, log_offset, reason, size, length(sha256) FROM dead_letters ORDER BY 2"
    )
    assert [(p, offset) for p, offset, *_ in letters] == [("w0", i) for i in range(1, 6)]
    assert {length for *_, length in letters} == {64}
    assert ask(store, LOST_ENTRIES) == [
        ("w0", i, i, reason, 1) for i, (_, _, reason, *_) in enumerate(letters, 1)
    ]
    assert "secret" not in str(ask(store, "SELECT * FROM dead_letters"))


def test_dead_letters_per_commit_are_bounded(store: Store) -> None:
    run = consumer(MemoryLog({"w0": [b"junk"] * 3000}), store)
    drain(run)
    assert ask(store, "SELECT count(*) FROM dead_letters") == [(1000,)]
    assert store.totals()["dead_letters"] == 3000
    assert store.totals()["dead_letters_not_kept"] == 2000
    *kept, beyond = ask(store, LOST_ENTRIES)
    assert kept == [("w0", i, i, "unknown_format", 1) for i in range(1000)]
    assert beyond == ("w0", 1000, 2999, "unknown_format", 2000)


def test_dead_letters_of_one_entry_are_one_loss(store: Store) -> None:
    payload = b"\x01\x93" + 3 * b"\x92\xa6opened\x01"
    drain(consumer(MemoryLog({"w0": [payload]}), store))
    assert ask(store, LOST_ENTRIES) == [("w0", 0, 0, "not_a_record", 3)]
    assert ask(store, "SELECT count(*) FROM dead_letters") == [(3,)]


def test_dead_letters_have_one_loss_each_despite_restarts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each entry. An open stream makes all of them be replayed."""
    real = Assembler.feed

    def feed(self: Assembler, partition: str, offset: int, records: Sequence[AnyRecord]) -> None:
        if offset == 7:
            raise ZeroDivisionError
        real(self, partition, offset, records)

    monkeypatch.setattr(Assembler, "feed", feed)
    sound, bad = stream(1), stream(2, chunks=3)
    bad[2] = Frames(stream_id(2), 2, [(5, b"x"), (4, b"y")])
    invalid_alive = msgspec.structs.replace(alive(5), mono_ns=-1)
    payloads = [
        pack([sound[0], *bad[:2]], compress=False), b"junk", pack([bad[2]], compress=False), pack([invalid_alive], compress=False),
        pack([opened("x")], compress=False), b"\x01\x91\x01", pack(bad[3:], compress=False), pack([alive(6)], compress=False),
        pack(sound[1:], compress=False), pack([alive(10)], compress=False),
    ]  # fmt: skip
    log = MemoryLog({"w0": []})
    for payload in payloads:
        log.partitions_["w0"].append(payload)
        replayed = 6 < len(log.partitions_["w0"]) < 10
        log.damage = [UnreadableRange("w0", 4, 5, "checksum")] if replayed else []
        drain(consumer(log, store))
    letters = ask(store, "SELECT log_offset, reason FROM dead_letters ORDER BY ALL")
    assert letters == [
        (1, "unknown_format"), (2, "bad_times"), (3, "bad_numbers"), (4, "bad_stream_id"), (4, "damaged_segment"),
        (5, "not_a_record"), (7, "assemble: ZeroDivisionError"),
    ]  # fmt: skip
    assert ask(store, LOST_ENTRIES) == [
        ("w0", 1, 1, "unknown_format", 1), ("w0", 3, 3, "bad_numbers", 1), ("w0", 4, 4, "bad_stream_id", 1),
        ("w0", 4, 4, "log_damaged", 1), ("w0", 5, 5, "not_a_record", 1), ("w0", 7, 7, "assemble: ZeroDivisionError", 1),
    ]  # fmt: skip
    assert ask(store, "SELECT stream_id::VARCHAR, first_seq, cause FROM losses WHERE stream_id IS NOT NULL") == [
        (stream_id(2), 2, "bad_times")
    ]  # fmt: skip
    assert outcomes(store) == [(stream_id(1), "ok"), (stream_id(2), "tap_lost")]


def test_stream_that_cannot_be_restored_is_lost_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    records = stream(1, chunks=40, per_record=2)
    log = MemoryLog({"w0": [pack(records[:6], compress=False)]})
    drain(consumer(log, store, Assembler(max_held_bytes=0)))

    def restore(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Assembler, "restore", restore)
    log.partitions_["w0"].append(pack(records[6:], compress=False))
    for _ in range(2):
        drain(consumer(log, store))
    assert outcomes(store) == [(stream_id(1), "tap_lost")]
    for query in ("stream_id::VARCHAR, reason FROM dead_letters", "stream_id::VARCHAR, cause FROM losses"):
        assert ask(store, f"SELECT {query}") == [(stream_id(1), "restore: ZeroDivisionError")]


def test_stream_that_cannot_be_measured_is_lost_and_others_are_stored(store: Store) -> None:
    bad = stream_id(2)

    def picky(finished: Sequence[FinishedStream]) -> dict[str, pl.DataFrame]:
        if any(s.stream_id == bad for s in finished):
            raise ZeroDivisionError("a defect of ours")
        return measure(finished)

    log = MemoryLog({"w0": list(entries(range(5), chunks=4))})
    run = Consumer(log, store, Assembler(), picky, EAGER)
    run.start()
    drain(run)
    assert outcomes(store) == [(stream_id(n), "tap_lost" if n == 2 else "ok") for n in range(5)]
    assert ask(store, "SELECT stream_id::VARCHAR, reason FROM dead_letters") == [
        (bad, "measure: ZeroDivisionError")
    ]
    assert ask(
        store, "SELECT stream_id::VARCHAR, tap IS NOT NULL, partition, first_seq, cause FROM losses"
    ) == [(bad, True, "w0", None, "not_measured")]


def with_usage(number: int, usage: dict[str, object]) -> bytes:
    """The entry of a whole stream with this report."""
    stream_id_ = stream_id(number)
    data = chunk("a") + chunk(choices=[], usage=usage) + finish_chunk()
    records = [
        opened(stream_id_),
        Request(stream_id_, 1, b"{}", False),
        Frames(stream_id_, 2, [(10, data)], head()),
        closed(stream_id_, 3, end_ns=20, response_bytes=len(data)),
    ]
    return pack(records, compress=False)


NINE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def test_a_number_too_large_for_its_column_costs_its_batch_nothing(store: Store) -> None:
    searched = NINE | {"server_tool_use": {"web_search_requests": 2**31}}
    drain(consumer(MemoryLog({"w0": [with_usage(0, NINE), with_usage(1, searched)]}), store))
    assert ask(store, "SELECT outcome, output_tokens, web_searches FROM streams") == [("ok", 2, None)] * 2
    assert ask(store, "SELECT count(*) FROM dead_letters") == [(0,)]
    assert store.totals()["out_of_range.streams.web_searches"] == 1


def test_inconsistent_reports_are_counted_by_dialect_and_member(store: Store) -> None:
    payloads = [with_usage(n, NINE | {"total_tokens": 10}) for n in range(3)]
    drain(consumer(MemoryLog({"w0": payloads}), store))
    assert ask(store, "SELECT DISTINCT token_source FROM streams") == [("usage_inconsistent",)]
    assert store.totals()["usage_inconsistent.openai_chat.total_tokens"] == 3


def test_record_gap_is_a_loss_and_the_stream_is_unmeasured(store: Store) -> None:
    records = stream(1, chunks=12)
    dropped = [r for r in records if not (isinstance(r, Frames) and r.seq == 3)]
    dropped += [alive(0), alive(61_000)]
    run = consumer(MemoryLog({"w0": [pack(dropped, compress=True)]}), store)
    drain(run)
    assert ask(store, "SELECT outcome, ttft_ns, output_tokens FROM streams") == [("tap_lost", None, None)]
    assert ask(store, "SELECT stream_id::VARCHAR, first_seq, last_seq, cause FROM losses") == [
        (stream_id(1), 3, 3, "missing")
    ]


def test_streams_of_a_silent_local_log_are_lost(store: Store) -> None:
    log = MemoryLog({"w0": [pack(stream(1)[:3], compress=False)]})
    run = consumer(log, store, policy=CommitPolicy(commit_interval_s=0, lost_after_s=0.0))
    drain(run)
    assert outcomes(store) == []
    drain(run)
    assert outcomes(store) == [(stream_id(1), "tap_lost")]


def test_streams_of_a_silent_broker_stay_open(store: Store) -> None:
    log = MemoryLog({"0": [pack(stream(1)[:3], compress=False)]})
    run = consumer(
        log, store, policy=CommitPolicy(commit_interval_s=0, lost_after_s=0.0, writers_are_local=False)
    )
    drain(run)
    drain(run)
    assert outcomes(store) == []


def test_partitions_can_be_added_and_released(store: Store) -> None:
    log = MemoryLog({"0": list(entries(range(4)))})
    run = consumer(log, store)
    drain(run)
    log.partitions_["1"] = list(entries(range(10, 14)))[:-1]  # the last streams stay open
    drain(run)
    before = len(outcomes(store))
    assert before == 4
    run.release_partitions(["1"])
    rest = log.partitions_.pop("1")
    drain(run)
    # owned again: continues at the stored position
    log.partitions_["1"] = rest + list(entries(range(10, 14)))[-1:]
    log.seek("1", len(log.partitions_["1"]))  # the reader's own position does not matter
    drain(run)
    assert len(outcomes(store)) == 8
    assert ask(store, "SELECT partition, open_stream_ids FROM log_positions ORDER BY 1") == [
        ("0", []),
        ("1", []),
    ]


@pytest.mark.parametrize("is_kept", [True, False])
def test_open_websocket_releases_the_log_and_continues_from_its_state(
    store: Store, tmp_path: Path, is_kept: bool
) -> None:
    answers = [(at, *create_and_events(at)) for at in (1, 1000, 2000)]
    sent: list[Sent] = [(at + i, *message) for at, *messages in answers for i, message in enumerate(messages)]
    records = recorded(sent, compression="permessage-deflate")
    payloads = [
        pack([record, stream_records.alive(second)], compress=False) for second, record in enumerate(records)
    ]
    log = MemoryLog({"w0": payloads[:7]})

    def start() -> Consumer:
        assembler = Assembler(checkpoint_after_ns=stream_records.SECOND_NS, store_websockets=True)
        run = Consumer(log, store, assembler, measure, EAGER, states=WebSocketStates(tmp_path / "states"))
        run.start()
        return run

    drain(start())
    log.partitions_["w0"] = payloads[:8]
    killed = start()
    drain(killed)
    assert log.released["w0"] >= 7
    assert ask(store, "SELECT len(open_stream_ids) FROM log_positions") == [(2,)]
    if not is_kept:
        for path in (tmp_path / "states").iterdir():
            path.unlink()
    log.partitions_["w0"], log.ranges = payloads, []
    drain(start())
    assert all(first >= 7 for _, first, _ in log.ranges)
    found = ask(store, "SELECT outcome FROM streams WHERE operation = 'chat' ORDER BY response_index")
    assert found == [("ok",), ("ok",), ("ok",)] if is_kept else found[:1] == [("ok",)]
    lost = ask(store, "SELECT cause, count(*) FROM losses GROUP BY 1")
    assert lost == ([] if is_kept else [("websocket_state_lost", 1)])
    (counted,) = ask(
        store, "SELECT coalesce(sum(value), 0) FROM counters WHERE name = 'lost_websocket_states'"
    )
    assert counted == (0 if is_kept else 1,)
    assert not list((tmp_path / "states").iterdir())


def create_and_events(number: int) -> list[tuple[Side, bytes]]:
    return [("client", create()), *(("server", event) for event in events(f"r{number}", ["a "]))]


def test_backlog_is_committed_in_bounded_batches(store: Store) -> None:
    log = MemoryLog({"w0": list(entries(range(40), chunks=10, width=4))})
    run = consumer(log, store, policy=CommitPolicy(commit_interval_s=60, commit_events=100))
    drain(run)
    assert run.commits >= 4
    run.finish()
    assert len(outcomes(store)) == 40


@pytest.mark.parametrize(
    ("events", "cost_s", "after_s"), [(1, 0.0, 4.0), (FEW_EVENTS, 0.0, 1.0), (FEW_EVENTS, 0.55, 1.1), (FEW_EVENTS, 9.0, 1.2)]
)  # fmt: skip
def test_commits_are_apart_by_their_cost_and_by_what_waits(
    store: Store, events: int, cost_s: float, after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "MAX_PAUSE_S", 1.2)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])
    log = MemoryLog({"w0": []})
    run = consumer(log, store, policy=CommitPolicy(commit_interval_s=1.0))
    run._interval_from_s, run._commit_cost_s = clock[-1], cost_s
    log.partitions_["w0"] += entries(range(1), chunks=events, width=1)
    run.step(0)
    clock.append(1000.0 + after_s - 0.01)
    run.step(0)
    assert run.commits == 0
    clock.append(1000.0 + after_s + 0.01)
    run.step(0)
    assert run.commits == 1
    assert len(outcomes(store)) == 1


def test_partly_filled_commits_wait_for_the_interval(store: Store) -> None:
    log = MemoryLog({"w0": list(entries(range(2)))})
    run = consumer(log, store, policy=CommitPolicy(commit_interval_s=3600))
    run.step(0)
    run.step(0)
    assert len(outcomes(store)) == 2
    for payload in entries(range(2, 4)):
        log.partitions_["w0"].append(payload)
    commits = run.commits
    run._commit_cost_s = 0.0
    for _ in range(3):
        run.step(0)
    assert run.commits == commits
    assert len(outcomes(store)) == 2


def open_streams(store: Store) -> list[tuple[object, ...]]:
    return ask_as_reader(store.location, "SELECT stream_id, output_event_count FROM open_streams")


def test_open_streams_are_written_less_often_if_writing_is_slow(store: Store) -> None:
    records = stream(3, chunks=15)
    log = MemoryLog({"w0": [pack(records[:3], compress=False)]})
    run = consumer(log, store)
    drain(run)
    run._open_cost_s = 100.0
    log.partitions_["w0"].append(pack(records[3:4], compress=False))
    for _ in range(4):
        run.step(0)
    assert open_streams(store) == [(stream_id(3), 5)]
    run._open_cost_s, run._open_written_s = 0.0, float("-inf")
    run.step(0)
    assert open_streams(store) == [(stream_id(3), 10)]


def test_failure_to_write_open_streams_does_not_stop_the_consumer(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = stream(3, chunks=10)
    log = MemoryLog({"w0": [pack(records[:3], compress=False)]})
    run = consumer(log, store)

    def fail(rows: pl.DataFrame) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(store, "write_open_streams", fail)
    run.step(0)
    assert "cannot write the file of open streams: no space left" in caplog.text
    log.partitions_["w0"].append(pack(records[3:], compress=False))
    drain(run)
    assert outcomes(store) == [(stream_id(3), "ok")]


def test_commit_of_positions_only_has_a_separate_interval(store: Store) -> None:
    log = MemoryLog({"w0": [*entries(range(1))]})
    run = consumer(log, store, policy=CommitPolicy(commit_interval_s=0.0))
    drain(run)
    commits, now_s = run.commits, time.monotonic()
    log.partitions_["w0"].append(pack(stream(3)[:3], compress=False))
    run._committed_s = run._interval_from_s = now_s
    for _ in range(3):
        run.step(0)
    assert run.commits == commits
    run._committed_s = run._interval_from_s = now_s - POSITIONS_EVERY_S
    run.step(0)
    assert run.commits == commits + 1
    [(high,)] = ask(store, "SELECT high FROM log_positions")
    assert high == len(log.partitions_["w0"])


def test_idle_log_causes_no_commits(store: Store) -> None:
    log = MemoryLog({"w0": list(entries(range(2)))})
    run = consumer(log, store)
    drain(run)
    run.finish()
    commits = run.commits
    for _ in range(10):
        run.step(0)
    assert run.commits == commits


def test_counters_add_up_over_restarts(store: Store) -> None:
    payloads = list(entries(range(10), chunks=6, width=5))
    drain(consumer(MemoryLog({"w0": payloads[:3]}), store))
    drain(consumer(MemoryLog({"w0": payloads}), store))
    totals = store.totals()
    assert totals["entries"] == len(payloads)
    assert totals["records"] == sum(len(stream(n, chunks=6)) for n in range(10))
    assert totals["streams_finished"] == totals["streams_rows"] == 10
    assert totals["log_bytes"] == sum(len(p) for p in payloads)


def test_tap_reports_are_stored(store: Store) -> None:
    reports = [
        alive(1000, streams_opened=1),
        alive(3000, streams_opened=2),
        alive(9000, stopping=True, streams_opened=2),
    ]
    run = consumer(
        MemoryLog({"w0": [pack(reports[:2], compress=False), pack(reports[2:], compress=False)]}), store
    )
    drain(run)
    run.finish()
    assert ask(store, "SELECT tap, incarnation, stopped, counters FROM taps") == [
        ("tap-1", log_entries.INCARNATION, True, '{"streams_opened": 2}')
    ]


def test_consumer_that_lost_its_partition_commits_nothing(store: Store) -> None:
    payloads = list(entries(range(6)))
    log = MemoryLog({"w0": payloads[:2]})
    first = consumer(log, store)
    drain(first)
    other = Store(store.location)
    assert other.acquire_partition("memory", "w0") is not None
    other.close()
    log.partitions_["w0"] = payloads
    with pytest.raises(PartitionLost):
        drain(first)
    assert outcomes(store) == []
    store.commit(Commit("memory"))


def test_open_streams_of_a_deleted_log_are_lost_with_a_cause(store: Store) -> None:
    old = MemoryLog({"w0": [*entries(range(2)), pack(stream(7)[:3], compress=False)]}, log_id="old")
    drain(consumer(old, store))
    fresh = MemoryLog({"w0": list(entries(range(20, 22)))}, log_id="new")
    for is_deleted, expected in ((False, 4), (True, 5)):
        run = Consumer(
            fresh, store, Assembler(), measure, EAGER, is_deleted_log=lambda _, deleted=is_deleted: deleted
        )  # type: ignore[misc]
        run.start()
        drain(run)
        assert len(outcomes(store)) == expected
    assert (stream_id(7), "tap_lost") in outcomes(store)
    assert ask(store, "SELECT stream_id::VARCHAR, cause FROM losses") == [(stream_id(7), "log_gone")]
    assert ask(store, "SELECT open_stream_ids FROM log_positions WHERE log_id = 'old'") == [([],)]


def test_open_streams_of_a_replaced_log_are_lost(store: Store) -> None:
    log = MemoryLog({"w0": [*entries(range(2)), pack(stream(7)[:3], compress=False)]})
    run = consumer(log, store)
    run.step(0)
    log.damage = [UnreadableRange("w0", 3, 5, "replaced")]  # messages that were not read
    assert run.lose_open_streams() == 1
    assert outcomes(store) == [(stream_id(0), "ok"), (stream_id(1), "ok"), (stream_id(7), "tap_lost")]
    losses = ask(store, "SELECT stream_id::VARCHAR, cause FROM losses ORDER BY stream_id NULLS LAST")
    assert losses == [(stream_id(7), "log_gone"), (None, "log_damaged")]
    assert ask(store, "SELECT size FROM dead_letters") == [(2,)]


HOOK_METHODS = [name for name in vars(CommitHook) if not name.startswith("_")]


class CountingHook:
    """Adds a total to each commit. One of its methods may raise."""

    def __init__(self, faulty: str = "") -> None:
        self.faulty = faulty
        self.committed_rows = 0

    def __getattribute__(self, name: str) -> object:
        def fail(*_: object) -> object:
            raise RuntimeError("injected")

        if name in HOOK_METHODS and name == object.__getattribute__(self, "faulty"):
            return fail if inspect.isfunction(vars(CommitHook)[name]) else fail()
        return object.__getattribute__(self, name)

    waiting = True

    @property
    def increments(self) -> dict[str, int]:
        return {f"asked_{self.faulty or 'sound'}": 1}

    def rows(
        self, finished: Sequence[FinishedStream], tables: Mapping[str, pl.DataFrame]
    ) -> dict[str, pl.DataFrame]:
        return {}

    def committed(self) -> None:
        self.committed_rows += 1


@pytest.mark.parametrize("faulty", HOOK_METHODS)
def test_an_exception_in_a_commit_hook_costs_only_its_own_rows(faulty: str, store: Store) -> None:
    guards, broken, sound = Guards(), CountingHook(faulty), CountingHook()
    log = MemoryLog({"w0": list(entries(range(4), chunks=3))})
    run = Consumer(log, store, Assembler(), measure, EAGER, hooks=[broken, sound], guards=guards)
    run.start()
    drain(run)
    assert outcomes(store) == [(stream_id(n), "ok") for n in range(4)]
    assert sound.committed_rows == run.commits > 0
    if faulty in ("rows", "increments"):
        assert broken.committed_rows == 0, "its rows are not in the store"
    assert guards.faults().keys() == {"commit hook CountingHook"}


def test_only_partitions_that_are_read_up_to_their_ends_are_observed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamgauge.analytics.consumer.OBSERVE_EVERY_S", 0.0)
    monkeypatch.setattr("streamgauge.analytics.consumer.OPEN_STREAMS_EVERY_S", 0.0)
    short = [pack(stream(1)[:3], compress=True)]
    backlog = [pack(stream(n)[:3], compress=True) for n in range(2, 40)]
    log = MemoryLog({"w0": short, "w1": backlog})
    seen = list[tuple[list[tuple[str, int]], bool]]()

    def observe(partitions: Sequence[OpenPartition], is_complete: bool) -> None:
        seen.append(([(one.name, len(one.streams)) for one in partitions], is_complete))

    run = Consumer(log, store, Assembler(), measure, EAGER, observe=observe)
    run.start()
    log.batch = 2
    while not seen or not seen[-1][1]:
        run.step(0)
    unread = [found for found in seen if not found[1]]
    assert len(unread) > 10
    assert {name for found, _ in unread for name, _ in found} <= {"w0"}
    assert (sorted(seen[-1][0]), seen[-1][1]) == ([("w0", 1), ("w1", 38)], True)

"""Streams are assembled exactly once despite duplicates, gaps, restarts and dead taps."""

import hashlib
import os
import random
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.open_stream import OpenStream
from streamgauge.analytics.assembly.record_validation import Failure
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.measures.open_streams import open_stream_frame
from streamgauge.analytics.schema.tables import OPEN_STREAMS_SQL, schema_sql
from streamgauge.ingest.records import Alive, AnyRecord, Conversation, Frames, Lost, Opened, Request, pack
from tests.analytics.stream_records import (
    SECOND_NS,
    START_NS,
    CrashingStore,
    alive,
    chunk,
    closed,
    finish_chunk,
    head,
    in_entries,
    interleave,
    opened,
    rows_of,
    stream_id,
    whole_stream,
    with_rewinds,
)

A, B, C = stream_id(1), stream_id(2), stream_id(3)


def fed(*records: AnyRecord, partition: str = "w0", **options: Any) -> Assembler:
    assembler = Assembler(**options)
    for offset, record in enumerate(records):
        assembler.feed(partition, offset, [record])
    return assembler


def outcomes(assembler: Assembler) -> dict[str, str]:
    return {row["stream_id"]: row["outcome"] for row in rows_of(assembler)}


# -- whole streams -------------------------------------------------------------------------------------------------


def test_stream_is_measured_after_its_closed_record() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:-1])
    assert assembler.take_finished() == []
    assert assembler.position("w0", 99).open_stream_ids == (A,)
    assembler.feed("w0", 99, records[-1:])
    (row,) = rows_of(assembler)
    assert row["outcome"] == "ok"
    assert (row["ttft_ns"], row["output_event_count"], row["text_chars"]) == (100, 3, 9)
    assert (row["request_model"], row["request_id"], row["lost_bytes"]) == ("m", "r1", 0)
    assert assembler.position("w0", 100) == assembler.position("w0", 100).__class__(100, 100, ())


def test_failed_connection_has_a_row_without_body_columns() -> None:
    assembler = fed(
        opened(A), Request(A, 1, b"{}", False), closed(A, 2, cause="connect_error", detail="gaierror")
    )
    (row,) = rows_of(assembler)
    assert (row["outcome"], row["error_type"], row["dialect"]) == ("connect_error", "gaierror", "openai_chat")
    assert (row["http_status"], row["streamed"], row["ttfb_ns"], row["ttft_ns"]) == (None, None, None, None)


def test_open_streams_show_current_values() -> None:
    assembler = fed(*whole_stream(A)[:4])
    (row,) = open_stream_frame(assembler.open_streams()).to_dicts()
    assert (row["stream_id"], row["dialect"], row["request_model"], row["ttft_ns"]) == (
        A,
        "openai_chat",
        "m",
        100,
    )
    assert (row["event_count"], row["output_event_count"]) == (2, 2)


def test_open_stream_that_reports_no_tokens_despite_output_has_no_count() -> None:
    reads = [(100, chunk("a", usage={"completion_tokens": 0}))]
    assembler = fed(*whole_stream(A)[:2], Frames(A, 2, reads, head()))
    (row,) = open_stream_frame(assembler.open_streams()).to_dicts()
    assert (row["output_event_count"], row["output_tokens"]) == (1, None)


def test_client_can_forbid_capture() -> None:
    allowed = [opened(A), *whole_stream(A)[1:]]
    forbidden = [opened(B, capture_content=False), *whole_stream(B)[1:]]
    texts = {r["stream_id"]: r["output_text"] for r in rows_of(fed(*allowed, *forbidden, capture=("*",)))}
    assert texts == {A: "w0 w1 w2 ", B: None}
    assert rows_of(fed(*allowed))[0]["output_text"] is None


# -- duplicates ----------------------------------------------------------------------------------------------------


def test_repeated_records_and_sequences_are_dropped() -> None:
    records = whole_stream(A)
    plain = rows_of(fed(*records))
    assert rows_of(fed(*[r for record in records for r in (record, record)])) == plain
    assert rows_of(fed(*records[:4], *records)) == plain


def test_late_duplicates_do_not_reopen_a_finished_stream() -> None:
    records = whole_stream(A)
    assembler = fed(*records, *records, *records[2:])
    assert len(assembler.take_finished()) == 1
    assert assembler.open_count == 0


def test_late_duplicates_after_a_restart_do_not_reopen_a_stored_stream() -> None:
    assembler = Assembler()
    assembler.resume("w0", [])
    assembler.end_replay("w0")
    assembler.recall([A])
    assembler.feed("w0", 5, whole_stream(A))
    assert assembler.take_finished() == []
    assert assembler.open_count == 0


def test_remembered_ids_are_bounded() -> None:
    assembler = Assembler(remember=10)
    for i in range(30):
        assembler.feed("w0", i, whole_stream(stream_id(i)))
    assert len(assembler._partitions["w0"]._finished) == 10


# -- record gaps ---------------------------------------------------------------------------------------------------------

MEASURES = (
    "ttfb_ns",
    "ttfc_ns",
    "ttft_ns",
    "ttfo_ns",
    "ttst_ns",
    "last_output_ns",
    "terminator_ns",
    "input_tokens",
    "output_tokens",
    "token_source",
    "itl_ns",
    "icl_p50_ns",
    "icl_p95_ns",
    "icl_p99_ns",
    "icl_max_ns",
    "stall_count",
    "stalled_ns",
    "tps_user",
    "tps_e2e",
    "burstiness",
    "event_count",
    "output_event_count",
    "text_chars",
    "reasoning_chars",
    "tool_call_count",
    "comment_count",
    "malformed_events",
    "finish_reason",
    "streamed",
    "aborted_after_terminal",
)


@given(st.integers(0, 6))
def test_missing_record_makes_the_stream_lost_and_unmeasured(missing: int) -> None:
    records = whole_stream(A)
    assert len(records) == 8
    assembler = fed(*records[:missing], *records[missing + 1 :])
    assembler.lose_open("w0", "tap_died")
    losses = assembler.take_losses().to_dicts()
    (row,) = rows_of(assembler)
    assert (row["outcome"], row["error_type"], row["error_phase"]) == ("tap_lost", "tap_lost", None)
    assert {row[name] for name in MEASURES} == {None}
    assert row["end_ns"] == 300 + 30_000_000  # the counts of the transport are kept
    assert row["started_at"].timestamp() * SECOND_NS == START_NS  # from the id if `Opened` is missing
    assert [(x["first_seq"], x["last_seq"], x["cause"]) for x in losses] == [(missing, missing, "missing")]
    lost = records[missing]
    assert row["lost_bytes"] == (sum(len(d) for _, d in lost.frames) if isinstance(lost, Frames) else 0)


def test_reported_gap_has_its_cause_and_bytes() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:3], Lost(A, 3, 5, "queue_full", START_NS, 1234), *records[6:])
    (row,) = rows_of(assembler)
    assert (row["outcome"], row["lost_bytes"]) == ("tap_lost", 1234)
    (loss,) = assembler.take_losses().to_dicts()
    assert (loss["first_seq"], loss["last_seq"], loss["cause"], loss["bytes"]) == (3, 5, "queue_full", 1234)
    assert (loss["stream_id"], loss["tap"], loss["partition"]) == (A, "tap", "w0")


def test_reported_gap_with_the_last_record_ends_the_stream_at_once() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:3], Lost(A, 3, 7, "log_full", START_NS, 1234, last=True))
    (row,) = rows_of(assembler)
    assert row["outcome"] == "tap_lost"
    (loss,) = assembler.take_losses().to_dicts()
    assert (loss["first_seq"], loss["last_seq"], loss["cause"]) == (3, 7, "log_full")
    assert assembler.open_count == 0


def test_gap_gets_its_cause_from_a_late_lost_record() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:3], *records[5:7], Lost(A, 3, 4, "log_full", START_NS, 7), records[7])
    (row,) = rows_of(assembler)
    assert (row["outcome"], row["lost_bytes"]) == ("tap_lost", 7)
    (loss,) = assembler.take_losses().to_dicts()
    assert (loss["first_seq"], loss["last_seq"], loss["cause"]) == (3, 4, "log_full")


def causes(assembler: Assembler) -> list[tuple[int, int, str]]:
    return assembler.take_losses().select("first_seq", "last_seq", "cause").rows()


def test_stream_that_has_ended_waits_for_the_causes_of_all_its_gaps() -> None:
    records = whole_stream(A)
    assembler = fed(alive(0), *records[:2], records[3], *records[5:])
    assert outcomes(assembler) == {}
    assembler.feed("w0", 90, [Lost(A, 2, 2, "log_error", START_NS, 5)])
    assert outcomes(assembler) == {}
    assembler.feed("w0", 91, [Lost(A, 4, 4, "log_full", START_NS, 7)])
    (row,) = rows_of(assembler)
    assert (row["outcome"], row["lost_bytes"]) == ("tap_lost", 12)
    assert causes(assembler) == [(2, 2, "log_error"), (4, 4, "log_full")]


def test_one_report_explains_all_gaps_in_its_range() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:2], records[3], *records[5:], Lost(A, 2, 4, "log_full", START_NS, 7))
    assert rows_of(assembler)[0]["lost_bytes"] == 7
    assert causes(assembler) == [(2, 2, "log_full"), (4, 4, "log_full")]


@pytest.mark.parametrize("end", [alive(66), alive(5, stopping=True)])
def test_cause_that_nothing_reports_is_waited_for_a_minute_or_until_the_tap_stops(end: Alive) -> None:
    records = whole_stream(A)
    # Without `Opened` it belongs to no tap.
    assembler = fed(alive(0), *records[1:], alive(4))
    assert outcomes(assembler) == {}
    assembler.feed("w0", 99, [end])
    assert outcomes(assembler) == {A: "tap_lost"}
    assert causes(assembler) == [(0, 0, "missing")]


def test_silent_stream_with_an_explained_gap_has_no_second_loss() -> None:
    lost = Lost(A, 4, 4, "queue_full", START_NS, 9)
    assembler = fed(*whole_stream(A)[:4], lost, *(alive(s) for s in range(0, 120, 5)))
    assert outcomes(assembler) == {A: "tap_lost"}
    assert causes(assembler) == [(4, 4, "queue_full")]


@pytest.mark.parametrize("restored", ["from the log", "from checkpoints"])
def test_stream_that_waits_for_a_cause_still_does_after_a_restart(restored: str) -> None:
    options: dict[str, Any] = {} if restored == "from the log" else {"max_held_bytes": 0}
    records = whole_stream(A)
    store = CrashingStore({"w0": [[r] for r in (*records[:3], *records[4:])]}, options)
    assert bool(options) == bool(run_of(store))
    store.entries["w0"].append([Lost(A, 3, 3, "log_error", START_NS, 5)])
    run_of(store)
    assert [row["stream_id"] for row in store.rows] == [A]
    assert [(loss["first_seq"], loss["cause"]) for loss in store.losses] == [(3, "log_error")]


def run_of(store: CrashingStore) -> int:
    """Read all entries, with a commit after each. Returns how many checkpoints were made."""
    store.run(random.Random(1), crash=0, commit=1)
    return store.kept_count


def test_reported_gap_excludes_records_that_had_arrived() -> None:
    records = whole_stream(A, outputs=5)
    assembler = fed(*records[:6], Lost(A, 3, 8, "log_full", START_NS, 1234), records[9])
    (row,) = rows_of(assembler)
    assert row["outcome"] == "tap_lost"
    (loss,) = assembler.take_losses().to_dicts()
    assert (loss["first_seq"], loss["last_seq"], loss["cause"], loss["bytes"]) == (6, 8, "log_full", None)


def test_repeated_lost_record_is_one_gap() -> None:
    records = whole_stream(A)
    lost = Lost(A, 3, 5, "queue_full", START_NS, 1234)
    assembler = fed(*records[:3], lost, records[2], lost, *records[6:])
    assert rows_of(assembler)[0]["lost_bytes"] == 1234
    assert len(assembler.take_losses()) == 1


def test_reported_gap_extends_beyond_a_detected_one() -> None:
    records = whole_stream(A, outputs=5)
    assert len(records) == 10
    assembler = fed(*records[:3], records[5], Lost(A, 4, 8, "log_full", START_NS, 7), records[9])
    assembler.lose_open("w0", "tap_died")
    losses = assembler.take_losses().to_dicts()
    assert [(x["first_seq"], x["last_seq"], x["cause"]) for x in losses] == [
        (3, 3, "missing"),
        (4, 8, "log_full"),
    ]


def test_entirely_lost_stream_has_a_row() -> None:
    assembler = fed(Lost(A, 0, 9, "queue_full", START_NS, 5), closed(A, 10))
    (row,) = rows_of(assembler)
    assert (row["stream_id"], row["outcome"], row["tap"], row["lost_bytes"]) == (A, "tap_lost", None, 5)


def test_only_events_before_a_gap_are_kept() -> None:
    from streamgauge.analytics.measures.measure import measure

    records = whole_stream(A)
    assembler = fed(*records[:4], Lost(A, 4, 4, "queue_full", START_NS), *records[5:])
    events = measure(assembler.take_finished())["events"]
    assert events["seq"].to_list() == [0, 1]


# -- dead taps ---------------------------------------------------------------------------------------------


def test_newer_incarnation_ends_streams_of_the_older() -> None:
    assembler = fed(*whole_stream(A)[:4], alive(1))
    assert outcomes(assembler) == {}
    assembler.feed("w0", 9, [alive(0, incarnation="i2", started_wall_ns=START_NS + 1)])
    assert outcomes(assembler) == {A: "tap_lost"}
    (loss,) = assembler.take_losses().to_dicts()
    assert (loss["first_seq"], loss["cause"]) == (4, "tap_died")


def test_repeated_old_alive_does_not_end_newer_streams() -> None:
    late = START_NS + 100 * SECOND_NS
    assembler = fed(
        alive(50),
        alive(1, incarnation="i2", started_wall_ns=late),
        opened(A, incarnation="i2", wall_ns=late + 5),
        alive(50),
        alive(40),
    )
    assert outcomes(assembler) == {}


def test_other_worker_or_tap_does_not_supersede() -> None:
    newer = START_NS + SECOND_NS
    assembler = fed(
        opened(A),
        alive(0, incarnation="i2", worker=1, started_wall_ns=newer),
        alive(0, incarnation="i3", tap="other", started_wall_ns=newer),
    )
    assert outcomes(assembler) == {}


def test_stopped_incarnation_ends_its_streams() -> None:
    assembler = fed(opened(A), opened(B, incarnation="i2", worker=1), alive(1, stopping=True))
    assert outcomes(assembler) == {A: "tap_lost"}


def test_silent_stream_stays_open_while_its_tap_is_alive() -> None:
    assembler = fed(opened(A), *(alive(s) for s in range(0, 4000, 5)))
    assert outcomes(assembler) == {}


def test_incarnation_silent_for_a_day_of_another_taps_time_is_dead() -> None:
    day_s = 24 * 3600
    others = [alive(s, incarnation="x", tap="other") for s in range(0, day_s + 600, 600)]
    assembler = fed(opened(A), alive(1), *others)
    assert outcomes(assembler) == {}
    assembler.feed("w0", 999, [alive(day_s + 601, incarnation="x", tap="other")])
    assert outcomes(assembler) == {A: "tap_lost"}


@pytest.mark.parametrize(("tap_gone_after_s", "lost_at_s"), [(600, 615), (7200, 7215), (None, None)])
def test_limit_for_silent_taps_is_configurable(tap_gone_after_s: int | None, lost_at_s: int | None) -> None:
    assembler = Assembler(
        tap_gone_after_ns=tap_gone_after_s * SECOND_NS if tap_gone_after_s is not None else None
    )
    assembler.feed("w0", 0, [opened(A), alive(1)])
    lost_s = None
    for second in range(5, 10_000, 5):
        assembler.feed("w0", second, [alive(second, incarnation="x", tap="other")])
        if outcomes(assembler):
            lost_s = second
    assert lost_s == lost_at_s


def test_tap_with_a_slower_ship_after_an_outage_is_not_marked_dead() -> None:
    # Two hosts ship to one topic. After an hour without Kafka, all records of the first host arrive before the second's.
    first = [alive(s, incarnation="x", tap="other") for s in range(0, 3600, 5)]
    end = closed(A, 2, end_ns=3600 * SECOND_NS)
    late = [alive(1800), Request(A, 1, b"{}", False), end, alive(3600)]
    (outcome,) = outcomes(fed(opened(A), alive(1), *first, *late)).values()
    assert outcome != "tap_lost"


def test_alive_records_keep_an_incarnation_alive_despite_wrong_wall_clocks() -> None:
    records: list[AnyRecord] = [opened(A)]
    for s in range(0, 600, 5):
        records.append(alive(s))
        other = alive(s, incarnation="x", tap="other")
        records.append(
            Alive(other.tap, 0, "x", other.wall_ns + 86_400 * SECOND_NS * (s % 2), other.mono_ns, START_NS)
        )
    assert outcomes(fed(*records)) == {}


def test_separate_silences_are_not_added() -> None:
    records: list[AnyRecord] = [opened(A)]
    for s in range(0, 600, 5):
        records.append(alive(s, incarnation="x", tap="other"))
        if s % 50 == 0:
            records.append(alive(s))
    assert outcomes(fed(*records)) == {}


def test_worker_with_a_log_shipped_late_is_not_marked_dead() -> None:
    # One process ships the logs of all slots. After an outage, an hour of one can precede the first record of another.
    first = [alive(s, incarnation="w1", worker=1) for s in range(0, 3600, 5)]
    assert outcomes(fed(opened(A), alive(1), *first, *(alive(s) for s in range(5, 3600, 5)))) == {}


def test_stream_without_opened_record_ends_after_a_minute_of_log_time() -> None:
    assembler = fed(alive(0), Frames(A, 3, [(5, b"x")]), *(alive(s) for s in range(5, 65, 5)))
    assert outcomes(assembler) == {}
    assembler.feed("w0", 99, [alive(70)])
    assert outcomes(assembler) == {A: "tap_lost"}


def test_stream_with_lost_closed_record_ends_while_its_tap_is_alive() -> None:
    records: list[AnyRecord] = [*whole_stream(A)[:4], Lost(A, 4, 7, "log_full", START_NS, 9), opened(B)]
    assembler = fed(*records, *(alive(s) for s in range(0, 120, 5)))
    assert outcomes(assembler) == {A: "tap_lost"}
    assert assembler.position("w0", 999).open_stream_ids == (B,)


def test_records_of_a_lost_stream_do_not_reopen_it() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:4], alive(0, incarnation="i2", started_wall_ns=START_NS + 1), *records[4:])
    assert len(assembler.take_finished()) == 1
    assert assembler.counters["late_records"] == len(records[4:])


def test_open_streams_of_a_partition_can_be_ended() -> None:
    assembler = fed(*whole_stream(A)[:4])
    assembler.feed("w1", 0, whole_stream(B)[:4])
    assembler.lose_open("w0", "tap_died")
    assert outcomes(assembler) == {A: "tap_lost"}


# -- positions and checkpoints -------------------------------------------------------------------------------------


def test_low_is_the_oldest_entry_of_an_open_stream() -> None:
    assembler = Assembler()
    assembler.feed("w0", 10, whole_stream(A))
    assembler.feed("w0", 20, whole_stream(B)[:3])
    assembler.feed("w0", 30, whole_stream(C)[:3])
    assert assembler.position("w0", 31).low == 20
    assembler.feed("w0", 40, whole_stream(B)[3:])
    position = assembler.position("w0", 41)
    assert (position.high, position.low, position.open_stream_ids) == (41, 30, (C,))
    assert assembler.position("w9", 7).low == 7


def test_long_stream_does_not_hold_back_low() -> None:
    records = whole_stream(A, outputs=6)
    assembler = fed(alive(0), *records[:3])
    assert assembler.checkpoint_records() == []
    assembler.feed("w0", 50, [alive(61)])
    (checkpoint,) = assembler.checkpoint_records()
    assert (checkpoint.stream_id, checkpoint.partition, checkpoint.first_seq) == (A, "w0", 0)
    assert assembler.position("w0", 51).low == 51
    assembler.feed("w0", 60, records[3:5])
    assert assembler.position("w0", 61).low == 60
    assembler.feed("w0", 70, [alive(123)])
    (second,) = assembler.checkpoint_records()
    assert second.first_seq == 3

    again = Assembler()
    again.resume("w0", [A])
    again.restore("w0", A, [checkpoint.payload, second.payload])
    again.end_replay("w0")
    assert again.position("w0", 71).low == 71
    assert again._out.held_bytes == 0
    again.feed("w0", 71, records[5:])
    assembler.feed("w0", 71, records[5:])
    assert rows_of(again) == rows_of(assembler) == rows_of(fed(*records))


def test_replay_ignores_streams_that_were_stored() -> None:
    assembler = Assembler()
    assembler.resume("w0", [B])
    assembler.feed("w0", 1, interleave(random.Random(1), [whole_stream(A), whole_stream(B)[:-1]]))
    assembler.end_replay("w0")
    assert assembler.take_finished() == []
    assert assembler.position("w0", 2).open_stream_ids == (B,)


def test_newest_alive_of_each_incarnation_is_kept() -> None:
    assembler = fed(alive(5), alive(10), alive(5), alive(3, incarnation="i2"))
    assembler.feed("w1", 0, [alive(15)])
    assert {key[2]: a.mono_ns // SECOND_NS for key, a in assembler.taps.items()} == {"i1": 15, "i2": 3}


def test_dropped_partition_releases_its_resources() -> None:
    assembler = fed(*whole_stream(A)[:5])
    assembler.drop("w0")
    assert (assembler.open_count, assembler._out.held_bytes, assembler._out.open_events) == (0, 0, 0)
    assert assembler.open_streams() == []


def streams_of_two_incarnations(rng: random.Random, count: int) -> list[AnyRecord]:
    """Streams of one slot with a kill -9 in the middle and `Alive` records 15 s apart."""
    order: list[AnyRecord] = []
    at_s = 0.0
    for incarnation, started_ns, part in (("i1", START_NS, 0), ("i2", START_NS + 10_000 * SECOND_NS, 1)):
        streams = [
            whole_stream(
                stream_id(100 * part + i),
                outputs=rng.randrange(0, 12),
                per_record=rng.randrange(1, 4),
                wall_ns=started_ns + i,
                incarnation=incarnation,
            )
            for i in range(count)
        ]
        mixed = interleave(rng, streams)
        if incarnation == "i1":
            mixed = mixed[: rng.randrange(len(mixed) + 1)]
        at_s = 0.0
        for record in mixed:
            order.append(record)
            if rng.random() < 0.15:
                at_s += 15
                order.append(alive(at_s, incarnation=incarnation, started_wall_ns=started_ns))
        order.append(alive(at_s + 15, incarnation=incarnation, started_wall_ns=started_ns))
    return order


@settings(max_examples=int(os.environ.get("STREAMGAUGE_EXAMPLES", "20")), deadline=None)
@given(st.integers(0, 2**32))
def test_crashes_and_duplicates_anywhere_give_the_same_rows_exactly_once(seed: int) -> None:
    rng = random.Random(seed)
    logs = {p: streams_of_two_incarnations(random.Random(rng.random()), 8) for p in ("w0", "w1")}
    # Two partitions with different streams.
    logs["w1"] = [_renamed(r) for r in logs["w1"]]
    calm = CrashingStore({p: in_entries(random.Random(1), order) for p, order in logs.items()})
    calm.run(random.Random(1), crash=0, commit=0.1)
    expected = {row["stream_id"]: row for row in calm.rows}
    assert len(expected) == len(calm.rows)

    wild = CrashingStore(
        {p: in_entries(rng, with_rewinds(rng, order, chance=0.03)) for p, order in logs.items()},
        {"max_held_bytes": rng.choice([2000, 2**20])},
    )
    wild.run(rng, crash=0.1, commit=0.3)
    assert len(wild.rows) == len(expected)
    assert {row["stream_id"]: row for row in wild.rows} == expected
    assert sorted(map(str, wild.losses)) == sorted(map(str, calm.losses))
    assert wild.kept == {}


def _renamed(record: AnyRecord) -> AnyRecord:
    import msgspec

    if isinstance(record, Alive):
        return msgspec.structs.replace(record, tap_worker=1, incarnation=record.incarnation + "w1")
    renamed = record.stream[:-6] + "f" + record.stream[-5:]
    if isinstance(record, Opened):
        return msgspec.structs.replace(
            record, stream=renamed, tap_worker=1, incarnation=record.incarnation + "w1"
        )
    return msgspec.structs.replace(record, stream=renamed)


def test_crash_test_covers_replay_and_checkpoints() -> None:
    rng = random.Random(3)
    store = CrashingStore({"w0": in_entries(rng, streams_of_two_incarnations(rng, 30))})
    store.run(rng, crash=0.1, commit=0.3)
    assert store.replayed_entries > 10
    assert store.kept_count > 10


# -- bounds --------------------------------------------------------------------------------------------------------


def test_oldest_open_stream_is_evicted_beyond_the_limit() -> None:
    assembler = fed(*(opened(stream_id(i), wall_ns=START_NS + i) for i in range(5)), max_open=3)
    assert outcomes(assembler) == dict.fromkeys((stream_id(0), stream_id(1)), "tap_lost")
    assert assembler.take_losses()["cause"].to_list() == ["too_many_open_streams"] * 2
    assert (assembler.open_count, assembler.counters["evicted_streams"]) == (3, 2)


def test_largest_stream_is_evicted_beyond_the_event_limit() -> None:
    assembler = fed(*whole_stream(A, outputs=10)[:-1], *whole_stream(B, outputs=60)[:-1], max_open_events=50)
    assert outcomes(assembler) == {B: "tap_lost"}
    assert assembler.take_losses()["cause"].to_list() == ["stream_too_large"]
    assert assembler._out.open_events == 12


def test_records_are_checkpointed_early_beyond_half_the_limit() -> None:
    assembler = fed(*whole_stream(A, outputs=40)[:-1], max_held_bytes=10_000)
    assert assembler._out.held_bytes > 5000
    assert [c.stream_id for c in assembler.checkpoint_records()] == [A]
    assert assembler._out.held_bytes == 0


def test_resource_totals_return_to_zero() -> None:
    assembler = Assembler()
    rng = random.Random(5)
    for offset, entry in enumerate(in_entries(rng, streams_of_two_incarnations(rng, 40))):
        assembler.feed("w0", offset, entry)
    assembler.lose_open("w0", "tap_died")
    assert (assembler.open_count, assembler._out.held_bytes, assembler._out.open_events) == (0, 0, 0)
    part = assembler._partitions["w0"]
    assert [*part.open, *part._incomplete, *part._suspects, *part._by_incarnation] == []


# -- invalid records -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        opened("not-a-uuid"),
        opened(A, wall_ns=-1),
        opened(A, wall_ns=2**63),
        opened(A, server_port=99_999),
        opened(A, trace_flags=256),
        opened(A, seq=4),
        closed(A, 0, end_ns=2**62),
        closed(A, 1, waits=[(5, 4, "client")]),
        closed(A, 1, waits=[(0, 5, "client"), (4, 6, "tap")]),
        closed(A, 1, waits=[(-1, 5, "tap")]),
        closed(A, 1, waits=[(0, 2**62, "tap")]),
        closed(A, 1, waits=[(0, 0, "tap")] * 1001),
        Lost(A, 5, 2, "x", START_NS),
        Lost(A, 0, 2**62, "x", START_NS),
        Frames("x", 0, []),
        Frames(A, 0, []),
        Request(A, 0, b"{}", False),
        Frames(A.upper(), 0, []),
        Alive("t", 0, "i", 2**63, 0, 0),
        Alive("t", 2**31, "i", 0, 0, 0),
        Alive("t", 0, "i", 0, 0, 0, False, {"records": 2**63}),
    ],
)
def test_invalid_record_becomes_a_failure(record: AnyRecord) -> None:
    assembler = fed(record)
    (failure,) = assembler.take_failures()
    payload = pack([record], compress=False)
    assert (failure.size, failure.sha256) == (len(payload), hashlib.sha256(payload).hexdigest())
    assert failure.reason in ("bad_numbers", "bad_stream_id", "bad_times")
    assert assembler.taps == {}
    # The stream that the record belongs to is lost there.
    assembler.lose_open("w0", "tap_died")
    causes = assembler.take_losses()["cause"].to_list()
    assert causes.count(failure.reason) == (0 if failure.stream_id is None else 1)
    assert len(assembler.take_finished()) == min(1, len(causes))


@pytest.mark.parametrize(
    "frames",
    [
        Frames(A, 2, [(-5, b"x")], head()),
        Frames(A, 2, [(5, b"x"), (4, b"y")], head()),
        Frames(A, 2, [(2**62, b"x")], head()),
        Frames(A, 2, [(5, b"x")], head(status=70_000)),
        Frames(A, 2, [(5, b"x")], head(), -1),
        Frames(A, 2, [(5, b"x")], head(), 0, []),
        Frames(A, 2, [(5, b"x")], head(), 0, [-1]),
    ],
)
def test_invalid_frames_are_a_gap_in_their_stream(frames: Frames) -> None:
    assembler = fed(*whole_stream(A)[:2], frames, closed(A, 3))
    assert [f.reason for f in assembler.take_failures()] in (["bad_times"], ["bad_numbers"])
    assert outcomes(assembler) == {A: "tap_lost"}


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("restored", ["from the log", "from checkpoints"])
def test_invalid_record_is_reported_and_lost_once_despite_restarts(at: int, restored: str) -> None:
    """Killed after each entry."""
    records: list[AnyRecord] = [*whole_stream(A), alive(1), *whole_stream(B)]
    invalid: dict[int, AnyRecord] = {
        0: opened(A, wall_ns=-1), 1: Request(A, 1, b"{}", False, conversation=Conversation(turns=-1)), 7: closed(A, 7, end_ns=-1)
    }  # fmt: skip
    records[at] = invalid.get(at, Frames(A, at, [(5, b"x"), (4, b"y")]))
    entries = {"w0": [[record] for record in records]}
    store = CrashingStore(entries, {} if restored == "from the log" else {"max_held_bytes": 0})
    failures = list[Failure]()
    for end in range(1, len(records) + 1):
        assembler = store.start()
        assembler.feed("w0", end - 1, entries["w0"][end - 1])
        failures += assembler.take_failures()
        store.commit(assembler, {"w0": end})
    assembler = store.start()
    assembler.lose_open("w0", "tap_died")
    failures += assembler.take_failures()
    store.commit(assembler, {"w0": end})
    assert [(failure.stream_id, failure.offset) for failure in failures] == [(A, at)]
    assert {row["stream_id"]: row["outcome"] for row in store.rows} == {A: "tap_lost", B: "ok"}
    found = [(loss["stream_id"], loss["first_seq"], loss["cause"]) for loss in store.losses]
    assert found == [(A, at, failures[0].reason)]


def test_invalid_copy_of_a_record_that_arrived_changes_nothing() -> None:
    records = whole_stream(A)
    assembler = fed(*records[:4], opened(A, wall_ns=-1), *records[4:], opened(A, wall_ns=-1))
    assert outcomes(assembler) == {A: "ok"}
    assert (assembler.take_failures(), causes(assembler)) == ([], [])


def test_exception_while_a_record_is_assembled_loses_only_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    real = OpenStream.read_request

    def broken(self: OpenStream, record: Request, *more: Any) -> None:
        if self.stream_id == A:
            raise ZeroDivisionError
        real(self, record, *more)

    monkeypatch.setattr(OpenStream, "read_request", broken)
    assembler = Assembler()
    pairs = zip(whole_stream(A), whole_stream(B), strict=True)
    assembler.feed("w0", 0, [record for pair in pairs for record in pair])
    assert outcomes(assembler) == {A: "tap_lost", B: "ok"}
    (failure,) = assembler.take_failures()
    assert (failure.stream_id, failure.reason) == (A, "assemble: ZeroDivisionError")
    assert causes(assembler) == [(1, 1, "assemble: ZeroDivisionError")]


def test_stream_whose_records_are_gone_after_a_restart_waits_for_its_loss() -> None:
    for lost, cause in (([], "missing"), ([Lost(A, 0, 6, "log_full", START_NS)], "log_full")):
        assembler = Assembler()
        assembler.resume("w0", [A])
        assembler.end_replay("w0")
        assembler.feed("w0", 0, [alive(0), *lost])
        assert outcomes(assembler) == {}
        assembler.feed("w0", 1, [alive(61)])
        assert outcomes(assembler) == {A: "tap_lost"}
        assert assembler.take_losses()["cause"].to_list() == [cause]


def test_decoder_failure_is_reported_with_the_end_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a restart the same exception may come in another batch of frames, or not at all."""

    def broken(self: StreamDecoder, *_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(StreamDecoder, "feed_reads", broken)
    records = whole_stream(A)
    store = CrashingStore({"w0": [[record] for record in records]})
    failures = list[Failure]()
    for end in range(1, len(records) + 1):
        assembler = store.start()
        assembler.feed("w0", end - 1, store.entries["w0"][end - 1])
        assembler.open_streams()
        failures += assembler.take_failures()
        store.commit(assembler, {"w0": end})
    assert [failure.reason for failure in failures] == ["decoder: ZeroDivisionError"]
    assert [loss["cause"] for loss in store.losses] == ["decoder: ZeroDivisionError"]
    assert [row["outcome"] for row in store.rows] == ["tap_lost"]


def test_exception_in_the_decoder_loses_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StreamDecoder.feed_reads

    def broken(self: StreamDecoder, times: Any, reads: Any, *, wire_bytes: int | None = None) -> None:
        if b"boom" in reads[0]:
            raise ZeroDivisionError
        real(self, times, reads)

    monkeypatch.setattr(StreamDecoder, "feed_reads", broken)
    bad = [
        opened(A),
        Frames(A, 1, [(5, chunk("boom"))], head()),
        Frames(A, 2, [(6, finish_chunk())]),
        closed(A, 3),
    ]
    assembler = fed(*bad, *whole_stream(B))
    assert outcomes(assembler) == {A: "tap_lost", B: "ok"}
    assert [(f.stream_id, f.reason) for f in assembler.take_failures()] == [(A, "decoder: ZeroDivisionError")]


def test_exception_when_finishing_loses_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: StreamDecoder) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(StreamDecoder, "finish", broken)
    assembler = fed(*whole_stream(A))
    assert outcomes(assembler) == {A: "tap_lost"}
    assert len(assembler.take_failures()) == 1


def test_data_frames_match_the_schema() -> None:
    lost = Lost(B, 3, 3, "queue_full", START_NS)
    assembler = fed(*whole_stream(A)[:5], *whole_stream(B)[:3], lost, *whole_stream(B)[4:])
    con = duckdb.connect()
    con.execute(schema_sql() + OPEN_STREAMS_SQL)
    for table, rows in (
        ("open_streams", open_stream_frame(assembler.open_streams())),
        ("losses", assembler.take_losses()),
    ):
        assert rows.columns == [c[0] for c in con.execute(f"SELECT * FROM {table}").description or []]
        con.register("appended", rows)
        con.execute(f"INSERT INTO {table} BY NAME FROM appended")
        assert con.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)

"""Silence is measured from the last output to the tap's newest `Alive`, on the tap's clock."""

from __future__ import annotations

import msgspec
import pytest

from streamgauge.analytics.alerts.alert_states import Key
from streamgauge.analytics.alerts.rules import dominant_client, silence_conditions
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.open_streams import (
    MAX_ADVANCE_NS,
    Phase,
    Silence,
    TapClocks,
    longest,
    open_stream_frame,
    silences,
    waiting_for_client,
)
from streamgauge.ingest.records import AnyRecord, Frames, Opened
from tests.analytics.log_entries import MS, T0_WALL_NS, alive, opened, stream, stream_id

LIMITS: dict[Phase, float] = {"mid_stream": 5.0, "pre_first_output": 60.0}


def silent(records: list[AnyRecord], at_ms: int, *, since_alive_ns: int = 0) -> list[Silence]:
    """The silences when the tap reports at `at_ms`."""
    assembler, clocks = Assembler(), TapClocks()
    assembler.feed("w0", 0, records)
    assembler.feed("w0", 1, [alive(at_ms)])
    clocks.update(assembler.taps.values(), 0)
    return silences(assembler.open_streams(), clocks, since_alive_ns)


def test_silence_begins_with_the_last_output_and_ends_at_the_newest_alive() -> None:
    # Stream 1 opens 1 ms after the epoch; its output events are at 200, 220 … 280 ms since t0.
    [found] = silent(stream(1)[:3], at_ms=7_281)
    assert (found.phase, found.silent_ns, found.gateway, found.model) == (
        "mid_stream",
        7_000 * MS,
        "gw",
        "gpt-test",
    )


def test_silence_before_the_first_output_begins_with_t0() -> None:
    [found] = silent(stream(1)[:2], at_ms=9_001)
    assert (found.phase, found.silent_ns) == ("pre_first_output", 9_000 * MS)


def test_comments_do_not_end_the_silence() -> None:
    comment = Frames(stream_id(1), 3, [(6_000 * MS, b": ping\n\n")])
    [found] = silent([*stream(1)[:3], comment], at_ms=7_281)
    assert found.silent_ns == 7_000 * MS


def test_time_after_the_newest_alive_counts_up_to_its_interval() -> None:
    for since_ns in (MS, MAX_ADVANCE_NS, 10 * MAX_ADVANCE_NS):
        [found] = silent(stream(1)[:3], at_ms=1_281, since_alive_ns=since_ns)
        assert found.silent_ns == 1_000 * MS + min(since_ns, MAX_ADVANCE_NS)


def test_backlog_read_late_is_not_silence() -> None:
    [found] = silent(stream(1)[:3], at_ms=300, since_alive_ns=0)
    assert found.silent_ns == 19 * MS


def test_stream_without_a_report_of_its_tap_has_no_silence() -> None:
    assembler = Assembler()
    assembler.feed("w0", 0, stream(1)[:3])
    assert silences(assembler.open_streams(), TapClocks(), 10**12) == []


def changed(first: Opened, **fields: object) -> Opened:
    return msgspec.structs.replace(first, **fields)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models", "/mcp"])
def test_operations_without_output_are_never_silent(path: str) -> None:
    assert silent([changed(opened(1), path=path), *stream(1)[1:2]], at_ms=90_000) == []


def test_finished_streams_and_streams_with_gaps_are_never_silent() -> None:
    assert (
        silent(stream(1)[:-1], at_ms=90_000) == []
    )  # the terminal was seen; the server keeps the connection open
    assert silent([*stream(1)[:2], *stream(1)[3:4]], at_ms=90_000) == []


def test_stream_whose_client_its_tap_waits_for_is_the_clients_silence() -> None:
    assembler, clocks = Assembler(), TapClocks()
    assembler.feed("w0", 0, [*stream(1)[:3], *stream(2)[:3]])
    waits = msgspec.structs.replace(alive(7_281), waiting_for_client=[stream_id(2)])
    for report, expected in ((waits, [False, True]), (alive(9_281), [False, False])):
        assembler.feed("w0", 1, [report])
        clocks.update(assembler.taps.values(), 0)
        opened = assembler.open_streams()
        assert [found.waits_for_client for found in silences(opened, clocks, 0)] == expected
        frame = open_stream_frame(opened, waiting_for_client(assembler.taps.values()))
        assert frame["waits_for_client"].to_list() == expected


def one(
    model: str = "m",
    *,
    silent_s: float,
    phase: Phase = "mid_stream",
    client: str | None = None,
    waits: bool = False,
) -> Silence:
    return Silence(f"id-{model}-{silent_s}", "gw", model, client, phase, int(silent_s * 1e9), waits)


def test_clients_that_do_not_read_are_an_alert_of_their_own_that_names_them() -> None:
    found = [one(silent_s=s, client="c1", waits=True) for s in (6, 7)] + [one(silent_s=8), one(silent_s=9)]
    texts = {key.metric: c.message for key, c in silence_conditions(found, LIMITS, T0_WALL_NS).items()}
    assert texts == {
        "client": "client is not reading the output of m at gw for 7.0 s (limit 5 s), 2 streams, mostly of client c1",
        None: "no output from m at gw for 9.0 s (limit 5 s), 2 streams",
    }


def test_condition_names_the_longest_silence_and_the_dominant_client() -> None:
    found = [one(silent_s=s, client=c) for s, c in ((4, "c2"), (6, "c1"), (9, "c1"), (7, "c2"), (8, "c1"))]
    [(key, condition)] = silence_conditions(found, LIMITS, T0_WALL_NS).items()
    assert key == Key("silent_stream", "gw", "m")
    assert (condition.value, condition.threshold, condition.stream_id) == (9.0, 5.0, "id-m-9")
    assert condition.since_ns == T0_WALL_NS - 9_000 * MS
    assert condition.message == "no output from m at gw for 9.0 s (limit 5 s), 4 streams, mostly of client c1"
    [named] = silence_conditions(found, LIMITS, T0_WALL_NS, {"c1": "billing"}).values()
    assert (named.message, named.client_id) == (condition.message.replace("c1", "billing"), "c1")


def test_each_phase_has_its_own_limit_and_zero_turns_it_off() -> None:
    found = [
        one(silent_s=30),
        one(silent_s=50, phase="pre_first_output"),
        one(silent_s=70, phase="pre_first_output"),
    ]
    assert [k.rule for k in silence_conditions(found, LIMITS, 0)] == ["silent_stream", "no_first_output"]
    assert silence_conditions(found, {"mid_stream": 0, "pre_first_output": 0}, 0) == {}


@pytest.mark.parametrize(
    ("clients", "expected"), [(["a"], None), (["a", "a"], "a"), (["a", "b"], None), ([None, None, "a"], None)]
)
def test_one_stream_has_no_dominant_client(clients: list[str | None], expected: str | None) -> None:
    assert dominant_client(clients) == expected


def test_groups_have_the_number_of_streams_and_the_longest_silence() -> None:
    found = [one(silent_s=1), one(silent_s=3), one("n", silent_s=2, phase="pre_first_output")]
    assert longest(found) == {
        ("gw", "m", "mid_stream"): (2, 3_000 * MS),
        ("gw", "n", "pre_first_output"): (1, 2_000 * MS),
    }

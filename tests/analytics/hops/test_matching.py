"""The matcher on random schedules: what it finds, and that it never joins streams of different requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest

from streamgauge.analytics.hops.candidate import HopCandidate
from streamgauge.analytics.hops.clock_offset import ClockOffsets
from streamgauge.analytics.hops.identical_output import Output
from streamgauge.analytics.hops.matching import MAX_GROUP, Matches, SideOrder, match
from tests.analytics.hops.gateway import MS, SECOND, Clock, Exchange, Side, exchange

START = 1_800_000_000 * SECOND


def candidate(side: Side, **more: Any) -> HopCandidate:
    t0 = side.began_ns
    times = [at - t0 for at, _ in side.output]
    text = "".join(part for _, part in side.output)
    request_id = dict(side.headers).get("x-request-id")
    return HopCandidate(
        **{
            "stream_id": side.stream_id, "wall_ns": t0 + side.clock.wall_error_ns, "tap": f"tap-{side.clock.clock_id}",
            "gateway": side.gateway, "clock_id": side.clock.clock_id, "clock_ns": t0 + side.clock.offset_ns,
            "trace_id": side.trace_id, "span_id": side.span_id, "parent_span_id": side.parent_span_id,
            "response_id": side.response_id or None, "request_id": request_id,
            "output_fingerprint": text or None, "tool_fingerprint": None,
            "outcome": "ok" if side.status == 200 else "http_error", "client_start_ns": -1000, "request_sent_ns": 1000,
            "ttfb_ns": times[0] if times else None, "ttft_ns": times[0] if times else None,
            "last_output_ns": times[-1] if times else None, "end_ns": side.end_ns - t0,
            **more,
        }
    )  # fmt: skip


def sides(exchanges: Sequence[Exchange]) -> list[Side]:
    return [side for each in exchanges for side in (each.outer, *each.inners)]


def outputs_of(streams: Sequence[Side]) -> Callable[[Sequence[str]], dict[str, Output]]:
    found = {
        side.stream_id: Output(
            [at - side.began_ns for at, _ in side.output],
            list(accumulate(len(text) for _, text in side.output)),
        )
        for side in streams
    }
    return lambda ids: {stream_id: found[stream_id] for stream_id in ids}


def matched(
    streams: Sequence[Side], offsets: ClockOffsets | None = None, order: SideOrder | None = None
) -> Matches:
    shuffled = random.Random(1).sample(list(streams), len(streams))
    return match(
        [candidate(side) for side in shuffled],
        offsets or ClockOffsets(),
        order or SideOrder(),
        outputs_of(streams),
    )


def pairs(found: Matches) -> set[tuple[str, str]]:
    return {(pair.outer.stream_id, pair.inner.stream_id) for pair in found.found}


def truth(exchanges: Sequence[Exchange]) -> set[tuple[str, str]]:
    return {(each.outer.stream_id, inner.stream_id) for each in exchanges for inner in each.inners}


WORDS = ["word "] * 60


def concurrent(rng: random.Random, n: int = 50, **options: Any) -> list[Exchange]:
    """Identical prompts with identical answers, sent within half a second."""
    return [exchange(START + rng.randrange(SECOND // 2), text=WORDS, rng=rng, **options) for _ in range(n)]


@pytest.mark.parametrize(
    ("options", "least"),
    [
        pytest.param({"delay_ns": (MS // 10, 2 * MS)}, 0.99, id="fast gateway"),
        pytest.param({"delay_ns": (MS, 15 * MS)}, 0.99, id="delays as long as chunks"),
        pytest.param({"delay_ns": (0, 60 * MS), "before_ns": 30 * MS}, 0.0, id="delays hide the times"),
        pytest.param({"delay_ns": (MS, 3 * MS), "jitter": 0.0}, 0.0, id="no jitter: times show nothing"),
        pytest.param({"delay_ns": (MS, 3 * MS), "propagate": "trace"}, 1.0, id="trace"),
        pytest.param({"delay_ns": (MS, 90 * MS), "propagate": "response_id"}, 1.0, id="response id"),
        pytest.param({"delay_ns": (MS, 90 * MS), "propagate": "request_id"}, 1.0, id="request id"),
    ],
)
def test_concurrent_identical_prompts(options: dict[str, Any], least: float) -> None:
    right = expected = 0
    for seed in range(6):
        sent = concurrent(random.Random(seed), **options)
        found = pairs(matched(sides(sent)))
        assert found <= truth(sent), "no wrong match"
        right, expected = right + len(found), expected + len(truth(sent))
    assert right >= least * expected, right / expected


@pytest.mark.parametrize("missing", ["outer", "inner"])
def test_missing_partner_causes_no_wrong_match(missing: str) -> None:
    """A gateway's cache answers, or the tap lost a stream."""
    for seed in range(8):
        rng = random.Random(seed)
        sent = concurrent(rng, 30, delay_ns=(MS // 10, 4 * MS))
        lost = {id(each) for each in rng.sample(sent, 8)}
        streams = [
            side
            for each in sent
            for side in (each.outer, *each.inners)
            if id(each) not in lost or (side is each.outer) == (missing == "inner")
        ]
        found = pairs(matched(streams))
        assert found <= {pair for each in sent if id(each) not in lost for pair in truth([each])}
        assert len(found) >= 0.9 * 22


SLOW, FAST = (MS, 90 * MS), (MS // 10, 4 * MS)


@pytest.mark.parametrize("delay_ns", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize(
    "text",
    [WORDS[:1], WORDS[:3], WORDS[:12], WORDS, WORDS * 5, ["word " * n for n in (1, 1, 2, 5, 1, 3) * 7]],
    ids=["1 event", "3 events", "12 events", "60 events", "300 events", "several words per event"],
)
def test_many_missing_partners_cause_no_wrong_match(text: Sequence[str], delay_ns: tuple[int, int]) -> None:
    """Up to 40 % of the partners are missing, often as many on both sides."""
    for seed in range(30):
        rng = random.Random(seed)
        count, spread_ns = rng.choice([3, 5, 12, 30]), rng.choice([SECOND // 50, SECOND // 2])
        options: dict[str, Any] = {
            "text": text,
            "delay_ns": delay_ns,
            "before_ns": rng.choice([2, 20]) * MS,
            "rng": rng,
        }
        options["jitter"] = rng.choice([0.05, 0.5, 0.9])
        sent = [exchange(START + rng.randrange(spread_ns), **options) for _ in range(count)]
        most = round(0.4 * count)
        lost_outer, lost_inner = (set(rng.sample(range(count), rng.randint(most // 2, most))) for _ in "oi")
        outers = [each.outer for n, each in enumerate(sent) if n not in lost_outer]
        inners = [each.inners[0] for n, each in enumerate(sent) if n not in lost_inner]
        order = SideOrder()
        if seed % 2:
            order.add(candidate(sent[0].outer), candidate(sent[0].inners[0]))
        found = matched([*outers, *inners], order=order)
        assert pairs(found) <= truth(sent)
        unmatched = {s.stream_id for s in outers} - {outer for outer, _ in pairs(found)}
        with_candidates = {o.stream_id for o in outers if any(may_carry(o, inner) for inner in inners)}
        assert not seed % 2 or with_candidates & unmatched <= found.ambiguous


def may_carry(outer: Side, inner: Side) -> bool:
    first_and_last = all(outer.output[n][0] >= inner.output[n][0] for n in (0, -1))
    return outer.began_ns <= inner.began_ns <= outer.end_ns and first_and_last


@pytest.mark.parametrize("how", ["one batch", "one pattern"])
@pytest.mark.parametrize("missing", ["outer", "inner"])
def test_times_that_streams_share_identify_none(how: str, missing: str) -> None:
    """A model server that produces the next word of all streams in one step, or that waits equally long before equal words.
    One request has only an outer stream, one only an inner stream."""
    for seed in range(10):
        rng = random.Random(seed)
        steps = list(accumulate((rng.randint(10, 30) * MS for _ in range(90)), initial=START))
        sent = [exchange(START + n * MS, text=WORDS, rng=rng) for n in range(3)]
        for n, each in enumerate(sent):
            (inner,) = each.inners
            first, later_ns = (3 + n // 2, 0) if how == "one batch" else (3, n // 2 * 7 * MS)
            inner.output = [(at + later_ns, word) for at, word in zip(steps[first:], WORDS, strict=False)]
            each.outer.output = [(at + rng.randint(MS // 10, 2 * MS), word) for at, word in inner.output]
            inner.end_ns, each.outer.end_ns = inner.output[-1][0] + MS, each.outer.output[-1][0] + 5 * MS
        one, other, third = sent
        streams = [one.outer, other.inners[0], third.outer if missing == "inner" else third.inners[0]]
        assert pairs(matched(streams)) <= truth(sent)


def test_part_that_leaves_before_it_arrives_excludes_a_pair() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        sent = [exchange(START + n * 100 * MS, text=WORDS, delay_ns=(MS, 2 * MS), rng=rng) for n in range(2)]
        output = sent[0].inners[0].output
        assert isinstance(output, list)
        output[30] = sent[0].outer.output[30][0] + MS // 2, output[30][1]
        assert pairs(matched(sides(sent))) == truth(sent[1:])


def test_output_that_occurs_once_is_matched_without_times() -> None:
    sent = [exchange(START + n * 10 * SECOND, text=["Yes"], delay_ns=(MS, 400 * MS)) for n in range(3)]
    assert pairs(matched(sides(sent))) == truth(sent)


def test_traces_of_several_requests_and_direct_calls() -> None:
    """A client sends, in one trace, one request through the gateway and one past it."""
    through = exchange(START)
    trace = {"trace_id": through.outer.trace_id, "parent_span_id": "c" * 16}
    outer = candidate(through.outer, **trace)
    inner = candidate(through.inners[0], trace_id=outer.trace_id, parent_span_id="d" * 16)
    past = exchange(START + 3 * MS, text=["Other ", "words."]).inners[0]
    direct = candidate(past, trace_id=outer.trace_id, parent_span_id="e" * 16)
    found = match([outer, inner, direct], ClockOffsets(), SideOrder(), lambda ids: {})
    assert [(pair.outer, pair.inner, pair.matched_by) for pair in found.found] == [(outer, inner, "trace")]


def test_every_stream_of_a_trace_that_the_outer_tap_started_descends_from_its_stream() -> None:
    """Also if the gateway changes the text."""
    sent = exchange(START)
    inner = candidate(
        sent.inners[0], trace_id=sent.outer.trace_id, parent_span_id="d" * 16, output_fingerprint="another"
    )
    found = match([candidate(sent.outer), inner], ClockOffsets(), SideOrder(), lambda ids: {})
    assert [pair.matched_by for pair in found.found] == ["trace"]


def test_failed_attempt_in_the_trace_of_a_client_is_matched() -> None:
    """Its parent is a span of the gateway, and it has no output to compare."""
    sent = exchange(START, before_ns=50 * MS, propagate="trace")
    outer = candidate(sent.outer, parent_span_id="c" * 16)
    failed = Side("model", sent.outer.clock, START + MS, status=500, trace_id=sent.outer.trace_id)
    inner = candidate(failed, parent_span_id="d" * 16)
    found = match([outer, inner], ClockOffsets(), SideOrder(), lambda ids: {})
    assert [(pair.outer, pair.inner, pair.matched_by) for pair in found.found] == [(outer, inner, "trace")]


def test_stream_below_two_gateways_of_one_trace_belongs_to_the_last_of_them() -> None:
    first = exchange(START, propagate="trace")
    (middle,) = first.inners
    output = [(at - MS, text) for at, text in middle.output]
    last = Side("deep", middle.clock, middle.began_ns + MS, output, trace_id=middle.trace_id)
    last.parent_span_id = "e" * 16  # a span of the second gateway
    found = matched([first.outer, middle, last]).found
    by_trace = [(m.outer.stream_id, m.inner.stream_id) for m in found if m.matched_by == "trace"]
    assert by_trace == [(middle.stream_id, last.stream_id)]


@pytest.mark.parametrize("propagate", ["trace", "response_id", "request_id", ""])
def test_chain_of_gateways_is_matched_hop_by_hop(propagate: str) -> None:
    for seed in range(5):
        first = exchange(START, delay_ns=(MS, 3 * MS), propagate=propagate, rng=random.Random(seed))
        middle = first.inners[0]
        last = Side(
            "deep", middle.clock, middle.began_ns + MS, [(at - MS, text) for at, text in middle.output]
        )
        last.response_id, last.headers = middle.response_id, middle.headers
        if propagate == "trace":
            last.trace_id, last.parent_span_id = middle.trace_id, middle.span_id
        found = pairs(matched([first.outer, middle, last]))
        assert found == {(first.outer.stream_id, middle.stream_id), (middle.stream_id, last.stream_id)}


def test_retries_with_one_request_id_are_attempts_of_their_own_request() -> None:
    sent = [exchange(START + n * 5 * SECOND, before_ns=50 * MS, propagate="request_id") for n in range(2)]
    for each in sent:
        failed = Side("model", each.outer.clock, each.outer.began_ns + 2 * MS, status=500)
        failed.headers = sent[0].outer.headers
        each.outer.headers = each.inners[0].headers = failed.headers
        each.inners.insert(0, failed)
    found = matched(sides(sent))
    assert pairs(found) == truth(sent)
    assert {pair.matched_by for pair in found.found} == {"request_id"}


def test_one_id_for_all_requests_causes_no_wrong_match() -> None:
    sent = concurrent(random.Random(3), 20, delay_ns=(MS, 3 * MS))
    for side in sides(sent):
        side.response_id = "chatcmpl-1"
        side.headers = [("x-request-id", "always")]
    assert pairs(matched(sides(sent))) <= truth(sent)


def test_two_gateways_that_answer_the_same_prompt() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        sent = concurrent(rng, 10, delay_ns=(MS, 3 * MS))
        other = concurrent(rng, 10, delay_ns=(MS, 3 * MS))
        for each in other:
            each.outer.gateway = "gateway-b"
        assert pairs(matched(sides([*sent, *other]))) <= truth([*sent, *other])


def test_too_large_groups_are_not_matched() -> None:
    sent = [exchange(START + n * MS) for n in range(MAX_GROUP)]
    assert not matched(sides(sent)).found


# -- clocks of two taps ------------------------------------------------------------------------------------------------

OUTER, INNER = Clock("a"), Clock("b", offset_ns=777 * SECOND, wall_error_ns=-7 * SECOND)
OFFSET_NS = INNER.offset_ns - OUTER.offset_ns


@pytest.mark.parametrize("propagate", ["trace", "response_id", "request_id"])
def test_offset_of_two_clocks_is_within_the_stated_error(propagate: str) -> None:
    for seed in range(10):
        rng, offsets = random.Random(seed), ClockOffsets()
        errors = []
        for n in range(20):
            sent = exchange(
                START + n * SECOND, rng=rng, propagate=propagate, outer_clock=OUTER, inner_clock=INNER,
                before_ns=rng.randrange(MS, 20 * MS), delay_ns=(MS, 30 * MS),
            )  # fmt: skip
            assert pairs(matched(sides([sent]), offsets)) == truth([sent])
            offset = offsets.between(candidate(sent.outer), candidate(sent.inners[0]))
            assert abs(offset.ns - OFFSET_NS) <= offset.error_ns
            errors.append(offset.error_ns)
        assert errors[-1] < 5 * MS
        assert errors[-1] <= errors[0]


@pytest.mark.parametrize("drift", [5e-5, -5e-5], ids=["beyond old upper bounds", "below old lower bounds"])
def test_drift_of_the_clocks_is_within_the_stated_error(drift: float) -> None:
    offsets = ClockOffsets()
    for n in range(600):
        inner_clock = Clock("b", offset_ns=INNER.offset_ns + int(n * SECOND * drift))
        sent = exchange(START + n * SECOND, propagate="trace", outer_clock=OUTER, inner_clock=inner_clock)
        matched(sides([sent]), offsets)
        offset = offsets.between(candidate(sent.outer), candidate(sent.inners[0]))
        assert abs(offset.ns - (inner_clock.offset_ns - OUTER.offset_ns)) <= offset.error_ns


def test_clock_that_jumps_starts_a_new_estimate() -> None:
    offsets = ClockOffsets()
    for n, offset_ns in enumerate([INNER.offset_ns] * 5 + [INNER.offset_ns + 3 * SECOND] * 5):
        clock = Clock("b", offset_ns=offset_ns)
        sent = exchange(START + n * SECOND, propagate="trace", outer_clock=OUTER, inner_clock=clock)
        matched(sides([sent]), offsets)
        offset = offsets.between(candidate(sent.outer), candidate(sent.inners[0]))
        assert abs(offset.ns - (offset_ns - OUTER.offset_ns)) <= offset.error_ns < 50 * MS


def test_identical_prompts_on_two_hosts_are_matched_once_the_offset_is_known() -> None:
    rng, offsets, order = random.Random(5), ClockOffsets(), SideOrder()
    clocks: dict[str, Any] = {"outer_clock": OUTER, "inner_clock": INNER, "delay_ns": (MS // 10, 2 * MS)}
    unknown = concurrent(rng, 20, **clocks)
    assert pairs(matched(sides(unknown), offsets, order)) <= truth(unknown)
    for n in range(30):
        sent = exchange(START + n * SECOND, rng=rng, propagate="request_id", before_ns=MS, **clocks)
        matched(sides([sent]), offsets, order)
    sent = concurrent(rng, 50, **clocks)
    found = pairs(matched(sides(sent), offsets, order))
    assert found <= truth(sent)
    assert len(found) >= 0.95 * 50


def test_websocket_and_its_answers_are_no_hop() -> None:
    """The answers have the socket's span as their parent, at the same tap and upstream."""
    sent = exchange(START)
    socket = candidate(sent.outer)
    child = {"trace_id": socket.trace_id, "parent_span_id": socket.span_id, "connection_id": socket.stream_id}
    answers = [
        candidate(
            exchange(START + n * MS).outer,
            gateway=socket.gateway,
            tap=socket.tap,
            span_id=f"{n:016x}",
            **child,
        )
        for n in (1, 2)
    ]
    found = match([socket, *answers], ClockOffsets(), SideOrder(), lambda ids: {})
    assert found.found == []
    other = candidate(sent.inners[0], **{**child, "connection_id": None})
    [pair] = match([socket, *answers, other], ClockOffsets(), SideOrder(), lambda ids: {}).found
    assert (pair.outer, pair.inner, pair.matched_by) == (socket, other, "span")

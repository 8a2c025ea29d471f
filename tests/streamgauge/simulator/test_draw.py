"""A plan depends only on the seed, the request id and forced values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.simulator.profiles import PROFILES
from streamgauge.simulator.response_plan import (
    ForcedValues,
    ResponsePlan,
    draw_plan,
    http_fault_status,
    read_simulate_header,
)
from streamgauge.simulator.response_writer import ResponseWriter
from streamgauge.simulator.written_streams import WRITTEN_STREAMS


def plan(
    request_id: str = "r", model: str = "gpt-sim-mini", forced: ForcedValues | None = None, **more: Any
) -> ResponsePlan:
    settings: dict[str, Any] = {
        "seed": "s",
        "body": {"model": model},
        "rate_faults": 0.5,
        "time_scale": 1.0,
        **more,
    }
    return draw_plan(
        request_id=request_id,
        profile=PROFILES[model],
        streamed=True,
        forced=forced or ForcedValues(),
        **settings,
    )


def billed_tokens(drawn: ResponsePlan) -> int:
    writer = ResponseWriter(WRITTEN_STREAMS[drawn.vendor], drawn, 0)
    for piece in drawn.pieces():
        writer.add_piece(piece)
    return writer.output_tokens


def test_same_seed_and_request_id_give_the_same_plan_and_text() -> None:
    assert plan() == plan()
    assert list(plan().pieces()) == list(plan().pieces())


def test_another_seed_gives_another_plan() -> None:
    assert plan(seed="other") != plan()


def test_forcing_one_value_does_not_change_other_draws() -> None:
    free, forced = plan(), plan(forced=ForcedValues(gap_ms=5))
    assert forced.gap_s == 0.005
    assert (forced.text_tokens, forced.ttft_s) == (free.text_tokens, free.ttft_s)


def test_share_of_faults_follows_rate_faults() -> None:
    faulty = sum(plan(f"r{i}", rate_faults=0.3).fault != "none" for i in range(1000))
    assert 240 < faulty < 360


def test_rate_faults_zero_draws_no_fault() -> None:
    assert {plan(f"r{i}", rate_faults=0.0).fault for i in range(200)} == {"none"}


def test_request_with_forced_values_draws_no_fault() -> None:
    assert {plan(f"r{i}", rate_faults=1.0, forced=ForcedValues(tokens=3)).fault for i in range(50)} == {
        "none"
    }


@given(
    tokens=st.integers(0, 200), chunk=st.integers(1, 9), reasoning=st.integers(0, 50), tools=st.integers(0, 3)
)
def test_pieces_add_up_to_the_forced_counts(tokens: int, chunk: int, reasoning: int, tools: int) -> None:
    forced = ForcedValues(tokens=tokens, chunk_tokens=chunk, reasoning_tokens=reasoning, tool_calls=tools)
    drawn = plan(forced=forced)
    pieces = list(drawn.pieces())
    assert sum(p.tokens for p in pieces if p.kind == "text") == tokens
    assert sum(p.tokens for p in pieces if p.kind == "reasoning") == reasoning
    assert sum(p.kind == "tool_start" for p in pieces) == tools
    assert billed_tokens(drawn) == sum(p.tokens for p in pieces)


def test_hidden_reasoning_is_billed_but_not_written() -> None:
    drawn = plan(model="gpt-sim-thinker", forced=ForcedValues(tokens=5, reasoning_tokens=40))
    assert billed_tokens(drawn) == 45
    assert all(piece.kind == "text" for piece in drawn.pieces())


def test_token_limit_in_the_body_finishes_with_length() -> None:
    drawn = plan(body={"model": "gpt-sim-mini", "max_tokens": 1}, rate_faults=0.0)
    assert drawn.text_tokens == 1
    assert drawn.finish == "length"


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[]",
        '{"fault":"nonsense"}',
        '{"tokens":-1}',
        '{"unknown":1}',
        '{"ttft_ms":1e12}',
        '{"fault":"http_200"}',
    ],
)
def test_invalid_simulate_header_is_rejected(header: str) -> None:
    with pytest.raises(ValueError, match="x-simulate"):
        read_simulate_header(header)


def test_http_fault_names_its_status() -> None:
    assert (http_fault_status("http_429"), http_fault_status("http_200"), http_fault_status("truncate")) == (
        429,
        None,
        None,
    )

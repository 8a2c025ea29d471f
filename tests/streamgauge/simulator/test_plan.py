"""What is decided depends on the seed and the request's id alone, and on what the request forces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.simulator.plan import Instructions, Plan, draw, http_fault, instructions
from streamgauge.simulator.profiles import PROFILES


def plan(
    request_id: str = "r", model: str = "gpt-sim-mini", wish: Instructions | None = None, **more: Any
) -> Plan:
    settings: dict[str, Any] = {
        "seed": "s",
        "body": {"model": model},
        "rate_faults": 0.5,
        "time_scale": 1.0,
        **more,
    }
    return draw(
        request_id=request_id, profile=PROFILES[model], streamed=True, wish=wish or Instructions(), **settings
    )


def test_same_seed_and_request_id_give_the_same_plan_and_the_same_words() -> None:
    assert plan() == plan()
    assert list(plan().pieces()) == list(plan().pieces())


def test_another_seed_gives_another_plan() -> None:
    assert plan(seed="other") != plan()


def test_forcing_one_value_leaves_the_other_draws_alone() -> None:
    free, forced = plan(), plan(wish=Instructions(gap_ms=5))
    assert forced.gap_s == 0.005
    assert (forced.text_tokens, forced.ttft_s) == (free.text_tokens, free.ttft_s)


def test_the_share_of_faults_is_what_was_asked() -> None:
    faulty = sum(plan(f"r{i}", rate_faults=0.3).fault != "none" for i in range(1000))
    assert 240 < faulty < 360


def test_no_faults_when_none_are_asked() -> None:
    assert {plan(f"r{i}", rate_faults=0.0).fault for i in range(200)} == {"none"}


def test_a_request_that_forces_anything_meets_no_drawn_fault() -> None:
    assert {plan(f"r{i}", rate_faults=1.0, wish=Instructions(tokens=3)).fault for i in range(50)} == {"none"}


@given(
    tokens=st.integers(0, 200), chunk=st.integers(1, 9), reasoning=st.integers(0, 50), tools=st.integers(0, 3)
)
def test_pieces_add_up_to_what_was_forced(tokens: int, chunk: int, reasoning: int, tools: int) -> None:
    wish = Instructions(tokens=tokens, chunk_tokens=chunk, reasoning_tokens=reasoning, tool_calls=tools)
    made = plan(wish=wish)
    pieces = list(made.pieces())
    assert sum(p.tokens for p in pieces if p.kind == "text") == tokens
    assert sum(p.tokens for p in pieces if p.kind == "reasoning") == reasoning
    assert sum(p.kind == "tool_start" for p in pieces) == tools
    assert made.output_tokens == sum(p.tokens for p in pieces)


def test_hidden_reasoning_is_billed_but_not_said() -> None:
    made = plan(model="gpt-sim-thinker", wish=Instructions(tokens=5, reasoning_tokens=40))
    assert made.output_tokens == 45
    assert all(piece.kind == "text" for piece in made.pieces())


def test_a_token_limit_in_the_body_ends_with_length() -> None:
    made = plan(body={"model": "gpt-sim-mini", "max_tokens": 1}, rate_faults=0.0)
    assert made.text_tokens == 1
    assert made.finish == "length"


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
def test_instructions_that_make_no_sense_are_refused(header: str) -> None:
    with pytest.raises(ValueError, match="x-simulate"):
        instructions(header)


def test_http_faults_carry_their_status() -> None:
    assert (http_fault("http_429"), http_fault("http_200"), http_fault("truncate")) == (429, None, None)

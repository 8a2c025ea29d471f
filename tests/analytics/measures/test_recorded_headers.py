"""Which header fields the tables keep: known names with plain values, and nothing that could be a key."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.measures.recorded_headers import KEY_CHARS, MOST_FIELDS, harmless, request_head, response_head


def test_known_fields_with_plain_values_are_kept() -> None:
    headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("user-agent", "OpenAI/Python 1.109.1"),
        ("accept", "text/event-stream, */*;q=0.5"),
        ("anthropic-version", "2023-06-01"),
        ("x-request-id", "req-1"),
        ("authorization", "Bearer x"),
    ]
    assert json.loads(request_head(headers) or "") == dict(headers[:4])


def test_limits_of_a_provider_are_kept_whatever_they_are_called() -> None:
    headers = [("x-ratelimit-remaining-tokens", "149984"), ("anthropic-ratelimit-requests-reset", "2026-01-27T12:00:30Z"),
               ("set-cookie", "a=b"), ("x-served-by", "cache-fra-etou8220158-FRA")]  # fmt: skip
    assert json.loads(response_head(headers) or "") == dict(headers[:2])


@pytest.mark.parametrize(
    "value",
    [
        "sk-proj-abcdefghijkl0123456789",
        "app/1.0 (key=AKIAIOSFODNN7EXAMPLE1)",
        "x" * 129,
        "",
        "ann@example.com",
        "naïve",
        "a\r\nb",
    ],
)
def test_what_might_be_a_secret_is_left_out(value: str) -> None:
    assert request_head([("user-agent", value)]) is None


def test_nothing_to_keep_is_null() -> None:
    assert request_head([]) is None
    assert response_head([("x-request-id", "1")]) is None


def test_the_first_of_several_counts_and_there_are_not_many() -> None:
    assert response_head([("server", "a"), ("server", "b")]) == '{"server":"a"}'
    many = [(f"x-ratelimit-{i}", "1") for i in range(100)]
    assert len(json.loads(response_head(many) or "")) == MOST_FIELDS


@given(st.text(max_size=200))
def test_no_word_that_is_kept_could_be_a_key(value: str) -> None:
    if harmless(value):
        assert len(value) <= 128
        assert value.isascii()
        for word in re.findall(r"[A-Za-z0-9_+=-]+", value):
            assert len(word) < KEY_CHARS or re.fullmatch(r"[a-z-]+", word)

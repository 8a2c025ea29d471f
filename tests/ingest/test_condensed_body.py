"""Condensed bodies: what stays, in however many reads a body arrives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamgauge.ingest.condensed_body import MAX_DEPTH, MAX_ID_BYTES, MAX_STRING_BYTES, CondensedBody

_texts = st.text(max_size=3) | st.text(st.sampled_from('"\\{}[]é\n,'), max_size=80)
_values = st.recursive(
    st.none() | st.integers() | st.booleans() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=30,
)


def condensed(body: bytes, *cuts: int) -> bytes:
    condenser, ends = CondensedBody(), [*sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return b"".join(condenser.feed(body[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def expected(value: Any, depth: int = 0) -> Any:
    """The same with a parser. An object is a tuple of its members."""
    if isinstance(value, str):
        limit = MAX_ID_BYTES if depth <= 2 else MAX_STRING_BYTES
        return value if len(json.dumps(value)) <= limit else ""
    if isinstance(value, dict):
        members = value.items() if depth < MAX_DEPTH else ()
        return tuple((expected(k, depth + 1), expected(v, depth + 1)) for k, v in members)
    if isinstance(value, list):
        return [expected(v, depth + 1) for v in value] if depth < MAX_DEPTH else []
    return value


@given(_values, st.lists(st.integers(0, 300), max_size=5))
def test_structure_stays_and_long_strings_and_deep_containers_are_empty(value: Any, cuts: list[int]) -> None:
    found = condensed(json.dumps(value).encode(), *cuts)
    if not isinstance(value, str):  # a string is no body
        assert json.loads(found, object_pairs_hook=tuple) == expected(value)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_result_does_not_depend_on_the_reads_and_is_not_longer(body: bytes, cuts: list[int]) -> None:
    assert condensed(body, *cuts) == condensed(body)
    assert len(condensed(body)) <= len(body) + 1


def test_ids_at_the_first_levels_stay_and_texts_below_do_not() -> None:
    user = json.dumps({"session_id": "0" * 36, "device_id": "d" * 64})
    body = {"metadata": {"user_id": user}, "messages": [{"role": "user", "content": "x" * 31}]}
    found = json.loads(condensed(json.dumps(body).encode()))
    assert found == {"metadata": {"user_id": user}, "messages": [{"role": "user", "content": ""}]}

"""Join arguments sent as paths and values into JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.dialects.gemini import ArgumentJoiner


def joined(*pieces: tuple[str, Any, bool]) -> str:
    joiner = ArgumentJoiner()
    text = "".join(
        "".join(joiner.add(path, value, will_continue=will_continue)) for path, value, will_continue in pieces
    )
    return text + joiner.finish()


def test_string_in_pieces() -> None:
    assert joined(("$.id", "A\n", True), ("$.id", '"B', True), ("$.id", "", False)) == '{"id":"A\\n\\"B"}'


def test_objects_and_arrays_are_opened_and_closed_by_path() -> None:
    text = joined(
        ("$.recipe.items[0].amount", "16 oz", True),
        ("$.recipe.items[0].amount", "", False),
        ("$.recipe.items[0].name", "noodles", False),
        ("$.recipe.items[1].name", "beef", False),
        ("$.recipe.name", "Lasagna", False),
        ("$.recipe.steps[0]", "Cook", False),
        ("$.recipe.steps[1]", "Serve", False),
        ("$.servings", 4, False),
        ("$.vegan", False, False),
        ("$.note", None, False),
    )
    assert json.loads(text) == {
        "recipe": {
            "items": [{"amount": "16 oz", "name": "noodles"}, {"name": "beef"}],
            "name": "Lasagna",
            "steps": ["Cook", "Serve"],
        },
        "servings": 4,
        "vegan": False,
        "note": None,
    }


def test_no_pieces_yield_an_empty_object() -> None:
    assert joined() == "{}"


def test_quoted_steps() -> None:
    assert json.loads(joined(("$['a b'][\"c\"][0]", 1, False))) == {"a b": {"c": [1]}}


@pytest.mark.parametrize(
    "invalid",
    [
        ("$.a", "again", False),
        ("$.a.b", 1, False),
        ("$", 1, False),
        ("a", 1, False),
        ("$..", 1, False),
        ("$[0]", 1, False),
    ],
)
def test_invalid_pieces_are_dropped(invalid: tuple[str, Any, bool]) -> None:
    assert json.loads(joined(("$.a", "x", False), invalid)) == {"a": "x"}


def test_item_before_the_last_one_is_dropped() -> None:
    assert json.loads(joined(("$.a[0]", 1, False), ("$.a[1]", 2, False), ("$.a[0]", 3, False))) == {
        "a": [1, 2]
    }


def leaves(value: Any, path: str = "$") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}['{key}']")]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, f"{path}[{index}]")]
    return [(path, value)]


def full(value: Any) -> bool:
    """Whether the value has no empty object or array, which paths cannot express."""
    if isinstance(value, dict | list):
        return bool(value) and all(map(full, value.values() if isinstance(value, dict) else value))
    return True


KEYS = st.text(st.characters(exclude_characters="'\\", codec="utf-8"), min_size=1, max_size=5)
VALUES = st.recursive(
    st.text(st.characters(codec="utf-8")) | st.booleans() | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4).filter(full))
def test_any_arguments_in_document_order_round_trip(arguments: dict[str, Any]) -> None:
    pieces: list[tuple[str, Any, bool]] = []
    for path, value in leaves(arguments):
        if isinstance(value, str):
            pieces += [(path, value[:2], True), (path, value[2:], False)]
        else:
            pieces.append((path, value, False))
    assert json.loads(joined(*pieces)) == arguments

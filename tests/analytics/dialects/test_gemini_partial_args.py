"""Arguments that come as paths and values become JSON text, in the order in which they came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.dialects.gemini_partial_args import ArgumentJoiner


def joined(*pieces: tuple[str, Any, bool]) -> str:
    joiner = ArgumentJoiner()
    text = "".join(
        "".join(joiner.add(path, value, will_continue=will_continue)) for path, value, will_continue in pieces
    )
    return text + joiner.finish()


def test_string_in_pieces() -> None:
    assert joined(("$.id", "A\n", True), ("$.id", '"B', True), ("$.id", "", False)) == '{"id":"A\\n\\"B"}'


def test_objects_and_arrays_are_opened_and_closed_as_the_paths_go() -> None:
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


def test_no_piece_is_an_empty_object() -> None:
    assert joined() == "{}"


def test_quoted_steps() -> None:
    assert json.loads(joined(("$['a b'][\"c\"][0]", 1, False))) == {"a b": {"c": [1]}}


@pytest.mark.parametrize(
    "late",
    [
        ("$.a", "again", False),
        ("$.a.b", 1, False),
        ("$", 1, False),
        ("a", 1, False),
        ("$..", 1, False),
        ("$[0]", 1, False),
    ],
)
def test_what_cannot_be_joined_is_left_out(late: tuple[str, Any, bool]) -> None:
    assert json.loads(joined(("$.a", "x", False), late)) == {"a": "x"}


def test_item_before_the_last_one_is_left_out() -> None:
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
    """Paths tell of an empty object or array nothing."""
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
def test_any_arguments_in_document_order_are_rebuilt(arguments: dict[str, Any]) -> None:
    pieces: list[tuple[str, Any, bool]] = []
    for path, value in leaves(arguments):
        if isinstance(value, str):
            pieces += [(path, value[:2], True), (path, value[2:], False)]
        else:
            pieces.append((path, value, False))
    assert json.loads(joined(*pieces)) == arguments

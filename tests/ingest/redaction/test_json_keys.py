"""The allow-list has exactly the members that analytics reads."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec
import pytest

from streamgauge.analytics import dialects
from streamgauge.analytics.decoding import request_body
from streamgauge.analytics.dialects import errors, openai_completions
from streamgauge.ingest.redaction.json_keys import REQUEST, RESPONSE, Context, Keep


def members(module: str) -> set[str]:
    """The JSON members of every Struct that a module decodes into."""
    found = importlib.import_module(module)
    return {
        field.encode_name
        for value in vars(found).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module
        for field in msgspec.structs.fields(value)
    }


MODULES = [f"streamgauge.analytics.dialects.{info.name}" for info in pkgutil.iter_modules(dialects.__path__)]


OF_NO_WIRE = ("dialect", "events")
"""Modules whose Structs are not decoded from JSON."""


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith(OF_NO_WIRE)])
def test_every_member_that_a_dialect_reads_is_allow_listed(module: str) -> None:
    assert {name.encode() for name in members(module)} - RESPONSE.rules.keys() == set()


def test_members_that_are_read_by_name_are_allow_listed() -> None:
    read = {
        *errors._TYPE_KEYS,
        *errors._MESSAGE_KEYS,
        *openai_completions.PROVIDER_FIELDS,
        *openai_completions._STATS_FIELDS,
    }
    assert {name.encode() for name in read} - RESPONSE.rules.keys() == set()
    others = {
        b"type",
        b"effort",
        b"stream_options",
        b"tools",
        b"functions",
    }  # nested, or for readers of redacted bodies
    assert {name.encode() for name in request_body._MEMBERS} == REQUEST.rules.keys() - others


TEXT = (
    "content",
    "text",
    "thinking",
    "delta",
    "message",
    "arguments",
    "input",
    "output",
    "partial_json",
    "token",
    "data",
)


def test_members_that_may_hold_text_are_filled() -> None:
    for name in TEXT:
        assert RESPONSE.rules[name.encode()].string is Keep.NOTHING
        assert not RESPONSE.rules[name.encode()].number
    for name in ("arguments", "args", "input", "parameters"):
        assert RESPONSE.rules[name.encode()].inner is Context.CONTENT
    for name in ("messages", "prompt", "input", "system", "contents", "instructions", "metadata", "user"):
        assert name.encode() not in REQUEST.rules

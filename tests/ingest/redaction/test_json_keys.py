"""The allow-list has exactly the members that analytics reads."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Annotated

import msgspec
import pytest

from streamgauge.analytics import dialects
from streamgauge.analytics.decoding import request_body
from streamgauge.analytics.dialects import kept
from streamgauge.ingest.redaction.body_redactor import BodyRedactor
from streamgauge.ingest.redaction.json_keys import REQUEST, RESPONSE, Context, Keep, rules_of

MODULES = [module.__name__ for module in dialects.dialect_modules()]


def test_keys_are_those_that_dialects_declare() -> None:
    assert rules_of(kept.key_groups(dialects.dialect_modules())) == RESPONSE
    assert rules_of(kept.key_groups((request_body.REQUEST, request_body.NESTED))) == REQUEST


def test_two_dialects_must_declare_a_member_alike() -> None:
    class Said(msgspec.Struct):
        voice: kept.Name = None
        text: str | None = None
        size: int | None = None
        share: Annotated[float | None, kept.TEXT] = None

    first = ModuleType(Said.__module__)
    first.Said = Said  # type: ignore[attr-defined]
    assert kept.key_groups([first]) == {"name": ["voice"], "count": ["size"], "text": ["share", "text"]}
    assert kept.key_groups([first, kept.members(name="voice")]) == kept.key_groups([first])
    with pytest.raises(ValueError, match=r"'voice' is name in .* and text in "):
        kept.key_groups([first, kept.members(text="voice")])


REPORTS = ("server_stats", "usage", "vendors")
"""Modules that read the members of reports, among which every name is kept, and headers."""
OF_REPORTS = {
    "cacheReadInputTokens", "cacheWriteInputTokens", "cached_tokens", "completion_tokens", "inputTokens", "outputTokens", "output_tokens",
    "output_tokens_details", "toolUsePromptTokenCount", "totalTokenCount", "total_tool_use_tokens",
    "latencyMs", "prompt_tokens", "thinking_tokens", "total_tokens",
}  # fmt: skip
HEADERS = {"anthropic-version"}


def names_read(module: str) -> set[str]:
    """The constants in calls of `get`, `pop` and `member_of`, whose first argument is the object."""
    source = Path(str(importlib.import_module(module).__file__)).read_text()
    return {
        argument.value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith((".get", ".pop", "member_of"))
        for argument in (call.args[1:] if ast.unparse(call.func) == "member_of" else call.args[:1])
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith((*REPORTS, "dialect"))])
def test_members_that_are_looked_up_are_allow_listed(module: str) -> None:
    assert {
        name.encode() for name in names_read(module) - OF_REPORTS - HEADERS
    } - RESPONSE.rules.keys() == set()


@pytest.mark.parametrize(
    "name", ["modality", "ttl", "service_tier", "speed", "inference_geo", "trafficType", "type"]
)
def test_words_in_reports_are_kept(name: str) -> None:
    raw = b'{"usage":{"%b":"priority","list":[{"%b":"1h"}],"note":"secret","more":["secret"]}}' % (
        name.encode(), name.encode(),
    )  # fmt: skip
    assert BodyRedactor().feed(raw) == raw.replace(b"secret", b"xxxxxx")
    assert b"two words" not in BodyRedactor().feed(raw.replace(b"priority", b"two words"))


SECRETS = ["two words", "sk-proj-" + "a1B2" * 8, "ghp_" + "a1B2" * 9, "a1b2" * 10, 'a"b', "é"]


@pytest.mark.parametrize(
    ("key", "kept", "filled"),
    [
        ("mimeType", ["audio/L16;codec=pcm;rate=24000", "image/png"], [f"audio/L16;rate={SECRETS[1]}", "audio/a b"]),
        ("Server-Timing", ["queue;dur=1.5, server_ttft;dur=8", "a;dur=1"],
         [f"{SECRETS[2]};dur=1", "some words;dur=1", 'a;desc="x";dur=1', "a, b, c", "a;dur=b"]),
    ],
)  # fmt: skip
def test_words_with_parameters_are_kept_in_any_reads_and_no_others(
    key: str, kept: list[str], filled: list[str]
) -> None:
    for value in kept:
        raw = b'{"%b": "%b"}' % (key.encode(), value.encode())
        through = BodyRedactor()
        assert BodyRedactor().feed(raw) == raw
        assert b"".join(through.feed(raw[at : at + 1]) for at in range(len(raw))) == raw
    for value in (*filled, *SECRETS):
        raw = json.dumps({key: value}).encode()
        assert value.encode() not in BodyRedactor().feed(raw)
        through = BodyRedactor()
        assert value.encode() not in b"".join(through.feed(raw[at : at + 1]) for at in range(len(raw)))


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

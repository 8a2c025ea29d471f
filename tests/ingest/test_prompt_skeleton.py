"""The segments of prompts: their order, kinds and names, and where the segments of two bodies begin to differ."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.prompt_segments import MAX_SEGMENTS
from streamgauge.ingest.records import Segment
from streamgauge.ingest.tap import is_compiled
from tests.prompt_bodies import (
    DIALECTS,
    MUTATIONS,
    WITH_MARKS,
    Expected,
    anatomy,
    encoded,
    first_difference,
    prompt,
    rendered,
    segments,
)

BODIES = 1000 if is_compiled() else 200


def shape(found: list[Segment]) -> list[Any]:
    return [(one.kind, one.name, one.message, one.role, one.mark) for one in found]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_segments_are_the_parts_of_the_prompt_in_its_order(dialect: str) -> None:
    rng = random.Random(dialect)
    for number in range(40):
        body, parts = rendered(prompt(rng, long=number % 4 == 0), dialect)
        data = encoded(body, rng)
        found = segments(data)
        assert shape(found) == [part[:5] for part in parts]
        by_content: dict[tuple[str, str | None, str], bytes] = {}
        for one, part in zip(found, parts, strict=True):
            content = (part.kind, part.name, part.content)
            if part.kind not in ("tool_call", "tool_result", "reasoning"):  # these have ids
                assert by_content.setdefault(content, one.hash) == one.hash
            assert 0 < one.size < len(data)
        assert len(set(by_content.values())) == len(by_content)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_segments_do_not_depend_on_the_reads(dialect: str) -> None:
    rng = random.Random(dialect)
    for number in range(12):
        data = encoded(rendered(prompt(rng, long=number % 6 == 0), dialect)[0], rng)
        whole = anatomy(data)
        for reads in (1, 20, 1000):
            assert anatomy(data, *(rng.randrange(len(data) + 1) for _ in range(reads))) == whole
    assert anatomy(data, *range(len(data))) == whole


def test_first_difference_of_a_mutated_prompt_is_the_mutated_segment() -> None:
    rng = random.Random(57)
    names = itertools.cycle(itertools.product(DIALECTS, MUTATIONS))
    wrong: list[tuple[str, str]] = []
    made = long = 0
    while made < BODIES:
        dialect, mutation = next(names)
        one = prompt(rng, long=made % 2 == 0)
        other = MUTATIONS[mutation](rng, one)
        (body, parts), (changed, expected) = rendered(one, dialect), rendered(other, dialect)
        state = rng.getstate()
        before = encoded(body, rng)
        rng.setstate(state)
        after = encoded(changed, rng)
        at = first_difference(parts, expected)
        if at is None:  # the dialect has no cache marks, or the model in the path
            assert (mutation == "ttl" and dialect not in WITH_MARKS) or mutation == "other model"
            continue
        made += 1
        long += len(before) > 65_536
        old, new = segments(before), segments(after, rng.randrange(len(after)))
        if first_difference(old, new) != at:
            wrong.append((dialect, mutation))
        elif mutation == "ttl":
            assert [one.hash for one in old] == [one.hash for one in new]
    assert not wrong
    assert long >= BODIES // 2


def test_members_in_another_order_give_the_same_segments() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "system": "s", "tools": [{"name": "t"}], "thinking": {"type": "enabled"},
            "tool_choice": "auto", "parallel_tool_calls": True, "model": "m", "temperature": 1}  # fmt: skip
    expected = segments(body)
    assert [(one.kind, one.name) for one in expected] == [
        ("model", "model"), ("settings", "parallel_tool_calls"), ("settings", "thinking"), ("settings", "tool_choice"), ("tool", "t"),
        ("system", None), ("text", None),
    ]  # fmt: skip
    rng = random.Random(1)
    for _ in range(50):
        members = list(body.items())
        rng.shuffle(members)
        data = json.dumps(dict(members)).encode()
        assert segments(data, *(rng.randrange(len(data)) for _ in range(3))) == expected


@pytest.mark.parametrize(
    ("mark", "kept"),
    [
        ({"cache_control": {"type": "ephemeral"}}, "ephemeral"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "1h"),
        ({"prompt_cache_breakpoint": {"mode": "explicit"}}, "explicit"),
        ({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}, "12h"),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (",\n    ", ": ")])
def test_cache_marks_are_no_part_of_the_hash(
    separators: tuple[str, str], mark: dict[str, Any], kept: str
) -> None:
    block = {"type": "text", "text": "a"}
    marked = [{**mark, **block}, {"type": "text", **mark, "text": "a"}, {**block, **mark}]
    [plain] = segments(json.dumps({"system": [block]}, separators=separators).encode())
    for one in marked:
        data = json.dumps({"system": [one]}, separators=separators).encode()
        for cut in range(len(data)):
            [found] = segments(data, cut)
            assert (found.hash, found.mark) == (plain.hash, kept)
        assert segments(data, *range(len(data))) == [found]


def test_mark_without_an_object_is_read_to_its_end() -> None:
    data = json.dumps({"system": [{"cache_control": None, "text": "a"}, {"text": "b"}]}).encode()
    expected = segments(data)
    assert [one.mark for one in expected] == [None, None]
    for cut in range(len(data)):
        assert segments(data, cut) == expected
    other = json.dumps({"system": [{"cache_control": None, "text": "c"}, {"text": "b"}]}).encode()
    assert [a.hash == b.hash for a, b in zip(expected, segments(other), strict=True)] == [False, True]


def kinds(body: Any) -> list[Any]:
    data = json.dumps(body).encode()
    found = segments(data)
    assert segments(data, *range(0, len(data), 3)) == found
    return [(one.kind, one.name, one.message) for one in found]


TEXT = {"type": "text", "text": "t"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"model": "m", "input": "a", "instructions": "i", "text": {"format": {"type": "text"}}, "prompt": {"id": "p"}},
                     [("model", "model", -1), ("settings", "format", -1), ("settings", "prompt", -1), ("system", None, -1),
                      ("text", None, 0)], id="Responses"),
        pytest.param({"input": [{"type": "additional_tools", "tools": [{"name": "t"}]}, {"role": "user", "content": "a"},
                                {"type": "web_search_call", "id": "1"}, {"type": "item_reference", "id": "2"},
                                {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "o"}]},
                     [("tool", "t", 0), ("text", None, 1), ("tool_call", None, 2), ("other", None, 3), ("tool_call", "f", 4)], id="Codex"),
        pytest.param({"tools": [{"type": "mcp", "server_label": "s", "server_url": "u"}, {"type": "web_search"}], "input": []},
                     [("tool", "s", -1), ("tool", "web_search", -1)], id="built-in tools"),
        pytest.param({"system": "s", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [
            {"type": "document", "source": {}}, {"type": "web_search_tool_result", "tool_use_id": "x", "content": [TEXT]}]}]},
                     [("system", None, -1), ("text", None, 0), ("file", None, 1), ("tool_result", None, 1)], id="Messages"),
        pytest.param({"system_instruction": {"parts": {"text": "s"}}, "contents": {"parts": {"text": "a"}}, "tool_config": {
            "function_calling_config": {}}, "tools": [{"googleSearch": {}}, {"function_declarations": [{"name": "f"}]}]},
                     [("settings", "function_calling_config", -1), ("tool", "googleSearch", -1), ("tool", "f", -1),
                      ("system", None, -1), ("text", None, 0)], id="Gemini in snake case"),
        pytest.param({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "x"}}, {"fileData": {"fileUri": "u",
            "mimeType": "application/pdf"}}, {"text": "t", "thought": True}, {"functionResponse": {"name": "f", "response": {}}}]}]},
                     [("audio", None, 0), ("file", None, 0), ("reasoning", None, 0), ("tool_result", "f", 0)], id="Gemini's parts"),
        pytest.param({"messages": [{"role": "user", "content": [{"document": {}}, {"text": "a"}, {"cachePoint": {"type": "default"}}]}],
                      "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}, {"cachePoint": {}}]}},
                     [("tool", "f", -1), ("file", None, 0), ("text", None, 0)], id="Converse"),
        pytest.param({"messages": [{"tool_calls": [{"id": "1", "function": {"name": "f"}}], "content": None, "role": "assistant"},
                                   {"content": [TEXT], "tool_call_id": "1", "role": "tool"}, {"role": "developer", "content": "d"}]},
                     [("tool_call", "f", 0), ("tool_result", "f", 1), ("system", None, 2)], id="chat"),
        pytest.param({"messages": [{"tool_calls": [{"function": {"name": "f"}}], "content": "c", "thinking": "r", "role": "assistant"}]},
                     [("reasoning", None, 0), ("text", None, 0), ("tool_call", "f", 0)], id="order in a message"),
        pytest.param({"functions": [{"name": "f"}], "function_call": "auto", "messages": [{"function_call": {"name": "f"}}]},
                     [("settings", "function_call", -1), ("tool", "f", -1), ("tool_call", "f", 0)], id="functions"),
        pytest.param({"message": "now", "preamble": "p", "chat_history": [{"role": "USER", "message": "before"}], "documents": [{}]},
                     [("settings", "documents", -1), ("system", None, -1), ("text", None, 0), ("text", None, 1)], id="Cohere v1"),
        pytest.param({"prompt": ["a", "b"]}, [("text", None, 0), ("text", None, 1)], id="completions"),
        pytest.param({"prompt": [[1, 2], [3]]}, [("text", None, 0), ("text", None, 1)], id="tokens"),
        pytest.param({"inputs": "a", "parameters": {"max_new_tokens": 1}}, [("text", None, 0)], id="TGI"),
        pytest.param({"text": "a", "sampling_params": {}}, [("text", None, 0)], id="SGLang"),
        pytest.param({"input": {"prompt": "a", "system_prompt": "s"}}, [("system", None, -1), ("text", None, 0)], id="Replicate"),
        pytest.param({"model_id": "m", "input": "a", "parameters": {}}, [("model", "model_id", -1), ("text", None, 0)], id="watsonx"),
        pytest.param({"model": "m", "input": [{"type": "text", "content": "a"}, {"type": "image", "data_url": "u"}], "system_prompt": "s",
                      "integrations": ["mcp/playwright"]},
                     [("model", "model", -1), ("tool", "mcp/playwright", -1), ("system", None, -1), ("text", None, 0), ("image", None, 1)],
                     id="LM Studio"),
        pytest.param({"system_instruction": "s", "input": [{"role": "user", "content": [TEXT]}, {"type": "unknown", "call_id": "1"}]},
                     [("system", None, -1), ("text", None, 0), ("other", None, 1)], id="Interactions"),
        pytest.param({"type": "response.create", "response": {"instructions": "i", "input": [{"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": "a"}]}], "tools": [{"type": "function", "name": "f"}]}},
                     [("tool", "f", -1), ("system", None, -1), ("text", None, 0)], id="Realtime"),
        pytest.param({"assistant_id": "a", "additional_messages": [{"role": "user", "content": "a"}], "instructions": "i"},
                     [("system", None, -1), ("text", None, 0)], id="Assistants"),
    ],
)  # fmt: skip
def test_segments_of_a_dialect(body: Any, expected: Any) -> None:
    assert kinds(body) == expected


def test_body_with_one_mark_for_all_marks_its_last_segment() -> None:
    body = {
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "system": "s",
        "messages": [{"role": "user", "content": "a"}],
    }
    assert [one.mark for one in segments(body)] == [None, "1h"]
    marked = {
        "messages": [
            {"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": "b"},
        ]
    }
    assert [one.mark for one in segments(marked)] == ["ephemeral", None]


def test_sizes_are_those_in_the_body() -> None:
    tool, image = {"name": "t", "description": "a\nb"}, {"type": "image", "source": {}}
    found = segments(
        {"tools": [tool], "system": "é", "messages": [{"role": "user", "content": [TEXT, image]}]}
    )
    assert [one.size for one in found] == [len(json.dumps(tool)), len("\\u00e9"), 1, len(json.dumps(image))]


def test_block_with_only_a_text_is_the_same_as_a_string() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    string = segments({"system": "s", "messages": [{"role": "user", "content": "text"}]})
    blocks = {
        "system": [{"type": "text", "text": "s"}],
        "messages": [{"role": "user", "content": [{"text": "text", "type": "text", **mark}]}],
    }
    for cut in range(len(json.dumps(blocks))):
        found = segments(blocks, cut)
        assert [(one.kind, one.size, one.hash) for one in found] == [
            (one.kind, one.size, one.hash) for one in string
        ]
    other = {"messages": [{"role": "user", "content": [{"type": "text", "text": "text", "citations": []}]}]}
    assert segments(other)[0].hash != string[1].hash


def test_name_that_is_a_text_is_hashed() -> None:
    found = segments(
        {"tools": [{"name": "what my customer said"}], "messages": [{"role": "my customer", "content": "a"}]}
    )
    assert [str(found[0].name)[:7], str(found[1].role)[:7]] == ["hashed:", "hashed:"]


def test_number_of_segments_is_bounded() -> None:
    messages = [{"role": "user", "content": [TEXT] * 3}] * MAX_SEGMENTS
    found = anatomy(json.dumps({"messages": messages, "tools": [{"name": "f"}]}).encode())
    assert found.segments is not None
    assert len(found.segments) == MAX_SEGMENTS
    assert found.segments[0].kind == "tool"
    assert found.left_out == 3 * MAX_SEGMENTS + 1 - MAX_SEGMENTS
    one = {"role": "user", "content": [TEXT] * 3 * MAX_SEGMENTS}
    assert anatomy(json.dumps({"messages": [one]}).encode()).left_out == 2 * MAX_SEGMENTS


def test_hash_needs_the_key() -> None:
    other = CondensedBody(b"j" * 32)
    other.feed(b'{"system": "s"}')
    assert other.anatomy is not None
    [found] = other.anatomy.segments or []
    assert found.hash != segments({"system": "s"})[0].hash


@pytest.mark.parametrize("part", [Expected("text", None, 0, None, None, "a")])
def test_first_difference_is_the_end_of_the_shorter_list(part: Expected) -> None:
    assert first_difference([part], [part, part]) == 1
    assert first_difference([part, part], [part]) == 1
    assert first_difference([part], [part]) is None

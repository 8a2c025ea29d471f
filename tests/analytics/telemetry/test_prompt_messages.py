"""Prompts of all supported APIs in the conventions' format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.telemetry.span_attributes import Prompt, prompt_of

TEXT = {"type": "text", "content": "How high?"}
USER = {"role": "user", "parts": [TEXT]}
CALL = {"type": "tool_call", "id": "c1", "name": "gauge", "arguments": {"at": "mill"}}
ANSWER = {"type": "tool_call_response", "id": "c1", "response": "2 m"}


@pytest.mark.parametrize(
    ("body", "messages", "system"),
    [
        ({"messages": [{"role": "user", "content": "How high?"}]}, [USER], None),
        (
            {
                "messages": [
                    {"role": "developer", "content": "Be brief."},
                    {"role": "user", "content": "How high?"},
                ]
            },
            [{"role": "system", "parts": [{"type": "text", "content": "Be brief."}]}, USER],
            None,
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "How high?"},
                            {"type": "image_url", "image_url": {"url": "data:…"}},
                        ],
                    }
                ]
            },
            [{"role": "user", "parts": [TEXT, {"type": "image_url"}]}],
            None,
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "c1", "function": {"name": "gauge", "arguments": {"at": "mill"}}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "2 m"},
                ]
            },
            [{"role": "assistant", "parts": [CALL]}, {"role": "tool", "parts": [ANSWER]}],
            None,
        ),
        ({"prompt": "How high?"}, [USER], None),
        (
            {"prompt": ["How high?", "How deep?"]},
            [{"role": "user", "parts": [TEXT, {"type": "text", "content": "How deep?"}]}],
            None,
        ),
        (
            {
                "instructions": "Be brief.",
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "How high?"}],
                    },
                    {"type": "function_call", "call_id": "c1", "name": "gauge", "arguments": {"at": "mill"}},
                    {"type": "function_call_output", "call_id": "c1", "output": "2 m"},
                ],
            },
            [USER, {"role": "assistant", "parts": [CALL]}, {"role": "tool", "parts": [ANSWER]}],
            "Be brief.",
        ),
        (
            {
                "system": [{"type": "text", "text": "Be brief."}],
                "messages": [
                    {"role": "user", "content": "How high?"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm"},
                            {"type": "tool_use", "id": "c1", "name": "gauge", "input": {"at": "mill"}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2 m"}],
                    },
                ],
            },
            [
                USER,
                {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, CALL]},
                {"role": "user", "parts": [ANSWER]},
            ],
            "Be brief.",
        ),
        (
            {
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "contents": [
                    {"role": "user", "parts": [{"text": "How high?"}, {"inlineData": {"data": "…"}}]},
                    {"role": "model", "parts": [{"text": "2 m"}]},
                ],
            },
            [
                {"role": "user", "parts": [TEXT, {"type": "inlineData"}]},
                {"role": "assistant", "parts": [{"type": "text", "content": "2 m"}]},
            ],
            "Be brief.",
        ),
        ({"model": "m"}, None, None),
        ([1], None, None),
    ],
)
def test_prompts_of_all_apis_have_the_same_format(
    body: Any, messages: list[Any] | None, system: str | None
) -> None:
    found = prompt_of(json.dumps(body).encode())
    assert (json.loads(found.messages) if found.messages else None) == messages
    expected = [{"type": "text", "content": system}] if system else None
    assert (json.loads(found.system_instructions) if found.system_instructions else None) == expected


def test_incomplete_prompt_is_none() -> None:
    assert prompt_of(b'{"messages":[{"role":"user","content":"How hi') == Prompt()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "parts", "tool_calls", "function", "name", "functionCall"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["messages", "contents", "input", "prompt", "system", "systemInstruction"]), JSON
    )
)
def test_arbitrary_bodies_never_raise(body: dict[str, Any]) -> None:
    found = prompt_of(json.dumps(body).encode())
    for message in json.loads(found.messages) if found.messages else ():
        assert isinstance(message["role"], str)
        assert all(isinstance(part["type"], str) for part in message["parts"])

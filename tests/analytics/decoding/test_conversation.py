"""Session and turns in the request bodies that clients send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.identifiers import hashed
from streamgauge.ingest.keyed_ids import session_hash
from streamgauge.ingest.records import Conversation

KEY = b"k" * 32
UUID = "57a121ec-f78c-48c3-a745-e3036a3ecc33"
CLAUDE_USER = {"device_id": "d" * 64, "account_uuid": "", "session_id": UUID}


def read(body: Any, *, truncated: bool = False) -> Conversation:
    found = ConversationReader(KEY)(json.dumps(body).encode(), truncated)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "session"),
    [
        pytest.param({"metadata": {"user_id": f"user_{'a' * 64}_account__session_{UUID}"}}, UUID, id="Claude Code until 2.1.77"),
        pytest.param({"metadata": {"user_id": json.dumps(CLAUDE_USER)}}, UUID, id="Claude Code from 2.1.78"),
        pytest.param({"metadata": {"user_id": CLAUDE_USER}}, UUID, id="as an object"),
        pytest.param({"metadata": {"user_id": "someone@example.com"}}, None, id="Anthropic user id without a session"),
        pytest.param({"prompt_cache_key": UUID, "store": False}, UUID, id="Codex of 2025"),
        pytest.param({"prompt_cache_key": "t" * 36, "client_metadata": {"session_id": "s", "thread_id": UUID}}, UUID, id="Codex"),
        pytest.param({"prompt_cache_key": "ses_f84c6ba38ffe6UeTRaX25G3KTr"}, "ses_f84c6ba38ffe6UeTRaX25G3KTr", id="OpenCode"),
        pytest.param({"prompt_cache_key": "support-bot-v7"}, None, id="one key for all conversations"),
        pytest.param({"litellm_session_id": "s 1"}, "s 1", id="LiteLLM"),
        pytest.param({"metadata": {"session_id": "s1"}}, "s1", id="LiteLLM to Langfuse"),
        pytest.param({"metadata": {"langfuse_session_id": "s2"}}, "s2", id="Langfuse"),
        pytest.param({"session_id": "s3"}, "s3", id="OpenRouter"),
        pytest.param({"conversation": "conv_1"}, "conv_1", id="OpenAI conversation"),
        pytest.param({"conversation": {"id": "conv_1"}}, "conv_1", id="OpenAI conversation as an object"),
        pytest.param({"metadata": {"thread_id": "t"}, "prompt_cache_key": UUID}, "t", id="metadata before the cache key"),
        pytest.param({"metadata": "x", "session_id": 5, "conversation": [], "prompt_cache_key": {}}, None, id="wrong types"),
        pytest.param({"session_id": "x" * 1025}, None, id="too long"),
    ],
)  # fmt: skip
def test_session_in_the_body(body: dict[str, Any], session: str | None) -> None:
    found = read({"model": "m", **body})
    assert found.session == (session_hash(session, KEY) if session else None)
    assert UUID not in repr(found)
    cut = json.dumps({"model": "m", **body, "messages": [{"role": "user"}]}).encode()[:-9]
    assert ConversationReader(KEY)(cut, True) == Conversation(
        found.session, None, found.previous_response_id, found.has_history, found.can_be_continued, by_cache_key=found.by_cache_key
    )  # fmt: skip


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"name": "level", "_meta": {"sessionID": "ses_1", "traceparent": TRACE}}, ("ses_1", TRACE, "level")),
        ({"name": "level", "_meta": {"threadId": "t1", "traceparent": TRACE[:-3]}}, ("t1", None, "level")),
        ({"name": "the river of my customer", "_meta": []}, (None, None, hashed("the river of my customer"))),
        ({"name": 1, "_meta": {"sessionID": 5, "traceparent": {}}}, (None, None, None)),
        ([], (None, None, None)),
    ],
)
def test_message_of_mcp_names_session_trace_and_tool(params: Any, expected: tuple[str | None, ...]) -> None:
    session, traceparent, tool = expected
    found = read({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    assert found.session == (session_hash(session, KEY) if session else None)
    assert (found.traceparent, found.tool, found.turns) == (traceparent, tool, None)


@pytest.mark.parametrize(("sent", "expected"), [(TRACE, TRACE), (TRACE[:-3], None), (5, None)])
def test_request_of_codex_over_a_websocket_names_its_trace(sent: Any, expected: str | None) -> None:
    members = {"client_metadata": {"ws_request_header_traceparent": sent}, "model": "m", "input": []}
    assert read(members).traceparent == expected
    assert ConversationReader(KEY)(json.dumps(members).encode()[:-3], True) == Conversation(
        traceparent=expected
    )
    assert read({**members, "client_metadata": sent}).traceparent is None


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


SYSTEM, ASSISTANT = {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "r"}


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        ({"messages": [SYSTEM, user()]}, 1),
        ({"messages": [user(), ASSISTANT, user()]}, 2),
        ({"messages": [user("context"), SYSTEM, user("question"), ASSISTANT]}, 1),
        ({"messages": [user(), ASSISTANT, {"role": "tool", "content": "r"}]}, 1),
        ({"messages": [user(), ASSISTANT, user([TOOL_RESULT, {"type": "text", "text": "reminder"}])]}, 1),
        ({"messages": [user(), ASSISTANT, user([{"type": "text", "text": '"tool_result"'}])]}, 2),
        ({"messages": [user(), ASSISTANT, user([{"toolResult": {"toolUseId": "t"}}])]}, 1),
        ({"messages": []}, 0),
        ({"input": "hi"}, 1),
        ({"input": [user(), {"type": "function_call"}, {"type": "function_call_output"}, ASSISTANT, user()]}, 2),
        ({"input": [{"type": "function_call_output", "output": "r"}]}, 0),
        ({"contents": [{"parts": [{"text": "q"}]}, {"role": "model", "parts": []}, {"role": "user", "parts": [{"text": "q"}]}]}, 2),
        ({"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "f"}}]}]}, 0),
        ({"prompt": "hi"}, None),
        ({"messages": "hi there"}, 1),
        ({"messages": {"role": "user"}}, None),
        ({"messages": [1, 2]}, None),
    ],
)  # fmt: skip
def test_runs_of_user_messages_are_turns(body: dict[str, Any], turns: int | None) -> None:
    assert read(body).turns == turns
    assert read(body, truncated=True).turns is None


def test_server_side_history() -> None:
    found = read({"previous_response_id": "resp_1", "input": "hi", "store": False})
    assert (found.previous_response_id, found.has_history, found.can_be_continued) == ("resp_1", False, False)
    assert read({"input": "hi"}).has_history
    assert not read({"conversation": "c", "input": "hi"}).has_history
    secret = "a key with blanks"
    assert read({"previous_response_id": secret}).previous_response_id != secret


@given(
    st.binary(max_size=200) | st.text('{}[]":,\\ metadata_idr1', max_size=80).map(str.encode), st.booleans()
)
def test_bad_data_never_raises(body: bytes, truncated: bool) -> None:
    ConversationReader()(body, truncated)
    ConversationReader()(b'{"messages":' + body, truncated)
    ConversationReader()(b'{"messages":[' + body + b"]}", truncated)


def test_code_assist_has_contents_and_session_in_its_request() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": []},
        {"role": "user", "parts": [{"text": "r"}]},
    ]
    tools = [{"functionDeclarations": [{"name": "f"}]}]
    found = read({"model": "m", "request": {"contents": contents, "tools": tools, "session_id": UUID}})
    assert (found.session, found.turns, found.has_tools) == (session_hash(UUID, KEY), 2, True)


def test_tools_of_codex_are_among_its_messages() -> None:
    listed = {"type": "additional_tools", "role": "developer", "tools": [{"name": "shell"}]}
    found = [read({"input": [*first, user("additional_tools")]}).has_tools for first in ([], [listed])]
    assert found == [False, True]
    assert read({"input": "q"}, truncated=True).has_tools is None


RESULTS = [
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x" * 99}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "x" * 99},
    {"type": "function_call_output", "call_id": "call_1", "output": "x" * 99},
]  # fmt: skip
BODIES = [
    *({"messages": [user("x" * 99), {"role": "assistant"}, result, user()], "metadata": {"user_id": json.dumps(CLAUDE_USER)}}
      for result in RESULTS[:2]),
    {"input": [user([{"type": "input_text", "text": "x" * 99}]), RESULTS[2], user()], "prompt_cache_key": UUID},
    {"request": {"session_id": UUID, "contents": [
        {"role": "user", "parts": [{"text": "x" * 99}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "x" * 99}}}]},
    ]}},
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("tools", [[], [{"name": "f", "description": "x" * 99}]])
def test_condensed_body_has_the_same_conversation(body: dict[str, Any], tools: list[Any]) -> None:
    whole = json.dumps(body | {"tools": tools}).encode()
    condenser = CondensedBody(KEY)
    condensed = condenser.feed(whole)
    assert b"x" * 99 not in condensed
    found = ConversationReader(KEY)(whole, False)
    assert found is not None
    assert ConversationReader(KEY)(condensed, False, condenser.anatomy) == found
    assert found.session == session_hash(UUID, KEY)


def test_subagent_of_codex_has_the_thread_of_its_parent() -> None:
    thread = {"session_id": "main", "thread_id": "child", "x-codex-parent-thread-id": "main"}
    found = read({"input": [], "client_metadata": thread})
    assert (found.session, found.parent) == (session_hash("child", KEY), session_hash("main", KEY))
    assert read({"input": [], "client_metadata": thread | {"thread_id": "main"}}).parent is None
    assert read({"input": [], "client_metadata": [], "prompt_cache_key": UUID}).by_cache_key

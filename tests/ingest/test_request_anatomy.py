"""What the walk over a request body finds of its conversation, in however many reads the body arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.keyed_ids import keyed_hash
from streamgauge.ingest.records import Request, RequestAnatomy, encode, pack, unpack
from streamgauge.ingest.request_anatomy import MAX_CALL_IDS, MAX_USER_MESSAGES

KEY = b"k" * 32
CALL = "call_" + "7" * 60
RESULT = {"role": "tool", "tool_call_id": CALL, "content": "r"}


def anatomy(body: Any, *, read_bytes: int = 0) -> RequestAnatomy:
    data = json.dumps(body).encode()
    walk, step = CondensedBody(KEY), read_bytes or len(data)
    for start in range(0, len(data), step):
        walk.feed(data[start : start + step])
    return walk.anatomy


def messages(*texts: str) -> list[str]:
    """The hashes of messages with these texts, as they stand in the body."""
    return [keyed_hash(text.encode(), KEY, kind=b"user_message") for text in texts]


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("read_bytes", [0, 1, 7, 64])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"messages": [{"role": "system", "content": "s"}, said("a\\b"), {"role": "assistant", "content": "x"}, said("c")]},
                     (["a\\\\b", "c"], [], 0), id="chat"),
        pytest.param({"tools": [{"text": "t", "role": "user"}], "messages": [said("a"), RESULT]},
                     (["a"], [CALL], 1), id="chat with a result"),
        pytest.param({"messages": [{"content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
                                    "role": "user"}, {"role": "user", "content": [
                                        {"type": "tool_result", "tool_use_id": CALL, "content": [{"type": "text", "text": "r"}]},
                                        {"type": "text", "text": "note"}]}]},
                     (["ab"], [CALL], 1), id="Messages"),
        pytest.param({"input": [{"type": "reasoning", "summary": [{"text": "s"}]}, said("a"), {"type": "x", "call_id": CALL,
                                "output": "r"}]}, (["a"], [CALL], 1), id="Responses"),
        pytest.param({"input": "a", "tools": []}, (["a"], [], 0), id="Responses with a text"),
        pytest.param({"contents": [{"parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "m"}]}, {"role": "user", "parts": [
            {"functionResponse": {"id": CALL, "name": "f", "response": {"id": "no", "text": "r"}}}, {"functionResponse": {"name": "g"}}]}]},
                     (["a"], [CALL], 2), id="Gemini"),
        pytest.param({"metadata": {"input": ["x"]}, "request": {"session_id": "s", "contents": [{"role": "user", "parts": [{"text": "a"}]},
            {"role": "user", "parts": [{"functionResponse": {"id": CALL}}]}]}, "input": "b"}, (["a", "b"], [CALL], 1), id="Code Assist"),
        pytest.param({"messages": [{"role": "user", "content": [{"toolResult": {"content": [{"text": "r"}], "toolUseId": CALL}}]},
                                    said("a")]},
                     (["a"], [CALL], 1), id="Converse"),
        pytest.param({"messages": [{"role": "user", "content": [{"image": "x"}]}, said("")]}, ([""], [], 0), id="without text"),
    ],
)  # fmt: skip
def test_messages_of_the_user_and_results_of_tools(body: Any, expected: Any, read_bytes: int) -> None:
    texts, ids, results = expected
    assert anatomy(body, read_bytes=read_bytes) == RequestAnatomy(messages(*texts), ids, results)


def test_numbers_are_bounded() -> None:
    results = [{"role": "tool", "tool_call_id": f"call_{n}"} for n in range(MAX_CALL_IDS + 5)]
    found = anatomy(
        {
            "messages": [
                *(said(str(n)) for n in range(9)),
                *results,
                {"role": "tool", "tool_call_id": "x" * 999},
            ]
        }
    )
    assert found.user_messages == messages(*map(str, range(MAX_USER_MESSAGES)))
    assert found.call_ids == [f"call_{n}" for n in range(5, MAX_CALL_IDS + 5)]
    assert found.results == MAX_CALL_IDS + 6


@pytest.mark.parametrize(
    "body",
    [b"", b"]]]}", b'{"messages": ]}[', b'{"messages": [{"role": "user", "content": "a', b'\\"{:', b"\xff:{"],
)
def test_no_json_gives_no_exception(body: bytes) -> None:
    walk = CondensedBody(KEY)
    for at in range(len(body)):
        walk.feed(body[at : at + 1])
    whole = CondensedBody(KEY)
    whole.feed(body)
    assert walk.anatomy == whole.anatomy


def test_id_that_is_a_text_is_not_kept() -> None:
    [found] = anatomy({"messages": [{"role": "tool", "tool_call_id": "what my customer said"}]}).call_ids
    assert found.startswith("hashed:")


def test_records_of_earlier_versions_have_no_anatomy() -> None:
    request = Request("0" * 36, 1, b"{}", False)
    assert unpack(pack([request], compress=False)) == ([request], [])
    older = encode(request)
    assert older[0] & 0xF0 == 0x90
    shorter = bytes([older[0] - 1]) + older[1:-1]  # without the last field, None
    assert unpack(b"\x01\x91" + shorter) == ([request], [])

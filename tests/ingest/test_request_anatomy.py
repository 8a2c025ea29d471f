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
    found = anatomy(body, read_bytes=read_bytes)
    assert (found.user_messages, found.call_ids, found.results) == (messages(*texts), ids, results)


Step = tuple[str, Any, Any]
"""Tool, arguments, result."""


def chat(*steps: Step) -> Any:
    found: list[Any] = [said("go")]
    for n, (tool, arguments, result) in enumerate(steps):
        call = {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments)},
        }
        found += [{"role": "assistant", "content": f"step {n}", "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": f"c{n}", "content": json.dumps(result)}]  # fmt: skip
    return {"messages": found}


def chat_blocks(*steps: Step) -> Any:
    found = chat(*steps)
    for n, message in enumerate(found["messages"]):
        if message["role"] == "tool":
            mark = {"cache_control": {"type": "ephemeral"}} if n == len(found["messages"]) - 1 else {}
            message["content"] = [{"type": "text", "text": message["content"], **mark}]
    return found


def marked_first(*steps: Step) -> Any:
    """The cache mark is the first member of its block, with a time."""
    found = chat_blocks(*steps)
    for message in found["messages"]:
        if message["role"] == "tool":
            [block] = message["content"]
            marks = {"cache_control": {"type": "ephemeral", "ttl": "1h"}} if "cache_control" in block else {}
            message["content"] = [{**marks, "type": "text", "text": block["text"]}]
    return found


def ollama(*steps: Step) -> Any:
    found: list[Any] = [said("go")]
    for tool, arguments, result in steps:
        found += [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": tool, "arguments": arguments}}]},
                  {"role": "tool", "tool_name": tool, "content": str(result)}]  # fmt: skip
    return {"messages": found}


def responses(*steps: Step) -> Any:
    found: list[Any] = [said("go")]
    for n, (tool, arguments, result) in enumerate(steps):
        found += [{"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": f"x{n}"},
                  {"type": "function_call", "id": f"fc_{n}", "call_id": f"c{n}", "name": tool, "arguments": json.dumps(arguments)},
                  {"type": "function_call_output", "call_id": f"c{n}", "output": json.dumps(result)}]  # fmt: skip
    return {"input": found}


def anthropic(*steps: Step) -> Any:
    found: list[Any] = [said("go")]
    for n, (tool, arguments, result) in enumerate(steps):
        mark = {"cache_control": {"type": "ephemeral"}} if n == len(steps) - 1 else {}
        found += [{"role": "assistant", "content": [{"type": "text", "text": f"step {n}"},
                                                    {"type": "tool_use", "id": f"t{n}", "name": tool, "input": arguments}]},
                  {"role": "user", "content": [{"tool_use_id": f"t{n}", "type": "tool_result", "content": [
                      {"type": "text", "text": json.dumps(result)}], **mark}, {"type": "text", "text": "a reminder"}]}]  # fmt: skip
    return {"messages": found}


def gemini(*steps: Step, with_ids: bool = False) -> Any:
    found: list[Any] = [{"role": "user", "parts": [{"text": "go"}]}]
    for n, (tool, arguments, result) in enumerate(steps):
        one = {"id": f"g{n}"} if with_ids else {}
        found += [{"role": "model", "parts": [{"functionCall": {**one, "name": tool, "args": arguments}, "thoughtSignature": f"{n}"}]},
                  {"role": "user", "parts": [{"functionResponse": {**one, "name": tool, "response": {"output": result}}}]}]  # fmt: skip
    return {"contents": found}


def code_assist(*steps: Step) -> Any:
    return {"model": "m", "request": gemini(*steps, with_ids=True)}


def converse(*steps: Step) -> Any:
    found: list[Any] = [{"role": "user", "content": [{"text": "go"}]}]
    for n, (tool, arguments, result) in enumerate(steps):
        found += [{"role": "assistant", "content": [{"toolUse": {"toolUseId": f"t{n}", "name": tool, "input": arguments}}]},
                  {"role": "user", "content": [{"toolResult": {"toolUseId": f"t{n}", "content": [{"json": {"r": result}}]}}]}]  # fmt: skip
    return {"messages": found}


SHAPES = [chat, chat_blocks, marked_first, ollama, responses, anthropic, gemini, code_assist, converse]
SAME = ("read_file", {"path": "a.py", "lines": [1, 2]}, "text " * 50)


def repeats(body: Any, **options: int) -> tuple[int, str | None]:
    found = anatomy(body, **options)
    return found.repeats, found.repeated_tool


@pytest.mark.parametrize("read_bytes", [0, 1, 37])
@pytest.mark.parametrize("shape", SHAPES)
def test_call_with_the_same_arguments_and_result_is_counted(shape: Any, read_bytes: int) -> None:
    def count(*steps: Step) -> tuple[int, str | None]:
        return repeats(shape(*steps), read_bytes=read_bytes)

    assert count() == (0, None)
    assert count(SAME) == (1, "read_file")
    assert count(SAME, SAME, SAME) == (3, "read_file")
    other = ("search", {"q": 1}, [])
    assert count(SAME, other, SAME, other, SAME) == (3, "read_file")
    assert count(SAME, SAME, SAME, other) == (1, "search")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([("job", {"id": 7}, {"progress": n}) for n in range(40, 50)], id="polling"),
        pytest.param([("read", {"line": n}, "same") for n in range(9)], id="other arguments"),
        pytest.param([(f"tool_{n}", {}, "same") for n in range(9)], id="other tools"),
        pytest.param([("test", {}, f"failed {n}") if n % 2 else ("edit", {"n": n}, "done") for n in range(9)], id="edits and tests"),
    ],
)  # fmt: skip
def test_agents_that_work_normally_repeat_nothing(shape: Any, steps: list[Step]) -> None:
    assert repeats(shape(*steps))[0] == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_message_of_the_user_begins_the_count_again(shape: Any) -> None:
    body, again = shape(SAME, SAME), shape(SAME)
    name = next(iter(body.get("request", body)))
    inner, more = (b.get("request", b) for b in (body, again))
    # Ids are unique in a conversation.
    inner[name] += json.loads(json.dumps(more[name]).replace('0"', '7"'))
    assert repeats(body) == (1, "read_file")
    inner[name] += more[name][:1]
    assert repeats(body) == (0, None)


def test_calls_of_one_answer_are_paired_by_id() -> None:
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {"n": 0}} for n in range(3)]
    results = [{"type": "tool_result", "content": "r", "tool_use_id": f"t{n}"} for n in (2, 0, 1)]
    body = {
        "messages": [
            said("a"),
            {"role": "assistant", "content": calls},
            {"content": results, "role": "user"},
        ]
    }
    assert repeats(body) == (3, "f")
    del results[1]["tool_use_id"]  # not known to be a result
    assert repeats(body) == (2, "f")


@pytest.mark.parametrize("read_bytes", [0, 1])
@pytest.mark.parametrize("arguments", [{}, {"args": None}])
@pytest.mark.parametrize("with_ids", [False, True])
def test_calls_without_arguments_are_counted(
    arguments: dict[str, Any], with_ids: bool, read_bytes: int
) -> None:
    body = gemini(*[("list_files", 0, "a.py")] * 3, with_ids=with_ids)
    for message in body["contents"]:
        for part in message["parts"]:
            if call := part.get("functionCall"):
                del call["args"]
                call.update(arguments)
    assert repeats(body, read_bytes=read_bytes) == (3, "list_files")
    step = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "list_files", **arguments}}],
        },
        {"role": "tool", "tool_name": "list_files", "content": "a.py"},
    ]
    assert repeats({"messages": [said("go"), *step, *step]}, read_bytes=read_bytes) == (2, "list_files")


def test_name_of_a_tool_that_is_a_text_is_hashed() -> None:
    assert str(anatomy(chat(("what my customer said", {}, ""))).repeated_tool).startswith("hashed:")


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

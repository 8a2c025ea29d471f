"""Types of the members that the Vercel AI SDK validates in each event, as data. An event that differs is an error for it.

A member with "?" may be missing or null. `_one_of` is an object that its `type` tells apart. Members that are not listed are not
validated. Source: the schemas of `@ai-sdk/openai`, `@ai-sdk/openai-compatible` and `@ai-sdk/anthropic`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Literal

import msgspec

from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES
from streamgauge.ingest.redaction.json_keys import RESPONSE

_Members = dict[str, Any]
S, N, B = str, float, bool
ANY_OBJECT = dict[str, Any]


_IN_REDACTED = frozenset({"title", "action"})
"""Members of objects that redaction removes, whose names it keeps in other objects."""


def _is_redacted(name: str) -> bool:
    """Whether redaction removes a member, so that a missing one says nothing. It keeps all counts of a usage report."""
    return name in _IN_REDACTED or (name.encode() not in RESPONSE.rules and name != "output_tokens")


def _object(members: _Members, tag: str | None = None) -> Any:
    """The type of an object with these members."""
    fields = [
        (name.removesuffix("?"), _type(of) | None | msgspec.UnsetType, msgspec.UNSET)
        if name.endswith("?")
        else (name, _type(of) | msgspec.UnsetType, msgspec.UNSET)
        if _is_redacted(name)
        else (name, _type(of))
        for name, of in members.items()
    ]
    fields.sort(key=len)  # msgspec wants members without a default first
    return msgspec.defstruct(tag or "Object", fields, tag_field="type" if tag else None, tag=tag, gc=False)


def _type(of: Any) -> Any:
    """The type that a table's value describes."""
    if isinstance(of, list):
        return list[_type(of[0])]  # type: ignore[misc]
    return _object(of) if type(of) is dict else of


def _one_of(*names: str, **objects: _Members) -> Any:
    """Objects by `type`. `names`: those without members."""
    return reduce(or_, [_object(of, tag) for tag, of in [*((name, {}) for name in names), *objects.items()]])


_RANGE: _Members = {"start_index": N, "end_index": N}
_TOKENS = [{"token": S, "logprob": N, "top_logprobs": [{"token": S, "logprob": N}]}]
_CALL: _Members = {
    "index": N, "id?": S, "type?": Literal["function"], "function": {"name?": S, "arguments?": S},
    "extra_content?": {"google?": {"thought_signature?": S}},
}  # fmt: skip
_DELTA: _Members = {
    "role?": Literal["assistant"], "content?": S, "refusal?": S, "reasoning_content?": S, "reasoning?": S, "tool_calls?": [_CALL],
    "reasoning_details?": Any,
    "annotations?": [_one_of(url_citation={"url_citation": {**_RANGE, "url": S, "title": S}})],
}  # fmt: skip
_CHAT_USAGE: _Members = {
    "prompt_tokens?": int | float, "completion_tokens?": int | float, "total_tokens?": N,
    "prompt_tokens_details?": {"cached_tokens?": N, "cache_write_tokens?": N},
    "completion_tokens_details?": {"reasoning_tokens?": N, "accepted_prediction_tokens?": N, "rejected_prediction_tokens?": N},
}  # fmt: skip
_CHUNK: _Members = {
    "id?": S, "object?": Any, "created?": N, "model?": S, "usage?": _CHAT_USAGE, "error?": Any,
    "choices": [{"index": N, "message?": Any, "delta?": _DELTA,
                 "finish_reason?": S, "logprobs?": {"content?": _TOKENS, "refusal?": _TOKENS}}],
}  # fmt: skip

_CALLER = _one_of("direct", code_execution_20250825={"tool_id": S}, code_execution_20260120={"tool_id": S})
_TOOL_USE: _Members = {"id": S, "name": S, "input?": ANY_OBJECT, "caller?": _CALLER, "toolset_name?": S}
_RAN: _Members = {"stderr": S, "return_code": N, "content?": [_one_of(code_execution_output={"file_id": S})]}
_ERROR: _Members = {"error_code": S}
_SOURCE = _one_of(
    base64={"media_type": Literal["application/pdf"], "data": S}, text={"media_type": Literal["text/plain"], "data": S}
)  # fmt: skip
_DOCUMENT = _one_of(document={"title": S | None, "citations?": {"enabled": B}, "source": _SOURCE})
_VIEW: _Members = (
    {"content": S, "file_type": S} | {f"{of}_lines?": N for of in ("num", "total")} | {"start_line?": N}
)
_REPLACED: _Members = {f"{of}_{what}?": N for of in ("old", "new") for what in ("start", "lines_count")}
_BLOCKS: dict[str, _Members] = {
    "text": {"text": S}, "thinking": {"thinking": S}, "redacted_thinking": {"data": S}, "compaction": {"content?": S}, "fallback": {},
    "tool_use": _TOOL_USE, "server_tool_use": {"id": S, "name": S, "input?": ANY_OBJECT, "caller?": _CALLER},
    "mcp_tool_use": {"id": S, "name": S, "server_name": S},
    "mcp_tool_result": {"tool_use_id": S, "is_error": B, "content": [S | _one_of(text={"text": S})]},
    "web_fetch_tool_result": {"tool_use_id": S, "caller?": _CALLER, "content": _one_of(
        web_fetch_result={"url": S, "retrieved_at": S, "content": _DOCUMENT}, web_fetch_tool_result_error=_ERROR)},
    "web_search_tool_result": {"tool_use_id": S, "caller?": _CALLER, "content":
        _type([_one_of(web_search_result={"url": S, "title": S, "encrypted_content": S, "page_age?": S})])
        | _one_of(web_search_tool_result_error=_ERROR)},
    "code_execution_tool_result": {"tool_use_id": S, "content": _one_of(
        code_execution_result={"stdout": S, **_RAN}, encrypted_code_execution_result={"encrypted_stdout": S, **_RAN},
        code_execution_tool_result_error=_ERROR)},
    "bash_code_execution_tool_result": {"tool_use_id": S, "content": _one_of(
        bash_code_execution_result={"stdout": S, "stderr": S, "return_code": N,
                                    "content": [_one_of(bash_code_execution_output={"file_id": S})]},
        bash_code_execution_tool_result_error=_ERROR)},
    "text_editor_code_execution_tool_result": {"tool_use_id": S, "content": _one_of(
        text_editor_code_execution_tool_result_error=_ERROR, text_editor_code_execution_view_result=_VIEW,
        text_editor_code_execution_create_result={"is_file_update": B}, text_editor_code_execution_str_replace_result=_REPLACED)},
    "tool_search_tool_result": {"tool_use_id": S, "content": _one_of(
        tool_search_tool_search_result={"tool_references": [_one_of(tool_reference={"tool_name": S})]},
        tool_search_tool_result_error=_ERROR)},
    "advisor_tool_result": {"tool_use_id": S, "content": _one_of(
        advisor_result={"text": S}, advisor_redacted_result={"encrypted_content": S}, advisor_tool_result_error=_ERROR)},
}  # fmt: skip
_PLACE: _Members = {"cited_text": S, "document_index": N, "document_title": S | None}
_CITATION = _one_of(
    web_search_result_location={"cited_text": S, "url": S, "title": S, "encrypted_index": S},
    page_location={**_PLACE, "start_page_number": N, "end_page_number": N},
    char_location={**_PLACE, "start_char_index": N, "end_char_index": N},
)
_CACHED: _Members = {"cache_creation_input_tokens?": N, "cache_read_input_tokens?": N}
_MODEL_OF = Literal["compaction", "message", "advisor_message", "fallback_message"]
_MESSAGE_EVENT = _one_of(
    "ping", "message_stop",
    message_start={"message": {
        "id?": S, "model?": S, "role?": S, "stop_reason?": S, "usage": {"input_tokens": N, **_CACHED},
        "content?": [_one_of(tool_use=_TOOL_USE)], "container?": {"expires_at": S, "id": S},
    }},
    content_block_start={"index": N, "content_block": _one_of(**_BLOCKS)},
    content_block_delta={"index": N, "delta": _one_of(
        input_json_delta={"partial_json": S}, text_delta={"text": S}, thinking_delta={"thinking": S},
        signature_delta={"signature": S}, compaction_delta={"content?": S}, citations_delta={"citation": _CITATION})},
    content_block_stop={"index": N},
    message_delta={
        "delta": {
            "stop_reason?": S, "stop_sequence?": S,
            "stop_details?": {"type": S, "category?": S, "explanation?": S, "recommended_model?": S},
            "container?": {"expires_at": S, "id": S,
                           "skills?": [{"type": Literal["anthropic", "custom"], "skill_id": S, "version": S}]},
        },
        "usage": {"input_tokens?": int | float, "output_tokens": N, "output_tokens_details?": {"thinking_tokens?": N}, **_CACHED,
                  "iterations?": [{"type": _MODEL_OF, "model?": S, "input_tokens": N, "output_tokens": N, **_CACHED}]},
        "context_management?": {"applied_edits": [_one_of(
            "compact_20260112", clear_tool_uses_20250919={"cleared_tool_uses": N, "cleared_input_tokens": N},
            clear_thinking_20251015={"cleared_thinking_turns": N, "cleared_input_tokens": N})]},
    },
)  # fmt: skip

_STATUS = Literal["in_progress", "completed", "incomplete"]
_ID: _Members = {"id": S}
_STATED: _Members = {"id": S, "status": S}
_CALLED: _Members = {"id": S, "call_id": S}
_FUNCTION: _Members = {**_CALLED, "name": S, "arguments": S, "async?": B, "namespace?": S}
_CUSTOM: _Members = {**_CALLED, "name": S, "input": S, "async?": B}
_CODE: _Members = {
    **_ID,
    "container_id": S,
    "code?": S,
    "outputs?": [_one_of(logs={"logs": S}, image={"url": S})],
}
_PATCH = _one_of(
    create_file={"path": S, "diff": S}, delete_file={"path": S}, update_file={"path": S, "diff": S}
)
_SEARCHES: _Members = {
    **_ID,
    "execution": Literal["server", "client"],
    "call_id": S | None,
    "status": _STATUS,
}
_OUTCOME = _one_of("timeout", exit={"exit_code": N})
_EITHER_END: dict[str, _Members] = {
    "message": {**_ID, "phase?": Literal["commentary", "final_answer"]}, "reasoning": {**_ID, "encrypted_content?": S},
    "local_shell_call": {**_CALLED, "action": _one_of(exec={
        "command": [S], "timeout_ms?": N, "user?": S, "working_directory?": S, "env?": dict[str, str]})},
    "apply_patch_call": {**_CALLED, "status": Literal["in_progress", "completed"], "operation": _PATCH},
    "shell_call": {**_CALLED, "status": _STATUS, "action": {"commands": [S]}},
    "shell_call_output": {**_CALLED, "status": _STATUS, "output": [{"stdout": S, "stderr": S, "outcome": _OUTCOME}]},
    "tool_search_call": _SEARCHES, "tool_search_output": {**_SEARCHES, "tools": [ANY_OBJECT]},
}  # fmt: skip
_ADDED: dict[str, _Members] = {
    **_EITHER_END, "function_call": _FUNCTION, "custom_tool_call": _CUSTOM, "web_search_call": _STATED, "computer_call": _STATED,
    "file_search_call": _ID, "image_generation_call": _ID, "code_interpreter_call": {**_CODE, "status": S},
    "mcp_call": {**_STATED, "approval_request_id?": S}, "mcp_list_tools": _ID, "mcp_approval_request": _ID,
}  # fmt: skip
_MCP_ERROR = S | _object({"type?": S, "code?": float | str, "message?": S})
_FOUND = [{"attributes": dict[str, str | float | bool], "file_id": S, "filename": S, "score": N, "text": S}]
_DONE: dict[str, _Members] = {
    **_EITHER_END, "function_call": {**_FUNCTION, "status": _STATUS}, "custom_tool_call": {**_CUSTOM, "status": _STATUS},
    "code_interpreter_call": _CODE, "image_generation_call": {**_ID, "result": S},
    "computer_call": {**_ID, "status": Literal["completed"]},
    "web_search_call": {**_STATED, "action?": _one_of(
        search={"query?": S, "queries?": [S], "sources?": [_one_of(url={"url": S}, api={"name": S})]},
        open_page={"url?": S}, find_in_page={"url?": S, "pattern?": S})},
    "file_search_call": {**_ID, "queries": [S], "results?": _FOUND},
    "mcp_call": {**_STATED, "arguments": S, "name": S, "server_label": S, "output?": S, "error?": _MCP_ERROR, "approval_request_id?": S},
    "mcp_list_tools": {**_ID, "server_label": S, "error?": _MCP_ERROR,
                       "tools": [{"name": S, "description?": S, "input_schema": Any, "annotations?": ANY_OBJECT}]},
    "mcp_approval_request": {**_ID, "server_label": S, "name": S, "arguments": S, "approval_request_id?": S},
}  # fmt: skip
_OF_ITEM: _Members = {"item_id": S, "output_index": N}
_OF_SUMMARY: _Members = {"item_id": S, "summary_index": N}
_REFUSAL: _Members = {"item_id": S, "output_index?": N, "content_index?": N}
_RESPONSES_USAGE: _Members = {
    "input_tokens": N, "output_tokens": N, "total_tokens?": N, "output_tokens_details?": {"reasoning_tokens?": N},
    "input_tokens_details?": {"cached_tokens?": N, "cache_write_tokens?": N},
}  # fmt: skip
_FINISHED: _Members = {
    "incomplete_details?": {"reason": S}, "usage?": _RESPONSES_USAGE, "reasoning?": {"context?": S}, "service_tier?": S,
}  # fmt: skip
_FILE: _Members = {"file_id": S, "filename": S}
_ANNOTATION = _one_of(
    url_citation={**_RANGE, "url": S, "title": S},
    file_citation={**_FILE, "index": N},
    container_file_citation={**_FILE, **_RANGE, "container_id": S},
    file_path={"file_id": S, "index": N},
)
_ITEMS = {"added": _ADDED, "done": _DONE}
_RESPONSE_EVENTS: dict[str, _Members] = {
    "created": {"response": {"id": S, "created_at": N, "model": S, "service_tier?": S}},
    "completed": {"response": _FINISHED}, "incomplete": {"response": _FINISHED},
    "failed": {"sequence_number": N, "response": {**_FINISHED, "error?": {"code?": S, "message": S}}},
    **{f"output_item.{at}": {"output_index": N, "item": _one_of(**items)} for at, items in _ITEMS.items()},
    "output_text.delta": {"item_id": S, "delta": S, "logprobs?": _TOKENS},
    "refusal.delta": {**_REFUSAL, "delta": S}, "refusal.done": {**_REFUSAL, "refusal": S},
    **{f"{of}.delta": {**_OF_ITEM, "delta": S} for of in (
        "function_call_arguments", "custom_tool_call_input", "code_interpreter_call_code", "apply_patch_call_operation_diff")},
    "function_call_arguments.done": {**_OF_ITEM, "arguments": S}, "code_interpreter_call_code.done": {**_OF_ITEM, "code": S},
    "apply_patch_call_operation_diff.done": {**_OF_ITEM, "diff": S},
    "image_generation_call.partial_image": {**_OF_ITEM, "partial_image_b64": S},
    "output_text.annotation.added": {"annotation": _ANNOTATION},
    "reasoning_summary_part.added": _OF_SUMMARY, "reasoning_summary_part.done": _OF_SUMMARY,
    "reasoning_summary_text.delta": {**_OF_SUMMARY, "delta": S},
}  # fmt: skip
RESPONSE_TYPES = frozenset(f"response.{name}" for name in _RESPONSE_EVENTS)
"""Types of events of the Responses API whose members are validated. Others are skipped."""
ITEM_TYPES = frozenset(_ADDED)
"""Types of output items whose members are validated. Events with others are skipped."""

EVENTS: dict[str, Any] = {
    CHAT: _object(_CHUNK),
    MESSAGES: _MESSAGE_EVENT,
    RESPONSES: _one_of(**{f"response.{name}": of for name, of in _RESPONSE_EVENTS.items()}),
}
"""Dialect → the type of its events."""

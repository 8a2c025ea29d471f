"""Read the session, the labels and the number of turns from a captured request body. Bad data never raises. No I/O, no clock.

Rules
1. A run of user messages is one turn. System and developer messages do not end it, those of the model and of tools do. A message
   with tool results is a tool's, whatever its role. The number is unknown if the body is cut.
   Code Assist has both in the member `request`.
2. The session is the first of `_METADATA` and `_MEMBERS` with a value. Only its keyed hash leaves this module
   (`streamgauge.ingest.keyed_ids`).
3. Codex has its thread and that of a subagent's parent in `client_metadata`, and for a request over a WebSocket the caller's
   `traceparent`. A message of MCP has the session and the `traceparent` in `params._meta`.
4. `prompt_cache_key` is used only if it has the form of an id, because applications also use one key for all conversations.
5. The anatomy of a request without tools has only the segments: agents that name no session have tools.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from streamgauge.analytics.decoding.request_body import decode_members
from streamgauge.analytics.dialects.tolerant_json import FAULTS, decode_or_none
from streamgauge.ingest import identifiers
from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.keyed_ids import session_hash
from streamgauge.ingest.labels import BODY, Label
from streamgauge.ingest.records import Conversation, RequestAnatomy

log = logging.getLogger(__name__)

MAX_SESSION_CHARS = 1024

_METADATA = (
    "session_id", "sessionId", "langfuse_session_id", "litellm_session_id", "conversation_id", "thread_id", "chat_id",
)  # fmt: skip
"""Members of `metadata`: Langfuse, LiteLLM, OpenAI and others."""
_MEMBERS = ("conversation", "litellm_session_id", "session_id", "conversation_id", "thread_id", "chat_id")
"""Members of the body: OpenAI's conversations, LiteLLM, OpenRouter and others."""
_META = ("sessionID", "threadId", *_METADATA)
"""Members of `params._meta` of MCP: OpenCode, Codex and others."""
_CLAUDE_CODE = re.compile(r"_session_([A-Za-z0-9-]{8,})$")
"""End of `metadata.user_id` of older Claude Code versions. Newer ones send JSON with a `session_id`."""
_ID = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-f]{32}|(?:ses|sess|session|conv|thread|chat)[_-][A-Za-z0-9_-]{8,}"
)
_TOOL_RESULTS = (b'"tool_result"', b'"toolResult"', b'"functionResponse"', b'"function_response"')
_TOOL_LIST = re.compile(rb'"type"\s*:\s*"additional_tools"')
_NOTHING = msgspec.Raw()


class _Body(msgspec.Struct):
    metadata: Any = None
    client_metadata: Any = None
    previous_response_id: Any = None
    store: Any = None
    conversation: Any = None
    litellm_session_id: Any = None
    session_id: Any = None
    conversation_id: Any = None
    thread_id: Any = None
    chat_id: Any = None
    prompt_cache_key: Any = None
    messages: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    contents: msgspec.Raw = _NOTHING
    request: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    jsonrpc: Any = None
    method: Any = None
    params: msgspec.Raw = _NOTHING


class _Params(msgspec.Struct):
    name: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")


class _Message(msgspec.Struct):
    role: Any = None
    type: Any = None
    content: msgspec.Raw = _NOTHING
    parts: msgspec.Raw = _NOTHING


class _Block(msgspec.Struct):
    type: Any = None
    toolResult: msgspec.Raw = _NOTHING
    functionResponse: msgspec.Raw = _NOTHING
    function_response: msgspec.Raw = _NOTHING


_SCANNED = frozenset(_Body.__struct_fields__) - {
    "messages", "input", "contents", "request", "tools", "params",
}  # fmt: skip
_body_decoder = msgspec.json.Decoder(_Body)
_params_decoder = msgspec.json.Decoder(_Params)
_messages_decoder = msgspec.json.Decoder(list[_Message])
_blocks_decoder = msgspec.json.Decoder(list[_Block])
_any_decoder = msgspec.json.Decoder()


class ConversationReader:
    """Reads conversations and hashes their sessions with one key."""

    def __init__(self, key: bytes = b"", labels: Sequence[Label] = ()) -> None:
        self.key = key
        self._labels = [(label, label.key.split(".")) for label in labels if label.kind == BODY]
        self._decoder, self._scanned = _body_decoder, _SCANNED
        if self._labels:
            members = {path[0] for _, path in self._labels}
            more = [(name, Any, None) for name in members if name not in _Body.__struct_fields__]
            self._decoder = msgspec.json.Decoder(msgspec.defstruct("_LabelledBody", more, bases=(_Body,)))
            self._scanned = _SCANNED | members

    def __call__(
        self, body: bytes, truncated: bool, anatomy: RequestAnatomy | None = None
    ) -> Conversation | None:
        """The conversation that a decompressed request body names. None: it is no JSON object. `anatomy`: of the whole body, if the
        tap read it."""
        found = decode_members(self._decoder, body, truncated, self._scanned)
        if found is None:
            return None
        labels = self._labels_in(found) if self._labels else None
        if bytes(found.request).startswith(b"{"):
            found = decode_members(self._decoder, bytes(found.request), truncated, self._scanned) or found
            labels = labels or self._labels_in(found)
        if found.jsonrpc is not None:
            return self._of_message(found, labels)
        by_client = found.client_metadata if isinstance(found.client_metadata, dict) else {}
        named, by_cache = _session(found, by_client), _text(found.prompt_cache_key)
        by_cache = by_cache if named is None and by_cache and _ID.fullmatch(by_cache) else None
        session, parent = named or by_cache, _text(by_client.get("x-codex-parent-thread-id"))
        previous, has_tools = found.previous_response_id, None if truncated else _has_tools(found)
        if anatomy is None and not truncated:
            walk = CondensedBody(self.key)
            walk.feed(body)
            anatomy = walk.anatomy
            if walk.error is not None:
                log.error("cannot read the anatomy of a request", exc_info=walk.error)
        if anatomy is not None and has_tools is False:
            anatomy = RequestAnatomy(encoded_segments=anatomy.encoded_segments, left_out=anatomy.left_out)
        return Conversation(
            session=session_hash(session, self.key) if session else None,
            turns=None if truncated else _turns(found),
            previous_response_id=identifiers.identifier(previous) if isinstance(previous, str) else None,
            has_history=not found.previous_response_id and not found.conversation,
            can_be_continued=found.store is not False,
            has_tools=has_tools,
            traceparent=_traceparent(by_client, "ws_request_header_traceparent"),
            labels=labels,
            parent=session_hash(parent, self.key) if parent and parent != session else None,
            by_cache_key=by_cache is not None,
            anatomy=anatomy,
        )

    def _labels_in(self, found: _Body) -> dict[str, str] | None:
        values = [
            (label.name, label.recorded(_member(found, path), self.key)) for label, path in self._labels
        ]
        return {name: value for name, value in values if value is not None} or None

    def _of_message(self, found: _Body, labels: dict[str, str] | None) -> Conversation:
        params = decode_or_none(_params_decoder, bytes(found.params)) or _Params()
        meta = params.meta if isinstance(params.meta, dict) else {}
        session = next(filter(None, (_text(meta.get(name)) for name in _META)), None)
        tool = _text(params.name)
        return Conversation(
            session=session_hash(session, self.key) if session else None,
            traceparent=_traceparent(meta, "traceparent"),
            tool=identifiers.name(tool) if found.method == "tools/call" else None,
            labels=labels,
        )


def _member(found: _Body, path: Sequence[str]) -> Any:
    """A member of a body. Texts on the way to it may be JSON: Claude Code has an object in the text `metadata.user_id`."""
    value = getattr(found, path[0])
    for name in path[1:]:
        if isinstance(value, msgspec.Raw | str):
            value = decode_or_none(_any_decoder, value.encode() if isinstance(value, str) else bytes(value))
        value = value.get(name) if isinstance(value, dict) else None
    return value


# -- the session ------------------------------------------------------------------------------------------------------


def _session(body: _Body, by_client: dict[str, Any]) -> str | None:
    if found := _text(by_client.get("thread_id")) or _text(by_client.get("session_id")):
        return found
    if isinstance(body.metadata, dict):
        if found := _claude_code(body.metadata.get("user_id")):
            return found
        for name in _METADATA:
            if found := _text(body.metadata.get(name)):
                return found
    for name in _MEMBERS:
        value = getattr(body, name)
        if value is not None and (found := _text(value.get("id") if isinstance(value, dict) else value)):
            return found
    return None


def _claude_code(user_id: Any) -> str | None:
    """The session in `metadata.user_id`: an object, its JSON, or a text that ends in `_session_…`."""
    if isinstance(user_id, str) and user_id.startswith("{"):
        with suppress(*FAULTS):
            user_id = msgspec.json.decode(user_id)
    if isinstance(user_id, dict):
        return _text(user_id.get("session_id"))
    match = _CLAUDE_CODE.search(user_id) if isinstance(user_id, str) else None
    return _text(match[1]) if match else None


def _traceparent(members: dict[str, Any], name: str) -> str | None:
    found = _text(members.get(name))
    return found if found and identifiers.trace_parent(found) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_SESSION_CHARS else None


# -- turns ------------------------------------------------------------------------------------------------------------


def _turns(body: _Body) -> int | None:
    """Turns in the messages of the request, None if it has no list of messages."""
    raw = next((r for r in map(bytes, (body.messages, body.input, body.contents)) if r), b"")
    if raw.startswith(b'"'):
        return 1
    if not raw.startswith(b"["):
        return None
    try:
        messages = _messages_decoder.decode(raw)
    except FAULTS:
        return None
    turns, in_turn = 0, False
    for message in messages:
        speaker = _speaker(message)
        if speaker == "user" and not in_turn:
            turns += 1
        if speaker is not None:
            in_turn = speaker == "user"
    return turns


def _has_tools(body: _Body) -> bool:
    """Codex lists its tools among the messages."""
    return bytes(body.tools) not in (b"", b"[]", b"null") or bool(_TOOL_LIST.search(bytes(body.input)))


def _speaker(message: _Message) -> str | None:
    """`user`, `other` (the model or a tool), None for messages that do not end a turn."""
    role = message.role.lower() if isinstance(message.role, str) else None
    if role in ("system", "developer"):
        return None
    if role == "user":
        return "other" if _has_tool_result(message) else "user"
    if role is None and message.type in (None, "message"):
        is_parts = bytes(message.parts)
        return "user" if is_parts and not _has_tool_result(message) else "other"
    return "other"


def _has_tool_result(message: _Message) -> bool:
    for raw in map(bytes, (message.content, message.parts)):
        if raw.startswith(b"[") and any(mark in raw for mark in _TOOL_RESULTS):
            try:
                blocks = _blocks_decoder.decode(raw)
            except FAULTS:
                continue
            if any(
                block.type == "tool_result"
                or bytes(block.toolResult)
                or bytes(block.functionResponse)
                or bytes(block.function_response)
                for block in blocks
            ):
                return True
    return False

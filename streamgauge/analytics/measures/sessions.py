"""The columns `session_id`, `parent_session_id` and `turn` of finished streams. No I/O, no clock.

Rules
1. A session in a header takes precedence over one in the body, and that over the chain of responses. Of MCP, the one in the body
   is the agent's, and that in the header is only the connection to a server. On a WebSocket, the header is that of the handshake.
2. A request with `previous_response_id` belongs to the session of that response. If the response is unknown, its id is the
   session's. A response that can be continued has its own id as session, which is one only if a request continues it: readers
   leave out sessions of one such response (view `session_turns`).
3. `turn` is the number of turns in the messages of the request. If the server keeps the earlier messages, it is the turn of the
   previous response, or of the session's last request, plus the new ones. NULL if unknown.
   Requests of `SIDE_OPERATIONS` are no turns.
4. A subagent has a session of its own. Its parent is the session that it belongs to.
5. A request of a coding agent without a session header (Qwen Code, Gemini CLI) continues the conversation of the same program, key,
   tap and session in the body that it fits (`_fit`): the one whose tool calls it answers, else one that begins with the same messages
   of the user. A conversation has the id of its first request, and ends after `MAX_IDLE_NS`. A restart of analytics begins new ones.
   A new one that begins while another waits for its tools is that one's subagent, as long as it waits. Of several, it is that of the
   one that called last. The conversation that is no subagent has the id in the body, if there is one.
6. Up to `MAX_REMEMBERED` responses are kept. The oldest is evicted, and its continuation then begins a new session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.measures.operation import is_agent
from streamgauge.analytics.schema.dimensions import INFERENCE, MCP, SIDE_OPERATIONS, WARM_UP
from streamgauge.analytics.schema.outcomes import OK
from streamgauge.analytics.schema.stream_columns import StreamRow
from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.keyed_ids import RECORDED, RECORDED_AGENT
from streamgauge.ingest.records import NO_SEGMENTS, Conversation, RequestAnatomy

MAX_REMEMBERED = 50_000
MAX_TURN = 2**31 - 1
_CHAINED = ("openai_responses", "lmstudio_chat")
"""Dialects whose responses can be continued by their id."""
_UNKNOWN = Conversation()
MAX_IDLE_NS = 30 * 60 * 10**9
MAX_PARALLEL = 64
"""Conversations of one program without a session that are kept."""
_NO_ANATOMY = RequestAnatomy()


@dataclass(slots=True, eq=False)
class _Unnamed:
    """A conversation of a program that names none, after its last request that ended."""

    session: str
    callers: list[tuple[_Unnamed, int]]
    """Conversations that wait for tools since before this one began, and how many requests they had then. The last caller last."""
    requests: int = 0
    turn: int | None = None
    goes_on: bool = True
    """The next request is of the same turn."""
    waits: bool = False
    """The next request answers tool calls."""
    call_ids: frozenset[str | None] = frozenset()
    at_ns: int = 0
    ended_ns: int = 0
    anatomy: RequestAnatomy = _NO_ANATOMY


def _fit(one: _Unnamed, turn: int | None, asked: RequestAnatomy, at_ns: int) -> int:
    """How well a request continues a conversation. 0: not at all."""
    if not one.call_ids.isdisjoint(asked.call_ids):
        return 4
    before = one.anatomy.user_messages
    if before and asked.user_messages:
        same_turn = turn is not None and turn == one.turn
        if asked.user_messages[: len(before)] != before or at_ns < one.ended_ns:
            return 0
        if same_turn and one.waits and asked.results <= one.anatomy.results:
            return 0
        if turn is not None and one.turn is not None and turn > one.turn:
            return 3
    if turn is None or one.turn is None:
        return 1
    return 2 if turn == one.turn and one.goes_on else int(turn == one.turn + 1 and not one.goes_on)


class Sessions:
    """Keeps responses and the sessions they belong to. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int | None]] = {}
        """Response id, or session id of a conversation that the server keeps → (session, turn)."""
        self._unnamed: dict[tuple[Any, ...], list[_Unnamed]] = {}
        """Tap, program, client and session in the body → its conversations, the latest last."""
        self._batch: dict[str, tuple[str | None, str | None, int | None]] = {}
        """Columns of the streams of the last call, which may be measured again one by one."""

    def restore(self, responses: Iterable[tuple[str, str, int | None]]) -> None:
        """Continue after a restart from stored (response id, session id, turn), the newest last."""
        for response_id, session, turn in responses:
            self._keep(response_id, session, turn)

    def add_to(self, rows: Sequence[StreamRow], finished: Sequence[FinishedStream]) -> None:
        """Set `session_id` and `turn` of rows of `streams`."""
        if any(row["stream_id"] not in self._batch for row in rows):
            self._batch = {}
            self._add_new(rows, finished)
            self._batch = {r["stream_id"]: (r["session_id"], r["parent_session_id"], r["turn"]) for r in rows}
        for row in rows:
            row["session_id"], row["parent_session_id"], row["turn"] = self._batch[row["stream_id"]]

    def _add_new(self, rows: Sequence[StreamRow], finished: Sequence[FinishedStream]) -> None:
        pairs = zip(rows, finished, strict=True)
        # By start: a request that continues a response must find it, even if both ended in one commit.
        for row, stream in sorted(pairs, key=lambda pair: pair[1].started_wall_ns):
            headers = dict(stream.opened.headers if stream.opened is not None else ())
            conversation = stream.conversation or _UNKNOWN
            parent, own = (identifier(headers.get(name)) for name in (RECORDED, RECORDED_AGENT))
            if own is None:
                parent, own = None, parent
            is_in_header, in_body = own is not None, identifier(conversation.session)
            is_message = row["dialect"] == MCP or (row["connection_id"] and not conversation.by_cache_key)
            if in_body is not None and (own in (None, in_body) or is_message):
                parent, own = identifier(conversation.parent) or (parent if own == in_body else None), in_body
            if row["operation"] == WARM_UP:  # the request that follows has its turn
                conversation = msgspec.structs.replace(conversation, turns=0)
            row["session_id"], turn = self._session_of(row, conversation, own)
            row["turn"] = turn or None
            row["parent_session_id"] = parent
            if row["operation"] in SIDE_OPERATIONS:
                row["turn"] = None
            elif (
                not (is_in_header or conversation.parent)
                and conversation.has_history
                and row["session_id"] in (None, in_body)
                and row["operation"] in INFERENCE
                and is_agent(row["client_app"])
            ):
                self._of_program(row, stream, conversation.anatomy or _NO_ANATOMY)

    def _session_of(
        self, row: StreamRow, conversation: Conversation, named: str | None
    ) -> tuple[str | None, int | None]:
        previous, response_id = conversation.previous_response_id, row["response_id"]
        session = named
        turn = conversation.turns
        before: tuple[str, int | None] | None = None
        if previous is not None:
            before = self._known.get(previous)
            session = session or (before[0] if before else previous)
        elif not conversation.has_history and session is not None:
            before = self._known.get(session)
        is_chained = row["dialect"] in _CHAINED and response_id is not None
        if session is None and is_chained and conversation.can_be_continued and conversation is not _UNKNOWN:
            session = response_id
        if session is None and not conversation.has_history:
            return None, None
        if session is not None and not conversation.has_history:
            if previous is None and before is None:
                before = (session, 0)  # the first request of a conversation that the server keeps
            known = before[1] if before is not None else None
            turn = known + turn if known is not None and turn is not None else None
            if previous is None:
                self._keep(session, session, turn)
        turn = turn if turn is not None and 0 <= turn <= MAX_TURN else None
        if is_chained and session is not None and response_id is not None:
            self._keep(response_id, session, turn)
        return session, turn

    def _of_program(self, row: StreamRow, stream: FinishedStream, asked: RequestAnatomy) -> None:
        at_ns, turn, named = stream.started_wall_ns, row["turn"], row["session_id"]
        key = row["tap"], row["client_app"], row["client_id"], named
        recent = [one for one in self._unnamed.pop(key, ()) if at_ns - one.at_ns < MAX_IDLE_NS]
        found = max(reversed(recent), key=lambda one: _fit(one, turn, asked, at_ns), default=None)
        if found is None or not _fit(found, turn, asked, at_ns):
            calling = (
                [one for one in recent if one.waits and one.ended_ns <= at_ns] if asked.user_messages else []
            )
            calling.sort(key=lambda one: one.ended_ns)
            session = row["stream_id"] if named is None or calling else named
            found = _Unnamed(session, [(one, one.requests) for one in calling])
        # A caller that went on before this request did not wait for it. Within a session in the body, there is no other program.
        waiting = [(one, n) for one, n in found.callers if one.requests == n]
        if waiting or named is None:
            found.callers = waiting
        found.turn, found.at_ns, found.ended_ns = turn, at_ns, at_ns + (row["end_ns"] or 0)
        found.requests += 1
        found.anatomy = msgspec.structs.replace(asked, encoded_segments=NO_SEGMENTS)
        found.goes_on = row["outcome"] != OK or row["tool_call_count"] != 0
        found.waits = row["outcome"] == OK and bool(row["tool_call_count"])
        calls = stream.body.tool_times if found.waits and stream.body is not None else ()
        found.call_ids = frozenset(identifier(call.id) for call in calls if call.id)
        if len(self._unnamed) >= MAX_REMEMBERED:
            del self._unnamed[next(iter(self._unnamed))]
        self._unnamed[key] = [*(one for one in recent if one is not found), found][-MAX_PARALLEL:]
        row["session_id"] = found.session
        row["parent_session_id"] = found.callers[-1][0].session if found.callers else None

    def _keep(self, key: str, session: str, turn: int | None) -> None:
        self._known.pop(key, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = (session, turn)

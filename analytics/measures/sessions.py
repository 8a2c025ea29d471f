"""The columns `session_id`, `parent_session_id` and `turn` of finished streams. No I/O, no clock.

Rules
1. A session in a header takes precedence over one in the body, and that over the chain of responses. Of MCP, the one in the body
   is the agent's, and that in the header is only the connection to a server.
2. A request with `previous_response_id` belongs to the session of that response. If the response is unknown, its id is the
   session's. A response that can be continued has its own id as session, which is one only if a request continues it: readers
   leave out sessions of one such response (view `session_turns`).
3. `turn` is the number of turns in the messages of the request. If the server keeps the earlier messages, it is the turn of the
   previous response, or of the session's last request, plus the new ones. NULL if unknown.
   Requests of `SIDE_OPERATIONS` are no turns.
4. A subagent has a session of its own. Its parent is the session that it belongs to.
5. A request of a coding agent that names no session (Qwen Code, Gemini CLI with an API key) continues the conversation of the same
   program, key and tap that it fits: the turn of one that called tools or failed, or the next turn of one that did not. Such a session
   has the id of its first request, and ends after `MAX_IDLE_NS`. A restart of analytics begins new ones.
6. Responses are remembered up to `MAX_REMEMBERED`; the oldest is removed. Then its continuation begins a new session.
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
from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.keyed_ids import RECORDED, RECORDED_AGENT
from streamgauge.ingest.records import Conversation

MAX_REMEMBERED = 50_000
MAX_TURN = 2**31 - 1
_CHAINED = ("openai_responses", "lmstudio_chat")
"""Dialects whose responses can be continued by their id."""
_UNKNOWN = Conversation()
MAX_IDLE_NS = 30 * 60 * 10**9
MAX_PARALLEL = 16
"""Conversations of one program without a session that are remembered."""


@dataclass(slots=True)
class _Unnamed:
    """A conversation of a program that names none."""

    session: str
    turn: int | None
    goes_on: bool
    """The next request is of the same turn."""
    at_ns: int


class Sessions:
    """Remembers responses and the sessions they belong to. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int | None]] = {}
        """Response id, or session id of a conversation that the server keeps → (session, turn)."""
        self._unnamed: dict[tuple[Any, ...], list[_Unnamed]] = {}
        """Tap, program and client → its conversations, the latest last."""

    def restore(self, responses: Iterable[tuple[str, str, int | None]]) -> None:
        """Continue after a restart from stored (response id, session id, turn), the newest last."""
        for response_id, session, turn in responses:
            self._remember(response_id, session, turn)

    def add_to(self, rows: Sequence[dict[str, Any]], finished: Sequence[FinishedStream]) -> None:
        """Set `session_id` and `turn` of rows of `streams`."""
        pairs = zip(rows, finished, strict=True)
        # By start: a request that continues a response must find it, even if both ended in one commit.
        for row, stream in sorted(pairs, key=lambda pair: pair[1].started_wall_ns):
            headers = dict(stream.opened.headers if stream.opened is not None else ())
            conversation = stream.conversation or _UNKNOWN
            named, agent = (identifier(headers.get(name)) for name in (RECORDED, RECORDED_AGENT))
            if row["dialect"] == MCP and conversation.session is not None:
                named = conversation.session
            if row["operation"] == WARM_UP:  # the request that follows has its turn
                conversation = msgspec.structs.replace(conversation, turns=0)
            row["session_id"], turn = self._session_of(row, conversation, agent or named)
            row["turn"] = turn or None
            row["parent_session_id"] = (named or identifier(conversation.session)) if agent else None
            if row["operation"] in SIDE_OPERATIONS:
                row["turn"] = None
            elif row["session_id"] is None and row["operation"] in INFERENCE and is_agent(row["client_app"]):
                row["session_id"] = self._of_program(row, stream.started_wall_ns)

    def _session_of(
        self, row: dict[str, Any], conversation: Conversation, named: str | None
    ) -> tuple[str | None, int | None]:
        previous, response_id = conversation.previous_response_id, row["response_id"]
        session = named or identifier(conversation.session)
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
                self._remember(session, session, turn)
        turn = turn if turn is not None and 0 <= turn <= MAX_TURN else None
        if is_chained and session is not None:
            self._remember(response_id, session, turn)
        return session, turn

    def _of_program(self, row: dict[str, Any], at_ns: int) -> str:
        key, turn = (row["tap"], row["client_app"], row["client_id"]), row["turn"]
        recent = [one for one in self._unnamed.pop(key, ()) if at_ns - one.at_ns < MAX_IDLE_NS]

        def fit(one: _Unnamed) -> int:
            if turn is None or one.turn is None:
                return 1
            return 2 if turn == one.turn and one.goes_on else int(turn == one.turn + 1 and not one.goes_on)

        found = max(reversed(recent), key=fit, default=None)
        if found is None or not fit(found):
            found = _Unnamed(row["stream_id"], turn, True, at_ns)
        found.turn, found.at_ns = turn, at_ns
        found.goes_on = row["outcome"] != OK or row["tool_call_count"] != 0
        if len(self._unnamed) >= MAX_REMEMBERED:
            del self._unnamed[next(iter(self._unnamed))]
        self._unnamed[key] = [*(one for one in recent if one is not found), found][-MAX_PARALLEL:]
        return found.session

    def _remember(self, key: str, session: str, turn: int | None) -> None:
        self._known.pop(key, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = (session, turn)

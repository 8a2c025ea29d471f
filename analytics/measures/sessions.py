"""The columns `session_id`, `parent_session_id` and `turn` of finished streams. No I/O, no clock.

Rules
1. A session in a header takes precedence over one in the body, and that over the chain of responses.
2. A request with `previous_response_id` belongs to the session of that response. If the response is unknown, its id is the
   session's. A response that can be continued has its own id as session, which is one only if a request continues it: readers
   leave out sessions of one such response (view `session_turns`).
3. `turn` is the number of turns in the messages of the request. If the server keeps the earlier messages, it is the turn of the
   previous response, or of the session's last request, plus the new ones. NULL if unknown.
   Requests of `SIDE_OPERATIONS` are no turns.
4. A subagent has a session of its own. Its parent is the session that it belongs to.
5. Responses are remembered up to `MAX_REMEMBERED`; the oldest is removed. Then its continuation begins a new session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.schema.dimensions import SIDE_OPERATIONS
from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.keyed_ids import RECORDED, RECORDED_AGENT
from streamgauge.ingest.records import Conversation

MAX_REMEMBERED = 50_000
MAX_TURN = 2**31 - 1
_CHAINED = ("openai_responses", "lmstudio_chat")
"""Dialects whose responses can be continued by their id."""
_UNKNOWN = Conversation()


class Sessions:
    """Remembers responses and the sessions they belong to. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int | None]] = {}
        """Response id, or session id of a conversation that the server keeps → (session, turn)."""

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
            row["session_id"], row["turn"] = self._session_of(row, conversation, agent or named)
            row["parent_session_id"] = (named or identifier(conversation.session)) if agent else None
            if row["operation"] in SIDE_OPERATIONS:
                row["turn"] = None

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
        turn = turn if turn is not None and 0 < turn <= MAX_TURN else None
        if is_chained and session is not None:
            self._remember(response_id, session, turn)
        return session, turn

    def _remember(self, key: str, session: str, turn: int | None) -> None:
        self._known.pop(key, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = (session, turn)

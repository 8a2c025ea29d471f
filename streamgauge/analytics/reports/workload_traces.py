"""Traces of requests without text, in the formats of benchmark tools.

A prompt is divided into blocks of `block_size` tokens. Two blocks have the same id if both prompts are equal up to the end of the block.
Ids of blocks and sessions are hashed with a key that is generated for one export and not stored.

Omitted are requests that no model answered, inner streams of hops, and warm-ups. Tokens that are not reported are estimated: input by the
median tokens per byte of the model, output by the number of output events. More than `MAX_INPUT_TOKENS` count as not reported.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.prefixes import Placed, Prefixes, with_rest
from streamgauge.analytics.reports.stored_prompts import prompts
from streamgauge.analytics.schema.dimensions import CALLS_MODEL, SIDE_CALL, is_one_of
from streamgauge.analytics.schema.outcomes import IS_ANSWERED, IS_REQUEST
from streamgauge.analytics.schema.prompt_sizes import TOKENS_PER_PROMPT_BYTE, WEIGHTED_BYTES
from streamgauge.analytics.schema.sql_quoting import instant

FORMATS = {"mooncake": 512, "weka": 64}
"""Format → default block size in tokens."""
MAX_INPUT_TOKENS = 10_000_000
"""No model reads as many. A trace has an id for each block of them."""
_PREFIXES = 1_000_000
"""Prefixes of prompts that are kept: about 250 MB."""
_PAGE = 1_000
"""Requests, or sessions, that are read together."""
_ID_BITS = 53
"""Integers up to this size are exact in every reader of JSON."""
_COLUMNS = f"""
    stream_id::VARCHAR AS stream_id, epoch_ns(started_at) AS started_ns, session_id, coalesce(request_model, response_model, 'unknown')
        AS model, streamed, input_tokens, greatest(1, coalesce(output_tokens, output_event_count, 1)) AS output_tokens, end_ns, ttft_ns,
    coalesce(tool_call_count, 0) AS tool_calls, request_bytes, {WEIGHTED_BYTES} AS weighted_bytes, coalesce(left_out, 0) AS left_out,
    coalesce(incomplete, false) AS incomplete"""


@dataclass
class Traced:
    """Counts of an export."""

    block_size: int
    requests: int = 0
    conversations: int = 0
    without_prompt: int = 0
    """Requests whose prompt is unknown: they have no blocks."""
    estimated: int = 0
    """Requests whose input tokens are not reported."""
    without_session: int = 0
    """Requests that are omitted because they have no session."""


@dataclass
class Tracer:
    """One export."""

    query: Query
    found: Traced
    since: datetime | None = None
    until: datetime | None = None
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        ratios = self.query(f"""
            SELECT coalesce(request_model, response_model, 'unknown') AS model, median(input_tokens / {WEIGHTED_BYTES}) AS ratio
            FROM streams JOIN prompt_segments USING (stream_id)
            WHERE input_tokens BETWEEN 1 AND {MAX_INPUT_TOKENS} AND {WEIGHTED_BYTES} > 0 AND {self._where()}
            GROUP BY ALL""")
        self._ratios: dict[str, float] = dict(ratios.iter_rows())

    def mooncake(self, *, by_session: bool = False) -> Iterator[dict[str, Any]]:
        """The lines, by time. `by_session`: later requests of a session have the `delay` in ms after the one before it, and no time."""
        prefixes, began_ns, ended_ns = Prefixes(_PREFIXES), None, dict[str, int]()
        after = "TRUE"
        while rows := self._rows(after, limit=_PAGE):
            after = "(epoch_ns(started_at), stream_id) > ({started_ns}, '{stream_id}'::UUID)".format(
                **rows[-1]
            )
            for row, placed in self._placed(rows, prefixes):
                began_ns = row["started_ns"] if began_ns is None else began_ns
                tokens, line = row["input_tokens"], dict[str, Any]()
                ids = self._blocks(placed, tokens)
                if placed is not None and tokens % self.found.block_size:
                    # The last block is not full. Only an equal prompt has one of its size.
                    ids.append(self._number("rest", placed.keys[-1], tokens))
                session = row["session_id"] if by_session else None
                if session is not None:
                    line["session_id"] = f"{self._number('session', session):x}"
                if session in ended_ns:
                    line["delay"] = max(0, row["started_ns"] - ended_ns[session]) // 10**6
                else:
                    line["timestamp"] = max(0, row["started_ns"] - began_ns) // 10**6
                if session is not None:
                    ended_ns[session] = row["started_ns"] + (row["end_ns"] or 0)
                yield line | {"input_length": tokens, "output_length": row["output_tokens"], "hash_ids": ids}
            self.found.conversations = len(ended_ns)

    def weka(self) -> Iterator[dict[str, Any]]:
        """The conversations by start time, each with its subagents."""
        sessions = self._sessions()
        roots = list(sessions)
        for first in range(0, len(roots), _PAGE):
            page = roots[first : first + _PAGE]
            rows = defaultdict[str, list[dict[str, Any]]](list)
            for row in self._rows(is_one_of("session_id", [one for root in page for one in sessions[root]])):
                rows[row["session_id"]].append(row)
            for root in page:
                yield from self._conversations(root, {one: rows[one] for one in sessions[root] if rows[one]})

    def _sessions(self) -> dict[str, list[str]]:
        """Session → itself and all its subagents, the earliest first."""
        parents = {
            row["session_id"]: row["parent"]
            for row in self.query(f"""
                SELECT session_id, arg_max(parent_session_id, started_at) AS parent FROM streams
                WHERE session_id IS NOT NULL AND {self._where()} GROUP BY session_id
                ORDER BY min(started_at), session_id""").iter_rows(named=True)
        }  # fmt: skip
        found = defaultdict[str, list[str]](list)
        for session in parents:
            root, passed = session, {session}
            while (parent := parents.get(root)) in parents and parent not in passed:
                passed.add(root := parent)
            found[root].append(session)
        self.found.without_session = int(
            self.query(f"SELECT count(*) FROM streams WHERE session_id IS NULL AND {self._where()}").item()
        )
        return found

    def _conversations(self, root: str, rows: Mapping[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """The conversation of a session. A subagent without an earlier request of it is a conversation of its own."""
        begin_ns = min((one["started_ns"] for one in rows.get(root, ())), default=None)
        apart = {
            session for session, its in rows.items() if begin_ns is None or its[0]["started_ns"] < begin_ns
        }
        for session in apart:
            yield self._conversation(session, {session: rows[session]})
        if begin_ns is not None:
            yield self._conversation(root, {one: its for one, its in rows.items() if one not in apart})

    def _conversation(self, root: str, rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
        in_order = sorted((row for its in rows.values() for row in its), key=lambda row: row["started_ns"])
        begin_ns, local = in_order[0]["started_ns"], dict[int, int]()
        made, entries = list[dict[str, Any]](), dict[str, dict[str, Any]]()
        for row, placed in self._placed(in_order, Prefixes(_PREFIXES)):
            session, at_s = row["session_id"], (row["started_ns"] - begin_ns) / 1e9
            ids = [local.setdefault(one, len(local) + 1) for one in self._blocks(placed, row["input_tokens"])]
            request = {
                "t": round(at_s, 3), "type": "s" if row["streamed"] else "n", "model": row["model"], "in": row["input_tokens"],
                "out": row["output_tokens"], "hash_ids": ids, "stop": "tool_use" if row["tool_calls"] else "end_turn",
                "input_types": row["input_types"], "api_time": _seconds(row["end_ns"]),
            }  # fmt: skip
            if row["streamed"] and row["ttft_ns"] is not None:
                request["ttft"] = _seconds(row["ttft_ns"])
            if session == root:
                made.append(request)
                continue
            entry = entries.get(session)
            if entry is None:
                entry = entries[session] = {
                    "t": request["t"], "type": "subagent", "agent_id": f"agent_{len(entries) + 1:03d}", "subagent_type": "agent",
                    "duration_ms": 0, "total_tokens": 0, "tool_use_count": 0, "status": "completed", "requests": [], "models": [],
                }  # fmt: skip
                made.append(entry)
            entry["requests"].append(request)
            ended_s = at_s + (request["api_time"] or 0)
            entry["duration_ms"] = max(entry["duration_ms"], round(1000 * (ended_s - entry["t"])))
            entry["total_tokens"] += request["in"] + request["out"]
            entry["tool_use_count"] += row["tool_calls"]
            entry["models"] = sorted({*entry["models"], row["model"]})
        self.found.conversations += 1
        return {
            "id": f"{self._number('session', root):x}", "models": sorted({row["model"] for row in in_order}),
            "block_size": self.found.block_size, "hash_id_scope": "local", "requests": made,
        }  # fmt: skip

    def _where(self) -> str:
        limits = [("<", self.until), (">=", self.since)]
        parts = [f"streams.started_at {sign} {instant(at)}" for sign, at in limits if at is not None]
        parts += [IS_REQUEST, f"({CALLS_MODEL} OR operation = '{SIDE_CALL}')", IS_ANSWERED]
        return " AND ".join([*parts, "stream_id NOT IN (SELECT inner_stream_id FROM hops)"])

    def _rows(self, condition: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Requests by time."""
        most = f"LIMIT {limit:d}" if limit is not None else ""
        return self.query(f"""
            SELECT {_COLUMNS} FROM streams LEFT JOIN (SELECT * EXCLUDE (started_at, session_id) FROM prompt_segments) USING (stream_id)
            WHERE {condition} AND {self._where()} ORDER BY started_at, stream_id {most}""").to_dicts()

    def _placed(
        self, rows: Sequence[dict[str, Any]], prefixes: Prefixes
    ) -> Iterator[tuple[dict[str, Any], Placed | None]]:
        """Each row with its prompt. Sets `input_tokens` if it is unknown, and `input_types`."""
        found = prompts(self.query, [row["stream_id"] for row in rows])
        for row in rows:
            segments = found.get(row["stream_id"])
            self.found.requests += 1
            if row["input_tokens"] is None or row["input_tokens"] > MAX_INPUT_TOKENS:
                self.found.estimated += 1
                size = row["weighted_bytes"] or row["request_bytes"] or 1
                tokens = round(size * self._ratios.get(row["model"], TOKENS_PER_PROMPT_BYTE))
                row["input_tokens"] = min(max(1, tokens), MAX_INPUT_TOKENS)
            row["input_types"] = []
            if not segments:
                self.found.without_prompt += 1
                yield row, None
                continue
            last = segments[-1].message
            row["input_types"] = sorted({one.kind for one in segments if one.message == last})
            whole = with_rest(segments, row["left_out"], row["request_bytes"], row["stream_id"])
            scope = row["stream_id"] if row["incomplete"] else None
            yield row, prefixes.add(whole, row["input_tokens"], scope=scope)

    def _blocks(self, placed: Placed | None, tokens: int) -> list[int]:
        """The ids of the full blocks."""
        found, place = list[int](), 0
        if placed is None:
            return found
        for block in range(tokens // self.found.block_size):
            while placed.ends[place] < (block + 1) * self.found.block_size:
                place += 1
            found.append(self._number("block", placed.keys[place], block))
        return found

    def _number(self, *identity: object) -> int:
        digest = blake2b(repr(identity).encode(), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest) >> (64 - _ID_BITS)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 3)

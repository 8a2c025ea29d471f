"""Rows of `prompt_segments` and `prompt_tools`, and the prompts of sessions that later requests are compared with. No I/O, no clock.

Rules
1. The last prompts of up to `MAX_CONVERSATIONS` conversations are kept per session: its own, and those of side calls and subagents
   that share its id. Requests without a session are grouped by client, program and gateway. A prompt replaces the one that it
   continues.
2. A prompt is compared with the kept one that it shares the most segments with, not counting model and settings. It is stored
   as the difference from it. It is stored whole if there is none, or after `MAX_CHAIN` differences.
3. If the server keeps the earlier messages, the prompt is the messages of the response that it continues, a segment for its output,
   and the messages of the body. If that response is unknown, the prompt is incomplete.
4. Up to `MAX_SEGMENTS` are kept. The least recently used sessions are evicted.
5. A request that no model answered is stored, and later requests are not compared with it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.measures.cache_misses import NOT_COMPARED, CacheMiss, is_same_reason, reason_of
from streamgauge.analytics.measures.prompt_comparison import (
    SETTINGS,
    Prompt,
    equal_first,
    same_first,
    served_of,
)
from streamgauge.analytics.measures.prompt_reuse import Reuse, reuse_of
from streamgauge.analytics.reports.prefixes import Prefixes
from streamgauge.analytics.reports.stored_prompts import MAX_CHAIN, MAX_SIZE, encoded, known_name, moved
from streamgauge.analytics.schema.dimensions import WARM_UP
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.outcomes import ANSWERED
from streamgauge.analytics.schema.prompt_sizes import BYTES_COLUMNS
from streamgauge.analytics.schema.stream_columns import StreamRow
from streamgauge.analytics.schema.tables import PROMPT_SEGMENTS, PROMPT_TOOLS
from streamgauge.ingest.records import Conversation, Segment

log = logging.getLogger(__name__)

MAX_CONVERSATIONS = 4
MAX_SEGMENTS = 200_000
"""About 70 MB."""
MAX_KEPT_BY_SERVER = 20_000
"""Segments of the response that a prompt continues. With more the prompt is incomplete."""
TOOLS_AGAIN_NS = 86_400 * 10**9
"""The tools of a session are stored again after this time, because retention may delete the first request with them."""
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder(list[Segment]).decode
_of_answer = itemgetter(*ANSWERED)
SUM_COLUMNS = tuple(name for name in PROMPT_SEGMENTS.types if name in BYTES_COLUMNS.values())
_SUM_OF = {kind: SUM_COLUMNS.index(name) for kind, name in BYTES_COLUMNS.items()}


class _Made(NamedTuple):
    """The rows that one prompt adds."""

    segments: tuple[Any, ...]
    """Row of `prompt_segments`."""
    tools: list[tuple[Any, ...]]
    """Rows of `prompt_tools`."""
    miss: CacheMiss | None


def _equal_last(one: list[Segment], other: list[Segment], kept_first: int, moved_by: int) -> int:
    """The number of equal segments at the end, beyond those at the start, if the message numbers of `one` are shifted."""
    most = min(len(one), len(other)) - kept_first
    if not moved_by:
        return equal_first(one[: -most - 1 : -1], other[: -most - 1 : -1])
    count = 0
    while count < most and moved([one[-count - 1]], moved_by) == [other[-count - 1]]:
        count += 1
    return count


class SessionPrompts:
    """Keeps the last prompts of sessions. Not thread-safe."""

    def __init__(self) -> None:
        self._sessions: dict[Any, list[Prompt]] = {}
        """Session → the last prompts of its conversations, the one used last at the end."""
        self._segments = 0
        self._prefixes = Prefixes()
        self._batch: dict[str, _Made | None] = {}
        """Rows that the streams of the last call added. These streams may be measured again one by one."""

    def add_to(
        self, rows: Sequence[StreamRow], finished: Sequence[FinishedStream], counters: Counter[str]
    ) -> dict[str, pl.DataFrame]:
        """Set the columns `cache_miss…` of rows of `streams`. Returns the rows of the tables of prompts.

        Counters: `prompts_failed`; `cache_miss_reasons.both`, if the provider and the comparison have a reason, and of them
        `cache_miss_reasons.equal`.
        """
        if any(row["stream_id"] not in self._batch for row in rows):
            self._batch = {row["stream_id"]: None for row in rows}
            pairs = zip(rows, finished, strict=True)
            for row, stream in sorted(pairs, key=lambda pair: pair[1].started_wall_ns):
                try:
                    self._batch[row["stream_id"]] = self._add(row, stream)
                except Exception:  # An exception here must not prevent the measures of the stream.
                    log.exception("a prompt cannot be compared")
                    counters["prompts_failed"] += 1
        found = [(row, made) for row in rows if (made := self._batch[row["stream_id"]]) is not None]
        for row, made in found:
            _add_miss(row, made.miss, counters)
        listed = {
            PROMPT_SEGMENTS: [made.segments for _, made in found],
            PROMPT_TOOLS: [tool for _, made in found for tool in made.tools],
        }
        return {table.name: frame_of_rows(table, values) for table, values in listed.items() if values}

    def restore(self, rows: Iterable[dict[str, Any]]) -> None:
        """Continue after a restart from `Store.recent_prompts`, the newest last."""
        for row in rows:
            key, prompt = (
                _session_of(row),
                _prompt_of(row, row["segments"], row["started_ns"], row["left_out"]),
            )
            prompt.marks, prompt.incomplete = _marks(prompt.segments), row["incomplete"]
            prompt.differences, prompt.sums = row["differences"], [row[name] for name in SUM_COLUMNS]
            _add_tools(prompt, None, key)
            base, shared = _base(prompt, self._sessions.get(key, ()))
            reuse_of(self._prefixes, prompt, row, base, shared)
            self._keep(key, prompt, base, shared)

    def _add(self, row: StreamRow, stream: FinishedStream) -> _Made | None:
        asked = stream.conversation
        if asked is None or asked.anatomy is None:
            return None
        key = _session_of(row)
        before = [one for one in self._sessions.get(key, ()) if one.stream_id != row["stream_id"]]
        prompt = _prompt_of(row, [], stream.started_wall_ns, asked.anatomy.left_out)
        origin, equal = _decode_into(prompt, bytes(asked.anatomy.encoded_segments), before)
        segments = prompt.segments
        if not segments:
            return None
        has_prompt = segments[-1].kind not in SETTINGS or asked.previous_response_id is not None
        if not has_prompt and row["operation"] != WARM_UP:  # Codex continues an empty warm-up by its id
            return None
        prompt.is_unexpected = not before
        continued = _complete(prompt, asked, before)
        if continued is not None:
            origin, prompt.marks = None, _marks(prompt.segments)
            base: Prompt | None = continued
            shared = same_first(continued.segments, prompt.segments)
        else:
            base, shared = _base(prompt, before, origin, equal)
        equal = equal if base is origin else 0
        if base is not None:
            _add_zero(prompt, base)
        miss = reason_of(row, prompt, base, shared)
        is_answered = any(value is not None for value in _of_answer(row))
        reuse = reuse_of(self._prefixes, prompt, row, base, shared)
        stored, tools = _rows(prompt, base, shared, equal, row, key, reuse, counts_calls=is_answered)
        if is_answered:
            self._keep(key, prompt, base, shared)
        return _Made(stored, tools, miss)

    def _keep(self, key: Any, prompt: Prompt, base: Prompt | None, shared: int) -> None:
        replaced = base if base is not None and base.is_continued(shared) else None
        kept = [one for one in self._sessions.pop(key, ()) if one is not replaced]
        removed = [replaced] if replaced is not None else kept[: max(0, len(kept) + 1 - MAX_CONVERSATIONS)]
        self._sessions[key] = [*(one for one in kept if one not in removed), prompt]
        self._segments += _weight([prompt]) - _weight(removed)
        while self._segments > MAX_SEGMENTS and len(self._sessions) > 1:
            self._segments -= _weight(self._sessions.pop(next(iter(self._sessions))))


def _prompt_of(row: Any, segments: list[Segment], started_ns: int, left_out: int) -> Prompt:
    """`row`: of `streams`."""
    return Prompt(
        row["stream_id"], segments, started_ns=started_ns, cached_ns=started_ns + (row["ttft_ns"] or 0), response_id=row["response_id"],
        output_bytes=(row["text_chars"] or 0) + (row["tool_call_chars"] or 0), is_warm_up=row["operation"] == WARM_UP, left_out=left_out,
        served=served_of(row),
    )  # fmt: skip


def _decode_into(prompt: Prompt, encoded_list: bytes, before: Sequence[Prompt]) -> tuple[Prompt | None, int]:
    """Set the segments and marks. The first ones are those of the earlier prompt that begins with the most equal bytes, if there is one.
    Returns it, and their number."""
    count, start = _head_of_list(encoded_list)
    encoded_segments, origin, equal = encoded_list[start:], None, 0
    for one in before:
        shared = bisect_left(
            one.encoded_ends, True, key=lambda end: not encoded_segments.startswith(one.encoded[:end])
        )
        if shared > equal:
            origin, equal = one, shared
    ends = origin.encoded_ends[:equal] if origin is not None else []
    at = ends[-1] if ends else 0
    rest = b"\xdd" + (count - equal).to_bytes(4) + encoded_segments[at:]
    ends += accumulate((memoryview(one).nbytes for one in _split(rest)), initial=ends.pop() if ends else 0)
    segments = _decode(rest)
    prompt.encoded, prompt.encoded_ends = encoded_segments, ends if equal else ends[1:]
    prompt.segments = [*origin.segments[:equal], *segments] if origin is not None else segments
    prompt.marks = [*(origin.marks[:equal] if origin is not None else ()), *_marks(segments)]
    return origin, equal


def _head_of_list(encoded_list: bytes) -> tuple[int, int]:
    """The number of elements of a list in MessagePack, and where they begin. None is an empty list."""
    kind = encoded_list[0]
    size = {0xDC: 2, 0xDD: 4}.get(kind, 0)
    return int.from_bytes(
        encoded_list[1 : 1 + size]
    ) if size else kind & 15 if kind >> 4 == 9 else 0, 1 + size


def _marks(segments: Sequence[Segment]) -> list[str | None]:
    return [one.mark for one in segments]


def _weight(prompts: Sequence[Prompt]) -> int:
    """Segments, and what is kept with them."""
    return sum(len(one.segments) + 10 for one in prompts)


def _session_of(row: Any) -> Any:
    """Columns of the row of `streams`."""
    return row["session_id"] or (row["client_id"], row["client_app"], row["gateway"])


def _add_zero(prompt: Prompt, base: Prompt) -> None:
    """Gemini and vLLM leave out cached tokens that are 0. If an earlier request of the same place read some, they are 0."""
    now, before = prompt.served, base.served
    if now is None or before is None or (now.gateway, now.provider) != (before.gateway, before.provider):
        return
    if now.cached_input_tokens is None and (base.leaves_out_zero or before.cached_input_tokens):
        prompt.served, prompt.leaves_out_zero = now._replace(cached_input_tokens=0), True


def _add_miss(row: StreamRow, miss: CacheMiss | None, counters: Counter[str]) -> None:
    reported = row["cache_miss_reason"]
    if miss is None:
        return
    if row["cache_miss_source"] == "provider" and reported is not None:
        is_same = is_same_reason(reported, miss.reason)
        row["cache_miss_segment"] = miss.segment if is_same else None
        if is_same and row["cache_missed_tokens"] is None:
            row["cache_missed_tokens"] = miss.tokens
        if miss.reason not in NOT_COMPARED:
            counters["cache_miss_reasons.both"] += 1
            counters["cache_miss_reasons.equal"] += is_same
    else:
        row["cache_miss_reason"], row["cache_miss_segment"], row["cache_missed_tokens"] = miss
        row["cache_miss_source"] = "compared"


def _base(
    prompt: Prompt, before: Sequence[Prompt], origin: Prompt | None = None, equal: int = 0
) -> tuple[Prompt | None, int]:
    """The kept prompt that shares the most segments with this one, and the number of equal segments at the start. Of several, the most
    recently used."""
    firsts = [0] * len(before)
    for place in reversed(range(len(before))):
        one = before[place]
        firsts[place] = same_first(one.segments, prompt.segments, equal if one is origin else 0)
        if firsts[place] == len(one.segments):
            return one, firsts[place]
    hashes, most, best, first = prompt.hashes if before else set(), 0, None, 0
    for one, count in zip(reversed(before), reversed(firsts), strict=True):
        if (shared := len(hashes & one.hashes)) > most:
            most, best, first = shared, one, count
    return best, first


def _complete(prompt: Prompt, asked: Conversation, before: Sequence[Prompt]) -> Prompt | None:
    """Add the messages that the server keeps. Returns the prompt that this one continues there."""
    previous = asked.previous_response_id
    if previous is None and asked.has_history:
        return None
    if previous is not None:
        continued = next((one for one in reversed(before) if one.response_id == previous), None)
    else:
        continued = before[-1] if before else None
    if continued is None or len(continued.segments) > MAX_KEPT_BY_SERVER:
        prompt.incomplete = previous is not None or (asked.turns or 0) > 1
        return None
    answered = continued.message_count
    output = blake2b((continued.response_id or continued.stream_id).encode(), digest_size=8).digest()
    head = prompt.segments[: prompt.head_count]
    answer = (
        []
        if continued.is_warm_up
        else [Segment("other", None, answered, continued.output_bytes, output, "assistant")]
    )
    prompt.segments = [
        *head,
        *(one for one in continued.segments if one.message >= 0),
        *answer,
        *moved(prompt.segments[len(head) :], answered + len(answer)),
    ]
    prompt.encoded, prompt.encoded_ends = b"", []
    prompt.incomplete = continued.incomplete or continued.left_out > 0
    return continued


def _rows(
    prompt: Prompt,
    base: Prompt | None,
    shared: int,
    equal: int,
    row: StreamRow,
    key: Any,
    reuse: Reuse,
    *,
    counts_calls: bool,
) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
    """The row of `prompt_segments` and those of `prompt_tools`. Sets what the prompt has in common with its base."""
    segments, removed = prompt.segments, list[Segment]()
    first = last = 0
    prompt.sums = [*base.sums] if base is not None else [0] * len(SUM_COLUMNS)
    if base is not None:
        moved_by = prompt.message_count - base.message_count
        first = min(shared, equal_first(base.segments, segments, equal))
        last = _equal_last(base.segments, segments, first, moved_by)
        removed = base.segments[first : len(base.segments) - last]
        segments[:first] = base.segments[:first]  # prompts of one conversation share memory
        if not moved_by:
            segments[len(segments) - last :] = base.segments[len(base.segments) - last :]
    added = segments[first : len(segments) - last]
    for sign, changed in ((-1, removed), (1, added)):
        for one in changed:
            prompt.sums[_SUM_OF[one.kind]] += sign * one.size
    # By name, because agents change the bytes of earlier calls: Gemini CLI removes their signatures.
    calls = [known_name(one.name) for one in added if one.kind == "tool_call"] if counts_calls else []
    for one in removed:
        if one.kind == "tool_call" and (name := known_name(one.name)) in calls:
            calls.remove(name)
    tools = _add_tools(prompt, base, key)
    if base is not None and (base.differences == MAX_CHAIN or not first + last):
        base, first, last = None, 0, 0
    prompt.differences = base.differences + 1 if base is not None else 0
    return (
        prompt.stream_id, row["started_at"], row["session_id"], base.stream_id if base is not None else None,
        prompt.differences, first, last,
        encoded(segments[first : len(segments) - last]), prompt.left_out, prompt.incomplete, len(segments), prompt.message_count,
        prompt.tool_set, calls, *prompt.sums, *reuse,
    ), tools  # fmt: skip


def _add_tools(prompt: Prompt, base: Prompt | None, key: Any) -> list[tuple[Any, ...]]:
    """Set the tools of a prompt. Returns rows of `prompt_tools` if they are new in the session or were stored long ago."""
    prompt.tools = [one for one in prompt.segments[: prompt.head_count] if one.kind == "tool"]
    prompt.tools_stored_ns = prompt.started_ns
    if not prompt.tools:
        return []
    if base is not None and base.tools == prompt.tools:
        prompt.tool_set = base.tool_set
        if prompt.started_ns - base.tools_stored_ns < TOOLS_AGAIN_NS:
            prompt.tools_stored_ns = base.tools_stored_ns
            return []
    else:
        of_set = (repr(key).encode(), *(one.hash for one in prompt.tools))
        prompt.tool_set = int.from_bytes(blake2b(b"\0".join(of_set), digest_size=8).digest(), signed=True)
    return [
        (prompt.stream_id, prompt.tool_set, position, known_name(one.name), mcp_server(one.name), min(one.size, MAX_SIZE))
        for position, one in enumerate(prompt.tools)
    ]  # fmt: skip


def mcp_server(tool: str | None) -> str | None:
    """The MCP server in the name of a tool: `mcp__SERVER__TOOL`."""
    parts = (tool or "").split("__", 2)
    return known_name(parts[1]) if len(parts) == 3 and parts[0] == "mcp" else None

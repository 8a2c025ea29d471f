"""Whole prompts, read back from the differences in table `prompt_segments`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.dimensions import is_one_of
from streamgauge.ingest import identifiers
from streamgauge.ingest.records import Segment

MAX_CHAIN = 15
"""Maximum number of earlier prompts needed to read one, back to one that is stored whole."""
MAX_SIZE = 2**31 - 1
_IDS = 1_000
"""Ids in one statement."""
_COLUMNS = "stream_id::VARCHAR AS stream_id, base_stream_id::VARCHAR AS base, kept_first, kept_last, message_count, segments"
_decode = msgspec.json.Decoder(list[Segment]).decode
known_name = lru_cache(10_000)(identifiers.name)


def encoded(segments: Sequence[Segment]) -> str:
    """The column `segments`."""
    known = [one if _are_known(one.name, one.role, one.mark) else _with_known_names(one) for one in segments]
    return msgspec.json.encode(known).decode()


def _with_known_names(one: Segment) -> Segment:
    return msgspec.structs.replace(
        one, name=known_name(one.name), role=known_name(one.role), mark=known_name(one.mark)
    )


@lru_cache(10_000)
def _are_known(*names: str | None) -> bool:
    return all(known_name(name) == name for name in names)


def prompts(query: Query, of: Selection | Collection[str]) -> dict[str, list[Segment]]:
    """Stream id → the segments of its prompt, in the order in which the model reads them.

    `of`: a selection of streams, or their ids. A stream without a known prompt, or whose prompt repeats one that retention has
    deleted, is missing.
    """
    if isinstance(of, Selection):
        chosen = f"stream_id IN (SELECT stream_id FROM streams WHERE {of.where()})"
        rows = _rows(query, [f"{of.within()} AND {chosen}"])
    else:
        rows = _rows(query, _with_ids(of))
    asked = list(rows)
    for _ in range(MAX_CHAIN):
        missing = {row["base"] for row in rows.values()} - rows.keys() - {None}
        if not missing:
            break
        rows |= _rows(query, _with_ids(missing))
    read: dict[str, list[Segment] | None] = {}
    found = ((stream_id, _read(stream_id, rows, read)) for stream_id in asked)
    return {stream_id: segments for stream_id, segments in found if segments is not None}


def _with_ids(stream_ids: Collection[str]) -> list[str]:
    ids = sorted(stream_ids)
    return [is_one_of("stream_id", ids[first : first + _IDS]) for first in range(0, len(ids), _IDS)]


def _rows(query: Query, conditions: Collection[str]) -> dict[str, dict[str, Any]]:
    return {
        row["stream_id"]: row
        for condition in conditions
        for row in query(f"SELECT {_COLUMNS} FROM prompt_segments WHERE {condition}").iter_rows(named=True)
    }


def _read(
    stream_id: str, rows: Mapping[str, dict[str, Any]], read: dict[str, list[Segment] | None]
) -> list[Segment] | None:
    chain = [stream_id]
    while chain[-1] not in read and chain[-1] in rows and (base := rows[chain[-1]]["base"]) is not None:
        if len(chain) > MAX_CHAIN + 1:
            return None
        chain.append(base)
    for one in reversed(chain):
        if one not in read:
            row = rows.get(one)
            read[one] = None if row is None else _whole(row, rows.get(row["base"]), read.get(row["base"]))
    return read[stream_id]


def _whole(
    row: Mapping[str, Any], base: Mapping[str, Any] | None, kept: list[Segment] | None
) -> list[Segment] | None:
    between = _decode(row["segments"])
    if row["base"] is None:
        return between
    if base is None or kept is None:
        return None
    moved_by = row["message_count"] - base["message_count"]
    last = kept[len(kept) - row["kept_last"] :]
    return kept[: row["kept_first"]] + between + moved(last, moved_by)


def moved(segments: list[Segment], by: int) -> list[Segment]:
    """The segments with other message numbers."""
    if not by:
        return segments
    return [
        msgspec.structs.replace(one, message=one.message + by) if one.message >= 0 else one
        for one in segments
    ]

"""Read streams that may belong together from the store. Raises duckdb.Error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import polars as pl

from streamgauge.analytics.hops.candidate import SQL_COLUMNS, HopCandidate, candidate
from streamgauge.analytics.hops.clock_offset import WALL_ERROR_NS
from streamgauge.analytics.hops.comparison import EVENT_COLUMNS, STREAM_COLUMNS, Stall, Stream
from streamgauge.analytics.hops.identical_output import Output
from streamgauge.analytics.hops.matching import MAX_GROUP
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import EVENTS
from streamgauge.ingest.generated_ids import smallest_uuid7

_COLUMNS = ", ".join(
    dict.fromkeys((*STREAM_COLUMNS, "outcome", "request_model", "response_model", "error_type"))
)
_USABLE = "clock_ns IS NOT NULL AND gateway IS NOT NULL"
_AMONG_IDS = "stream_id IN (SELECT unnest($ids::UUID[]))"
_KEYS: dict[str, Callable[[HopCandidate], str | None]] = {
    "trace_id": lambda s: s.trace_id,
    "response_id": lambda s: s.response_id,
    "request_id": lambda s: s.request_id,
    "coalesce(output_fingerprint, tool_fingerprint)": lambda s: s.fingerprint,
}
"""SQL expression of each id that two streams of one request may share → the same of a `HopCandidate`."""


def _is_shared(number: int, key: str) -> str:
    """Whether a stream shares this id. Of too large groups a part is enough, and those that are looked up or linked by a span."""
    shared = (
        f"is_{number} AND (is_looked_up OR is_linked OR row_number() OVER same_{number} <= {MAX_GROUP + 1})"
    )
    if key == "trace_id":  # a parent span may be of the same side: a gateway that calls itself
        return shared
    return f"{shared} AND min((tap, gateway)) OVER same_{number} <> max((tap, gateway)) OVER same_{number}"


_RELATED = f"""
    SELECT {", ".join(SQL_COLUMNS)} FROM (
        FROM streams
        SELECT *, {", ".join(f"{key} IN (SELECT unnest($keys_{n}::VARCHAR[])) AS is_{n}" for n, key in enumerate(_KEYS))},
            {_AMONG_IDS} AS is_looked_up,
            coalesce(trace_id IN (SELECT unnest($keys_0::VARCHAR[])) AND (parent_span_id IN (SELECT unnest($spans::VARCHAR[]))
                OR span_id IN (SELECT unnest($parents::VARCHAR[]))), false) AS is_linked
        WHERE stream_id >= $since::UUID AND {_USABLE})
    WHERE {" OR ".join(f"is_{n}" for n in range(len(_KEYS)))}
    WINDOW {", ".join(f"same_{n} AS (PARTITION BY {key})" for n, key in enumerate(_KEYS))}
    QUALIFY {" OR ".join(f"({_is_shared(n, key)})" for n, key in enumerate(_KEYS))}
    LIMIT $limit"""
_CONTENT_KINDS = ("text", "reasoning", "tool_call")


class StoredStreams:
    """Uses one connection of its own."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

    def sides(self, since_s: float) -> set[tuple[str, str]]:
        """Taps and upstreams of the streams that started since then (Unix time)."""
        return set(
            self._cursor.execute(
                f"SELECT DISTINCT tap, gateway FROM streams WHERE stream_id >= ?::UUID AND {_USABLE}",
                [smallest_uuid7(since_s)],
            ).fetchall()
        )

    def unmatched(self, since_s: float, limit: int) -> list[HopCandidate]:
        """The newest streams since then without hops."""
        rows = self._rows(
            f"SELECT {', '.join(SQL_COLUMNS)} FROM streams AS s WHERE stream_id >= $since::UUID AND {_USABLE} "
            "AND NOT EXISTS (FROM hops WHERE outer_stream_id = s.stream_id) "
            "ORDER BY s.stream_id DESC LIMIT $limit",
            {"since": smallest_uuid7(since_s), "limit": limit},
        )
        return [candidate(row) for row in rows]

    def related(self, outers: Sequence[HopCandidate], limit: int) -> list[HopCandidate] | None:
        """The streams that share the trace with one of these, or another id or the output at several sides: these included.

        Of each id at most `MAX_GROUP` others and one more, except for those that a span links. None: more than `limit` in all.
        """
        # Stream ids contain their time, so a lower bound lets the store skip files. It allows for wrong wall clocks.
        since_ns = min(outer.wall_ns for outer in outers) - WALL_ERROR_NS
        keys = {
            f"keys_{n}": list({value for s in outers if (value := key(s)) is not None})
            for n, key in enumerate(_KEYS.values())
        }
        ids = [outer.stream_id for outer in outers]
        spans, parents = [s.span_id for s in outers], [s.parent_span_id for s in outers]
        values = {
            "since": smallest_uuid7(since_ns / 1e9),
            "ids": ids,
            "spans": spans,
            "parents": parents,
            "limit": limit + 1,
        }
        found = [candidate(row) for row in self._rows(_RELATED, values | keys)]
        return found if len(found) <= limit else None

    def matched(self, streams: Sequence[HopCandidate]) -> list[tuple[str, str, str]]:
        """(outer stream, inner stream, matched_by) of the stored hops of these streams."""
        return self._cursor.execute(
            "WITH ids AS (SELECT unnest($ids::UUID[])) "
            "SELECT outer_stream_id::VARCHAR, inner_stream_id::VARCHAR, matched_by FROM hops "
            "WHERE outer_started_at >= make_timestamptz($since_us) "
            "AND (outer_stream_id IN (FROM ids) OR inner_stream_id IN (FROM ids))",
            {
                "ids": [s.stream_id for s in streams],
                "since_us": (min(s.wall_ns for s in streams) - WALL_ERROR_NS) // 1000,
            },
        ).fetchall()

    def streams(self, stream_ids: Sequence[str]) -> dict[str, Stream]:
        """These streams with their events and stalls."""
        if not stream_ids:
            return {}
        events = self._events(stream_ids)
        stalls: dict[str, list[Stall]] = {}
        for stream_id, *stall in self._cursor.execute(
            f"SELECT stream_id::VARCHAR, seq, at_ns, gap_ns, cause FROM output_stalls WHERE {_AMONG_IDS} ORDER BY ALL",
            {"ids": stream_ids},
        ).fetchall():
            stalls.setdefault(stream_id, []).append(Stall(*stall))
        empty = frame_of_rows(EVENTS, [], EVENT_COLUMNS)
        rows = self._rows(
            f"SELECT stream_id::VARCHAR AS stream_id, {_COLUMNS} FROM streams WHERE {_AMONG_IDS}",
            {"ids": stream_ids},
        )
        return {
            stream_id: Stream(row, events.get(stream_id, empty), stalls.get(stream_id, ()))
            for row in rows
            if (stream_id := row["stream_id"])
        }

    def output_times(self, stream_ids: Sequence[str]) -> dict[str, Output]:
        """When the text of streams arrived; without text the reasoning, else the arguments of tool calls."""
        found = {}
        for stream_id, events in self._events(stream_ids).items():
            for kind in _CONTENT_KINDS:
                output = events.filter(pl.col("kind") == kind, pl.col("chars") > 0)
                if output.height:
                    found[stream_id] = Output(
                        output["at_ns"].to_list(), output["chars"].cast(pl.Int64).cum_sum().to_list()
                    )
                    break
        return found

    def _events(self, stream_ids: Sequence[str]) -> dict[str, pl.DataFrame]:
        rows = self._cursor.execute(
            f"SELECT stream_id::VARCHAR AS stream_id, {', '.join(EVENT_COLUMNS)} FROM events "
            f"WHERE {_AMONG_IDS} ORDER BY stream_id, seq",
            {"ids": stream_ids},
        ).pl()
        return {
            str(stream_id): events
            for (stream_id,), events in rows.partition_by(
                "stream_id", as_dict=True, include_key=False
            ).items()
        }

    def _rows(self, sql: str, values: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
        return self._cursor.execute(sql, dict(values)).pl().iter_rows(named=True)

    def close(self) -> None:
        self._cursor.close()

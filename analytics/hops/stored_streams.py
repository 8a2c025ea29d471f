"""Read streams that may belong together from the store. Raises duckdb.Error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import polars as pl

from streamgauge.analytics.hops.candidate import SQL_COLUMNS, WALL_ERROR_NS, Candidate, candidate
from streamgauge.analytics.hops.comparison import EVENT_COLUMNS, STREAM_COLUMNS, Stall, Stream
from streamgauge.analytics.hops.identical_output import Output
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.tables import EVENTS
from streamgauge.ingest.generated_ids import smallest_uuid7

_COLUMNS = ", ".join(
    dict.fromkeys((*SQL_COLUMNS, *STREAM_COLUMNS, "request_model", "response_model", "error_type"))
)
_USABLE = "clock_ns IS NOT NULL AND gateway IS NOT NULL"
_KEYS: dict[str, Callable[[Candidate], str | None]] = {
    "trace_id": lambda s: s.trace_id,
    "response_id": lambda s: s.response_id,
    "request_id": lambda s: s.request_id,
    "coalesce(output_fingerprint, tool_fingerprint)": lambda s: s.fingerprint,
}
"""SQL expression of each id that two streams of one request may share → the same of a `Candidate`."""
_AMONG_IDS = "stream_id BETWEEN ?::UUID AND ?::UUID AND stream_id IN (FROM ids)"
"""The range lets DuckLake skip files."""
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

    def unmatched(self, since_s: float, limit: int) -> list[Candidate]:
        """The newest streams since then without hops."""
        rows = self._rows(
            f"SELECT {', '.join(SQL_COLUMNS)} FROM streams AS s WHERE stream_id >= $since::UUID AND {_USABLE} "
            "AND NOT EXISTS (FROM hops WHERE outer_stream_id = s.stream_id) "
            "ORDER BY s.stream_id DESC LIMIT $limit",
            {"since": smallest_uuid7(since_s), "limit": limit},
        )
        return [candidate(row) for row in rows]

    def related(self, outers: Sequence[Candidate], limit: int) -> list[Mapping[str, Any]] | None:
        """Rows of all streams that share an id or the output with one of these. None: more than `limit`."""
        # Stream ids contain their time, so a lower bound lets the store skip files. It allows for wrong wall clocks.
        since_ns = min(outer.wall_ns for outer in outers) - WALL_ERROR_NS
        conditions = []
        for number, (expression, key) in enumerate(_KEYS.items()):
            values = pl.Series("key", list({v for s in outers if (v := key(s)) is not None}), pl.String)
            self._cursor.register(f"keys_{number}", pl.DataFrame({"key": values}))
            conditions.append(f"{expression} IN (SELECT key FROM keys_{number})")
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM streams WHERE stream_id >= $since::UUID AND {_USABLE} AND ({' OR '.join(conditions)}) "
            "LIMIT $limit",
            {"since": smallest_uuid7(since_ns / 1e9), "limit": limit + 1},
        )
        found = list(rows)
        return found if len(found) <= limit else None

    def matched(self, streams: Sequence[Candidate]) -> list[tuple[str, str, str]]:
        """(outer stream, inner stream, matched_by) of the stored hops of these streams."""
        self._register_ids(s.stream_id for s in streams)
        since_us = (min(s.wall_ns for s in streams) - WALL_ERROR_NS) // 1000
        return self._cursor.execute(
            "SELECT outer_stream_id::VARCHAR, inner_stream_id::VARCHAR, matched_by FROM hops "
            "WHERE outer_started_at >= make_timestamptz(?) "
            "AND (outer_stream_id IN (FROM ids) OR inner_stream_id IN (FROM ids))",
            [since_us],
        ).fetchall()

    def streams(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Stream]:
        """The rows, by stream id, with their events and stalls."""
        if not rows:
            return {}
        events = self._events(rows)
        stalls: dict[str, list[Stall]] = {}
        for stream_id, *stall in self._cursor.execute(
            "SELECT stream_id::VARCHAR, seq, at_ns, gap_ns, cause FROM output_stalls "
            f"WHERE {_AMONG_IDS} ORDER BY stream_id, seq",
            [min(rows), max(rows)],
        ).fetchall():
            stalls.setdefault(stream_id, []).append(Stall(*stall))
        empty = frame_of_rows(EVENTS, [], EVENT_COLUMNS)
        return {
            stream_id: Stream(row, events.get(stream_id, empty), stalls.get(stream_id, ()))
            for stream_id, row in rows.items()
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

    def _events(self, stream_ids: Collection[str]) -> dict[str, pl.DataFrame]:
        self._register_ids(stream_ids)
        rows = self._cursor.execute(
            f"SELECT stream_id::VARCHAR AS stream_id, {', '.join(EVENT_COLUMNS)} FROM events "
            f"WHERE {_AMONG_IDS} ORDER BY stream_id, seq",
            [min(stream_ids), max(stream_ids)],
        ).pl()
        return {
            str(stream_id): events
            for (stream_id,), events in rows.partition_by(
                "stream_id", as_dict=True, include_key=False
            ).items()
        }

    def _register_ids(self, stream_ids: Iterable[str]) -> None:
        self._cursor.register("ids_text", pl.DataFrame({"id": pl.Series(list(stream_ids), dtype=pl.String)}))
        self._cursor.execute("CREATE OR REPLACE TEMP TABLE ids AS SELECT id::UUID AS id FROM ids_text")

    def _rows(self, sql: str, values: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
        return self._cursor.execute(sql, dict(values)).pl().iter_rows(named=True)

    def close(self) -> None:
        self._cursor.close()

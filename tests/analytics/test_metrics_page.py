"""The SQL of docs/explanation/measurement.md and docs/how-to/compare-tools.md runs and gives each tool's numbers."""

import re
from pathlib import Path
from typing import Any, get_args

import duckdb
import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.outcome import Outcome, Phase
from streamgauge.analytics.query.statement_filter import StatementFilter
from streamgauge.ingest.records import AnyRecord, Frames, Request
from tests.analytics.stores import plain_tables
from tests.analytics.stream_records import chunk, closed, finish_chunk, head, opened, stream_id

ROOT = Path(__file__).parents[2]
PAGE = "".join(
    (ROOT / "docs" / page).read_text() for page in ("explanation/measurement.md", "how-to/compare-tools.md")
)
BLOCKS = dict(re.findall(r"```sql\n-- name: (\w+)\n(.*?)```", PAGE, re.DOTALL))
A, B, C = stream_id(1), stream_id(2), stream_id(3)
MS = 1_000_000


def reasoning(text: str) -> bytes:
    return chunk(choices=[{"index": 0, "delta": {"reasoning_content": text}}])


ROLE = chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
USAGE = chunk(choices=[], usage={"prompt_tokens": 60, "completion_tokens": 5, "total_tokens": 65})
FILTER = chunk(choices=[], prompt_filter_results=[])
DONE = b"data: [DONE]\n\n"

STREAMS: dict[str, list[tuple[int, bytes]]] = {
    # one read per pair: (milliseconds, bytes)
    A: [
        (5, FILTER),
        (10, ROLE),
        (30, reasoning("hm")),
        (60, chunk("a")),
        (80, chunk("b") + chunk("c")),
        (680, chunk("d")),
        (690, finish_chunk()),
        (700, USAGE),
        (710, DONE),
    ],
    B: [
        (20, ROLE),
        (40, chunk("x")),
        (50, chunk("y")),
        (51, chunk("zzz")),
        (90, finish_chunk() + USAGE + DONE),
    ],
}


def records(stream: str, reads: list[tuple[int, bytes]]) -> list[AnyRecord]:
    frames = [(ms * MS, data) for ms, data in reads]
    return [
        opened(stream, client_start_ns=-2 * MS),
        Request(stream, 1, b"{}", False),
        Frames(stream, 2, frames, head()),
        closed(stream, 3, end_ns=frames[-1][0], request_sent_ns=1 * MS),
    ]


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    assembler = Assembler()
    for stream, reads in STREAMS.items():
        assembler.feed("w0", 0, records(stream, reads))
    assembler.feed("w0", 1, [opened(C), closed(C, 1, cause="connect_error", detail="gaierror")])
    con = plain_tables()
    for table, rows in measure(assembler.take_finished()).items():
        con.register("appended", rows)
        con.execute(f"INSERT INTO {table} BY NAME FROM appended")
        con.unregister("appended")
    return con


def rows(con: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    return con.execute(BLOCKS[name]).pl().to_dicts()


def by_stream(con: duckdb.DuckDBPyConnection, name: str) -> dict[str, tuple[Any, ...]]:
    cursor = con.execute(f"SELECT * FROM ({BLOCKS[name]})")
    names = [c[0] for c in cursor.description or []]
    i = names.index("stream_id")
    return {str(row[i]): tuple(v for j, v in enumerate(row) if j != i) for row in cursor.fetchall()}


def ms(*values: float | None) -> Any:
    return tuple(v if v is None else pytest.approx(v * MS) for v in values)


def test_page_has_twelve_named_sql_blocks() -> None:
    assert PAGE.count("```sql") == len(BLOCKS) == 12


@pytest.mark.parametrize("name", BLOCKS)
def test_sql_is_allowed_and_runs(con: duckdb.DuckDBPyConnection, name: str) -> None:
    assert rows(con, name)
    row = con.execute("SELECT current_database()").fetchone()
    assert row is not None
    StatementFilter(con.cursor(), catalog=row[0]).check(BLOCKS[name])


def test_vllm_counts_the_role_chunk(con: duckdb.DuckDBPyConnection) -> None:
    # A: choices at 10 30 60 80 80 680 690, last chunk but [DONE] at 700. B: 20 40 50 51 90; usage in the same read.
    assert by_stream(con, "vllm") == {
        A: ms(10, (690 - 10) / 6, (700 - 10) / 4),
        B: ms(20, (90 - 20) / 4, (90 - 20) / 4),
    }


def test_sglang_counts_content_only(con: duckdb.DuckDBPyConnection) -> None:
    assert by_stream(con, "sglang") == {
        A: ms(60, (680 - 60) / 3, (710 - 60) / 4),
        B: ms(40, (51 - 40) / 2, (90 - 40) / 4),
    }


def test_aiperf_counts_any_output(con: duckdb.DuckDBPyConnection) -> None:
    assert by_stream(con, "aiperf") == {A: ms(30, 60, 650 / 4), B: ms(40, 40, 11 / 4)}


def test_guidellm_includes_ttft_in_tpot(con: duckdb.DuckDBPyConnection) -> None:
    assert by_stream(con, "guidellm") == {A: ms(680 / 5, 650 / 4), B: ms(51 / 5, 11 / 4)}


def test_llmperf_pools_ttft_into_itl(con: duckdb.DuckDBPyConnection) -> None:
    # A's steps: 60, 20, 0, 600. B's: 40, 10, 1.
    assert by_stream(con, "llmperf") == {A: ms(680 / 5, 40), B: ms(51 / 5, 10)}


def test_by_read_gives_the_median_gap_between_reads(con: duckdb.DuckDBPyConnection) -> None:
    assert by_stream(con, "by_read") == {A: ms(30), B: ms(5.5)}


def test_pooled_gaps_gives_quantiles_over_all_streams(con: duckdb.DuckDBPyConnection) -> None:
    # 0, 1, 10, 20, 30, 600
    (row,) = rows(con, "pooled_gaps")
    assert tuple(row["icl_ns"]) == ms(15, 30 + 570 * 0.75, 30 + 570 * 0.95)


def test_other_t0_shifts_the_times(con: duckdb.DuckDBPyConnection) -> None:
    assert by_stream(con, "other_t0") == {A: (32 * MS, 29 * MS), B: (42 * MS, 39 * MS)}


def test_error_rate_goodput_and_prefill(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(con, "error_rate") == [
        {"gateway": "gw", "error_rate": pytest.approx(1 / 3), "client_aborts": 0, "tap_lost": 0}
    ]
    assert [row["goodput_per_s"] for row in rows(con, "goodput")] == [
        pytest.approx(1 / 60)
    ]  # A's itl is 162.5 ms
    assert by_stream(con, "prefill") == {A: (pytest.approx(60 / 0.030),), B: (pytest.approx(60 / 0.040),)}


def test_columns_of_streams_equal_those_computed_from_events(con: duckdb.DuckDBPyConnection) -> None:
    names = "stream_id, ttft_ns, ttfo_ns, last_output_ns, icl_p50_ns, icl_max_ns, output_event_count, stall_count, burstiness"
    stored = con.execute(
        f"SELECT {names} FROM streams WHERE ttft_ns IS NOT NULL ORDER BY stream_id"
    ).fetchall()
    computed = con.execute(f"SELECT {names} FROM ({BLOCKS['from_events']}) ORDER BY stream_id").fetchall()
    assert [tuple(map(_approx, row)) for row in computed] == stored
    assert [row[-2] for row in stored] == [1, 0]


def _approx(value: Any) -> Any:
    return pytest.approx(value) if isinstance(value, float) else value


def test_page_names_every_outcome_phase_and_measure(con: duckdb.DuckDBPyConnection) -> None:
    for word in (*get_args(Outcome), *get_args(Phase)):
        assert f"`{word}`" in PAGE, word
    columns = con.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'streams'").fetchall()
    measures = [c for (c,) in columns if c.endswith("_ns") or c.startswith(("tps", "burst", "stall"))]
    unnamed = {"headers_ns", "client_drain_ns"}  # transport times, defined only in their column comments
    assert [m for m in measures if f"`{m}`" not in PAGE and m not in unnamed] == []


def test_output_kinds_on_the_page_match_the_code() -> None:
    from streamgauge.analytics.dialects.events import OUTPUT_KINDS

    for listed in re.findall(r"kind IN \(([^)]*)\)", PAGE):
        assert set(re.findall(r"'(\w+)'", listed)) == OUTPUT_KINDS

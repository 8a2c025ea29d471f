"""Names instead of client ids in results, and queries that select the values of such results."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import polars as pl

from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.reports.selection import CLIENT_NAMES, Selection, with_client_names
from tests.dashboard.generated_store import empty_tables, insert

A, B = "a1" * 16, "b2" * 16
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_only_columns_that_are_shown_have_names() -> None:
    rows = pl.DataFrame(
        {"name": [A, "m", None], "client": [B, A, "x"], "client_id": [A, B, None], "n": [1, 2, 3]}
    )
    named = with_client_names(rows, {A: "billing"})
    assert named.to_dict(as_series=False) == rows.to_dict(as_series=False) | {
        "name": ["billing", "m", None], "client": [B, "billing", "x"],
    }  # fmt: skip
    assert with_client_names(rows, {}) is rows


def test_diagnosis_over_named_results_finds_the_same() -> None:
    with empty_tables() as connection:
        connection.execute(f"INSERT INTO clients VALUES ('{A}', 'o''brien')")
        insert(connection, "streams", [
            {"stream_id": UUID(int=i), "started_at": NOON - timedelta(seconds=i), "end_ns": 10**9, "request_model": "m",
             "gateway": "g", "client_id": A if i % 3 == 0 else B, "outcome": "http_error" if i % 3 == 0 and i < 300 else "ok",
             "http_status": 429 if i % 3 == 0 and i < 300 else 200}
            for i in range(1, 1800)
        ])  # fmt: skip

        def query(sql: str) -> pl.DataFrame:
            found = connection.execute(sql).pl()
            uuids = [name for name in found.columns if name.endswith("stream_id")]
            return found.with_columns(pl.col(uuids).cast(pl.String))

        names = dict(query(CLIENT_NAMES).iter_rows())
        scope = Selection(since=NOON - timedelta(minutes=15), until=NOON)
        plain = diagnose(query, scope)
        named = diagnose(lambda sql: with_client_names(query(sql), names), scope)
    [cause] = plain.causes
    assert cause.where == {"client": A}
    assert cause.onset is not None
    assert abs(cause.onset - (NOON - timedelta(seconds=300))) < timedelta(seconds=10)
    assert named == replace(plain, causes=(replace(cause, where={"client": "o'brien"}),))

"""Blame of one stream: the parts add up, the gateway's part comes from its hops, and the page shows both."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from streamgauge.analytics.reports import blame, formatting
from tests.analytics.stores import plain_tables
from tests.dashboard.app_test import links, open_page, page_text, table
from tests.dashboard.generated_store import insert
from tests.tables import tables

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROW: dict[str, Any] = {
    "ttft_ns": 500,
    "request_sent_ns": 10,
    "waited_upstream_ns": 900,
    "waited_client_ns": 70,
    "tap_delay_ns": 30,
}
UNKNOWN = dict.fromkeys(("waited_upstream_ns", "waited_client_ns", "tap_delay_ns"))


def blamed(*streams: tuple[dict[str, Any], list[dict[str, Any]]]) -> list[blame.Blame]:
    """The parts of streams with their attempts."""
    with plain_tables() as connection:
        for number, (row, attempts) in enumerate(streams):
            own = {"stream_id": UUID(int=number), "started_at": NOON, "outcome": "ok"}
            insert(connection, "streams", [own | row])
            hop = {"outer_stream_id": UUID(int=number), "outer_started_at": NOON, "inner_outcome": "ok"}
            hop["matched_by"] = "trace"
            insert(connection, "hops", [
                hop | {"inner_stream_id": UUID(int=1000 + 10 * number + n), "attempt": n} | attempt
                for n, attempt in enumerate(attempts, 1)
            ])  # fmt: skip
        ids = [UUID(int=number) for number in range(len(streams))]
        found = blame.of_streams(lambda sql: connection.execute(sql).pl(), ids)
        return [found[str(stream_id)] for stream_id in ids]


def test_stream_without_hops_has_no_gateway() -> None:
    [found] = blamed((ROW, []))
    assert found == blame.Blame({}, {"upstream": 900, "tap": 30, "client": 70}, {})


def test_time_from_the_end_to_the_delivery_is_the_clients() -> None:
    late, lost = ROW | {"end_ns": 1000, "delivered_ns": 4000}, ROW | {"end_ns": 1000, "delivered_ns": None}
    assert [found.whole["client"] for found in blamed((late, []), (lost, []))] == [3070, 70]


def test_stream_of_an_old_record_has_no_blame() -> None:
    [found] = blamed((ROW | UNKNOWN, []))
    assert found == blame.Blame({}, {}, {})


def test_gateway_has_the_time_before_the_first_attempt_and_the_tail() -> None:
    attempts = [
        {"gateway_before_ns": 25, "lost_ns": 100},
        {"gateway_before_ns": 125, "added_ttft_ns": 160, "added_tail_ns": 40},
    ]
    [found] = blamed((ROW, attempts))
    assert found.whole == {"upstream": 845, "gateway": 55, "tap": 30, "client": 70}
    assert found.first_token == {"upstream": 440, "gateway": 60}


def test_parts_add_up_whatever_the_clocks_say() -> None:
    rng = random.Random(3)
    rows = [{name: rng.randrange(1000) for name in ROW} for _ in range(100)]
    attempts = [
        {"gateway_before_ns": rng.randrange(-50, 2000), "added_ttft_ns": rng.randrange(-500, 2000),
         "added_tail_ns": rng.randrange(-500, 2000)}
        for _ in rows
    ]  # fmt: skip
    for row, found in zip(
        rows, blamed(*((r, [a]) for r, a in zip(rows, attempts, strict=True))), strict=True
    ):
        assert sum(found.whole.values()) == sum(row[name] for name in UNKNOWN)
        assert sum(found.first_token.values()) == row["ttft_ns"]
        assert min(*found.whole.values(), *found.first_token.values()) >= 0


def test_page_of_a_stream_links_both_sides_of_the_gateway(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hop,) = (
        tables(streams_data)
        .query("""
        SELECT hops.*, tap_delay_ns, greatest(end_ns, delivered_ns) AS until_ns, (SELECT count(*) FROM hop_changes AS c
            WHERE c.outer_stream_id = hops.outer_stream_id) AS changes
        FROM hops JOIN streams ON stream_id = outer_stream_id WHERE attempt = 2
        ORDER BY changes DESC, outer_stream_id LIMIT 1""")
        .to_dicts()
    )
    for shown, lines in ((hop["inner_stream_id"], 1), (hop["outer_stream_id"], 2)):
        app = open_page(streams_data, monkeypatch, "stream", id=shown)
        assert not app.exception
        attempts = links(app, "Attempts")
        assert len(attempts) == lines
        outer, inner = (parse_qs(urlsplit(link).query)["id"] for link in attempts[-1])
        assert (outer, inner) == ([str(hop["outer_stream_id"])], [str(hop["inner_stream_id"])])
        assert f"added {formatting.duration(hop['added_ttft_ns'])} to the TTFT" in page_text(app)
    bars = "\n".join(str(html.proto.body) for html in app.get("html"))
    assert f"tap {formatting.duration(hop['tap_delay_ns'])}" in bars
    assert f"To the delivery of the response: {formatting.duration(hop['until_ns'])}" in page_text(app)
    assert len(table(app, "Changes by the gateway")) == hop["changes"] > 0


@pytest.mark.parametrize("cause", ["upstream", "gateway", "tap", "client"])
def test_stalls_are_drawn_with_their_stored_cause(
    cause: str, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tables(streams_data).query(f"SELECT stream_id FROM stalls WHERE cause = '{cause}' LIMIT 1")
    if found.is_empty():
        pytest.skip("the generated store has no such stall")
    app = open_page(streams_data, monkeypatch, "stream", id=found["stream_id"][0])
    assert not app.exception
    assert any(f"stall: {cause}" in str(html.proto.body) for html in app.get("html"))

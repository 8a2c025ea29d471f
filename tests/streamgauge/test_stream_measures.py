"""`streamgauge.measure`: forms of events, equality with the stored measures, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamgauge as sg
from tests.analytics.log_entries import MS, chunk, ending

NAMES = (
    "event_count", "output_event_count", "ttfc_ns", "ttft_ns", "ttfo_ns", "ttst_ns", "last_output_ns", "output_tokens", "itl_ns",
    "tps_user", "tps_e2e", "icl_p50_ns", "icl_p95_ns", "icl_p99_ns", "icl_max_ns", "stall_count", "stalled_ns", "burstiness",
)  # fmt: skip


@pytest.fixture(scope="module")
def con(three_streams: Path) -> Iterator[sg.Connection]:
    with sg.connect(three_streams) as connection:
        yield connection


@pytest.fixture(scope="module")
def stored(con: sg.Connection) -> dict[str, Any]:
    """The row of one stream."""
    return con.sql("FROM streams ORDER BY stream_id LIMIT 1").pl().to_dicts()[0]


def events_of(con: sg.Connection, stored: dict[str, Any]) -> Any:
    return con.sql(f"FROM events WHERE stream_id = '{stored['stream_id']}' ORDER BY seq DESC")


@pytest.mark.parametrize(
    "form", ["relation", "polars", "pandas", "arrow", "mappings"],
)  # fmt: skip
def test_rows_of_table_events_have_the_stored_measures(
    con: sg.Connection, stored: dict[str, Any], form: str
) -> None:
    relation = events_of(con, stored)
    events = {
        "relation": lambda: relation,
        "polars": relation.pl,
        "pandas": relation.df,
        "arrow": relation.to_arrow_table,
        "mappings": lambda: relation.pl().to_dicts(),
    }[form]()
    found = sg.measure(events, output_tokens=stored["output_tokens"])
    assert {name: getattr(found, name) for name in NAMES} == {name: stored[name] for name in NAMES}


def test_timed_reads_have_the_stored_measures(stored: dict[str, Any]) -> None:
    reads = [(200 * MS + i * 20 * MS, chunk(f"word{i} ")) for i in range(10)]
    response = sg.read([*reads, (400 * MS, ending())], path="/v1/chat/completions")
    found = response.measures
    assert found is not None
    assert {name: getattr(found, name) for name in NAMES} == {name: stored[name] for name in NAMES}
    assert sg.measure(response.events, output_tokens=10) == found


def test_tokens_that_the_events_list_give_the_rates() -> None:
    events = [sg.Event(at_ns=(1 + i) * 100, kind="text", tokens=2) for i in range(3)]
    found = sg.measure(events)
    assert (found.output_tokens, found.itl_ns) == (6, 40.0)
    assert sg.measure([sg.Event(at_ns=1, kind="text")]).output_tokens is None


def test_numbers_may_be_those_of_numpy() -> None:
    events = [{"at_ns": np.int64(100 * i), "kind": "text"} for i in (1, 2, 3)]
    assert sg.measure(events, output_tokens=np.int64(5)).itl_ns == 50.0


def test_no_events_have_no_measures() -> None:
    found = sg.measure([])
    assert (found.event_count, found.ttft_ns, found.icl_p50_ns) == (0, None, None)


def test_events_that_cannot_be_measured(con: sg.Connection, tmp_path: Path) -> None:
    body = tmp_path / "x.sse"
    body.write_bytes(chunk("a") + ending())
    for events, reason in (
        (sg.read(body).events, "no times"),
        (con.sql("FROM events"), "belong to 3 streams"),
        (con.sql("FROM events").pl().to_dicts(), "belong to 3 streams"),
        (con.sql("SELECT seq FROM events"), "no at_ns and no kind"),
        ([{"at_ns": 1}], "no kind"),
        ([1, 2], "neither"),
        (3, "cannot measure int"),
    ):
        with pytest.raises(sg.UnmeasurableEvents, match=reason):
            sg.measure(events)

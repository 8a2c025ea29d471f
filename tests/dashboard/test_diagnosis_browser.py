"""The first screen names the place and the onset of each kind of incident. One store, one dashboard, one range per incident."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from bench.diagnosis import drawn
from bench.diagnosis.incidents import INCIDENTS
from bench.diagnosis.traffic import simulate
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.tables import STREAMS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.store import Store
from tests.dashboard.browser import MARKS, TIMEOUT_MS, Reader, reader
from tests.dashboard.running_dashboard import running

pytestmark = [
    *MARKS,
    pytest.mark.slow,  # tests/analytics/diagnosis has the same incidents without a browser
]
SEED, LENGTH_S, RATE = 5, 300.0, 10.0
FIRST = datetime(2026, 6, 1, 12, tzinfo=UTC)
TOLERANCE_S = 10


def begin_of(number: int) -> datetime:
    """The begin of an incident's range. The time before it is its baseline."""
    return FIRST + timedelta(minutes=20 * number)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    data = tmp_path_factory.mktemp("incidents")
    rows = [
        simulate(
            SEED, since=begin_of(number), length_s=LENGTH_S, earlier_s=LENGTH_S, rate=RATE, faults=drawn(name, SEED, LENGTH_S).faults
        )
        for number, name in enumerate(INCIDENTS)
    ]  # fmt: skip
    store = Store(locate(SQLITE, data))
    store.commit(Commit("", tables={"streams": with_all_columns(pl.concat(rows), STREAMS)}))
    store.close()
    with running(data) as dashboard, reader(dashboard.url) as found:
        yield found


@pytest.mark.parametrize("number", range(len(INCIDENTS)), ids=list(INCIDENTS))
def test_first_screen_names_the_incident(seen: Reader, number: int) -> None:
    name, since = list(INCIDENTS)[number], begin_of(number)
    until = since + timedelta(seconds=LENGTH_S)
    seen.page.goto(f"{seen.base}/?range=custom&from={since:%Y-%m-%dT%H:%M}&until={until:%Y-%m-%dT%H:%M}&utc=true&refresh=off")  # fmt: skip
    verdict = seen.page.locator("[class*='st-key-verdict-red'], [class*='st-key-verdict-orange']").first
    verdict.wait_for(timeout=TIMEOUT_MS)
    box, window = verdict.bounding_box(), seen.page.viewport_size
    assert box is not None
    assert window is not None
    assert box["y"] + box["height"] <= window["height"]
    causes = [t for t in re.split(r"\n+", verdict.inner_text()) if "since" in t]
    for expected in drawn(name, SEED, LENGTH_S).expected:
        values = [shortened(value) if d == "client" else value for d, value in expected.where.items()]
        text = next((t for t in causes if all(v in t.split(" Unaffected")[0] for v in values)), None)
        assert text is not None, (expected, causes)
        clock = re.search(r"since (\d\d):(\d\d):(\d\d)", text)
        assert clock is not None, text
        hours, minutes, seconds = map(int, clock.groups())
        onset_s = (since.replace(hour=hours, minute=minutes, second=seconds) - since).total_seconds()
        assert onset_s == pytest.approx(expected.onset_s, abs=TOLERANCE_S), text

"""The pages in a real browser over a running `streamgauge demo`, while traffic arrives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamgauge.analytics.query.query_errors import QueryError
from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import CHROMIUM, Reader, reader
from tests.dashboard.running_dashboard import ROOT
from tests.deadline import DEADLINE_S, until
from tests.tables import tables

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
    ),
]

MIN_STREAMS = 60
"""Number of stored streams, some of them failed, at which the tests start."""


def wait_until(condition: Callable[[], bool], demo: subprocess.Popen[bytes], awaited: str) -> None:
    def met() -> bool:
        assert demo.poll() is None, "the demo ended"
        return condition()

    until(met, awaited)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running demo."""
    data = tmp_path_factory.mktemp("demo")
    ports = [word for flag in ("--listen", "--admin", "--dashboard-listen") for word in (flag, "127.0.0.1:0")]
    command = [sys.executable, "-m", "streamgauge", "demo", "--rate", "5", "--data", str(data), *ports]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (data / "run" / "dashboard.json").exists(), process, "the dashboard")
        wait_until(lambda: stored(data) >= MIN_STREAMS, process, "streams")
        yield data
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def seen(demo: Path) -> Iterator[Reader]:
    with reader(str(json.loads((demo / "run" / "dashboard.json").read_text())["url"])) as found:
        yield found


def stored(data: Path, where: str = "TRUE") -> int:
    try:
        return int(tables(data).query(f"SELECT count(*) AS n FROM streams WHERE {where}")["n"][0])
    except QueryError:
        return 0


def test_every_page_works_while_traffic_arrives(seen: Reader, demo: Path) -> None:
    stream_id = tables(demo).query(
        "SELECT stream_id::VARCHAR AS id FROM streams WHERE outcome = 'ok' LIMIT 1"
    )["id"][0]
    for view in VIEWS:
        seen.open(
            {"overview": "?range=15m", "stream": f"stream?id={stream_id}"}.get(view, f"{view}?range=15m")
        )
        assert seen.exceptions() == 0, view
        assert seen.page.locator("[data-testid=stAlertContentError]").count() == 0, view
        assert seen.problems == [], view


def test_numbers_equal_sql(seen: Reader, demo: Path) -> None:
    """Traffic continues, so a shown number is between those of SQL before and after."""
    model = tables(demo).query("SELECT mode(request_model) AS model FROM streams")["model"][0]
    for path, where in (("?range=24h", "TRUE"), (f"?range=24h&model={model}", f"request_model = '{model}'")):
        before = stored(demo, where)
        seen.open(f"{path}&refresh=off")
        shown = int(seen.metric("Requests").replace(",", ""))
        assert before <= shown <= stored(demo, where), path


def test_deep_link_shows_the_same_stream_again(seen: Reader, demo: Path) -> None:
    (row,) = (
        tables(demo)
        .query(
            "SELECT stream_id::VARCHAR AS id, request_model FROM streams WHERE outcome = 'ok' AND streamed LIMIT 1"
        )
        .to_dicts()
    )
    for _ in range(2):
        seen.open(f"stream?id={row['id']}")
        text = seen.page.locator("body").inner_text()
        assert row["id"] in text + seen.page.url
        assert row["request_model"] in text
        seen.page.goto("about:blank")

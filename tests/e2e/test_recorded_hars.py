"""HAR files that real tools write, read by `streamgauge open`: the rows are those of a tap, without times of events."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from bench.tap.peers import Missing, python_peers, running
from tests.dashboard.browser import ARGS, CHROMIUM
from tests.e2e.proxies import CASES, COUNTED, Row, finished, request, simulated, simulator
from tests.ingest.running_tap import running_tap
from tests.ports import free_port
from tests.tables import tables

pytestmark = pytest.mark.slow
NAMES = ("complete", "http_429", "inband_error", "truncate", "malformed", "cut", "reset_before_head")
READ = {name: CASES[name] for name in NAMES}
FETCH = """async ([name, simulate, body]) => {
    const headers = {"content-type": "application/json", "authorization": "Bearer planted", "x-request-id": name, "x-simulate": simulate};
    try { await (await fetch("/v1/chat/completions", {method: "POST", headers, body})).text(); } catch (e) {}
}"""


async def opened(har: Path) -> list[Row]:
    """The rows of a HAR file, without those of pages."""
    data = har.parent / "opened"
    command = [sys.executable, "-m", "streamgauge", "open", "--no-dashboard", "--data", str(data), str(har)]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ})
    assert await process.wait() == 0
    return tables(data).query("SELECT * FROM streams WHERE method = 'POST'").to_dicts()


def assert_equal(found: list[Row], expected: list[Row], but: dict[str, str]) -> None:
    """Same rows, apart from times. `but`: the outcome of a request in the file, if it is not that at the tap."""
    rows = {row["request_id"]: row for row in found}
    assert rows.keys() == READ.keys()
    for row in expected:
        read = rows[row["request_id"]]
        assert read["outcome"] == but.get(row["request_id"], row["outcome"]), row["request_id"]
        if row["outcome"] in ("ok", "inband_error", "truncated", "malformed"):
            assert [read[name] for name in COUNTED] == [row[name] for name in COUNTED]
            assert (read["ttft_ns"], read["itl_ns"], read["http_status"]) == (None, None, 200)
        assert read["end_ns"] > 0
        assert abs((read["started_at"] - row["started_at"]).total_seconds()) < 5


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
async def test_playwright_with_chromium(tmp_path: Path) -> None:
    har = tmp_path / "page.har"
    async with (
        simulator() as url,
        running_tap(None, upstreams=[f"a={url}"]) as tap,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        context = await browser.new_context(record_har_path=har, record_har_content="embed")
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{tap.worker.address[1]}/v1/models")
        for name, case in READ.items():
            await page.evaluate(FETCH, [name, *simulated(case)])
        await context.close()
        await browser.close()
        expected = [row for row in await finished(tap, len(READ) + 1) if row["method"] == "POST"]
    assert b"planted" in har.read_bytes()
    assert_equal(await opened(har), expected, {"reset_before_head": "http_error"})


async def test_mitmproxy(tmp_path: Path) -> None:
    har = tmp_path / "flows.har"
    try:
        program = str(python_peers() / "mitmdump")
    except Missing as e:
        pytest.skip(str(e))
    port = free_port()
    async with simulator() as url, running_tap(None, upstreams=[f"a={url}"]) as tap:
        upstream = f"reverse:http://127.0.0.1:{tap.worker.address[1]}"
        argv = [
            program,
            "-q",
            "--mode",
            upstream,
            "--listen-host",
            "127.0.0.1",
            "-p",
            str(port),
            "--set",
            f"hardump={har}",
        ]
        with running("mitmproxy", [*argv, "--set", f"confdir={tmp_path}"], port, tmp_path / "log"):
            for name, case in READ.items():
                await request(port, name, case, "-H", "authorization: Bearer planted")
            expected = await finished(tap, len(READ))
    assert b"planted" in har.read_bytes()
    assert_equal(await opened(har), expected, {"reset_before_head": "http_error", "cut": "truncated"})

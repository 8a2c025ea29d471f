"""Chromium driven by Playwright, which collects console errors, warnings and requests to other sites."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import ConsoleMessage, Page, Request, sync_playwright

from tests.deadline import until

CHROMIUM = shutil.which("chromium")
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
    ),
]
FOREIGN_HOST = "rebound.example"
"""A name that the browser resolves to the loopback."""
ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    f"--host-resolver-rules=MAP {FOREIGN_HOST} 127.0.0.1",
]  # fmt: skip
TIMEOUT_MS = 60_000
TOO_BUSY = re.compile(r"Cannot read the tables\..*(time limit|busy)", re.DOTALL)
"""A page's error when its queries did not end in time. Without a refresh it stays."""


@dataclass
class Reader:
    """A browser page and the problems found on it."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Open a page, and wait until it has run and drawn its charts."""
        self.page.goto(f"{self.base}/{path}")
        self.settle()

    def settle(self) -> None:
        """Wait until the script has run and all charts are drawn. A page that was too slow for its queries is loaded again."""
        until(self._has_settled, "a page whose queries end in time")

    def _has_settled(self) -> bool:
        self._wait_for_charts()
        if self.page.locator("[data-testid=stAlert]", has_text=TOO_BUSY).count() == 0:
            return True
        self.page.reload()
        return False

    def _wait_for_charts(self) -> None:
        self.page.wait_for_selector("[data-testid=stMain] h1", timeout=TIMEOUT_MS)
        self.page.wait_for_selector(
            "[data-testid=stApp][data-test-script-state=notRunning]", timeout=TIMEOUT_MS
        )
        self.page.wait_for_function(
            "() => !document.querySelector('[data-testid=stSkeleton]') && "
            "[...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(c => c.querySelector('svg, canvas'))",
            timeout=TIMEOUT_MS,
        )

    def stream_count(self) -> int:
        """The number of streams that the page Streams says it has found, on all its pages of rows."""
        count = self.page.get_by_text(re.compile(r"^([\d,]+ – [\d,]+ of )?[\d,]+ streams$")).first
        count.wait_for(timeout=TIMEOUT_MS)
        return int(count.inner_text().split()[-2].replace(",", ""))

    def metric(self, label: str) -> str:
        """The value of a metric card."""
        card = (
            self.page.locator("[data-testid=stMetric]")
            .filter(has=self.page.get_by_text(label, exact=True))
            .first
        )
        return card.locator("[data-testid=stMetricValue]").inner_text()

    def exceptions(self) -> int:
        """Number of stack traces and redacted errors on the page."""
        return self.page.locator("[data-testid=stException]").count()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if request.url.startswith("http") and host not in ("127.0.0.1", "localhost"):
            self.problems.append(f"request to another site: {request.url}")

    def listen(self) -> None:
        """Collect problems from now on."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"page: {error}"))
        self.page.on("request", self._request)


@contextlib.contextmanager
def reader(base: str, *, dark: bool = False, width: int = 1280, height: int = 900) -> Iterator[Reader]:
    """A browser window of this size."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                timezone_id="Europe/Berlin",
            )
            found = Reader(context.new_page(), base)
            found.listen()
            yield found
        finally:
            browser.close()

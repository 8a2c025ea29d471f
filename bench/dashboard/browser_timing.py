"""Clicks, stream lookups and refreshes, timed in the browser."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Page

PAGES = (
    "Overview", "Alerts", "Latency", "Throughput", "Errors", "Hops", "Compare", "Spend", "Streams", "Sessions", "Live", "Traces",
    "Pipeline", "SQL",
)  # fmt: skip
"""The pages of the menu. The page of a single stream is not in it."""
PATIENCE_MS = 60_000

_ENDED = "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
_DONE = f"""
    {_ENDED}
    && !document.querySelector('[data-testid=stSkeleton]')
    && [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(c => c.querySelector('svg, canvas'))
    && !document.querySelector('[data-stale=true]')"""
_VERDICT = "document.querySelector('[class*=st-key-verdict-]')?.textContent.trim()"  # `innerText` would lay out the page
_TITLED = "document.querySelector('[data-testid=stMain] h1')?.textContent.trim() === title"


@dataclass(frozen=True)
class Timing:
    """Seconds from the click until the script had ended and everything was sent, and until all charts were drawn.

    `verdict_s`: until the diagnosis was on the page, None on pages without one.
    """

    answered_s: float
    drawn_s: float
    verdict_s: float | None = None


def _time_until(page: Page, condition: str, argument: str) -> Timing:
    """The time from `window.began` until the JavaScript condition holds."""
    found = page.wait_for_function(
        f"""title => {{
            if (!({condition})) return false;
            if (window.verdict === undefined && {_VERDICT}) window.verdict = performance.now() - window.began;
            if (window.answered === undefined && {_ENDED}) window.answered = performance.now() - window.began;
            return ({_DONE}) && [window.answered, performance.now() - window.began, window.verdict ?? null];
        }}""",
        arg=argument,
        timeout=PATIENCE_MS,
    )
    answered_ms, drawn_ms, verdict_ms = found.json_value()
    return Timing(answered_ms / 1000, drawn_ms / 1000, None if verdict_ms is None else verdict_ms / 1000)


def click_page(page: Page, title: str) -> Timing:
    """Time a click on a page's entry in the menu."""
    if page.locator("[data-testid=stMain] h1").inner_text() == title:
        raise ValueError(f"{title} is already open")
    link = page.locator("[data-testid=stSidebarNavLink]").filter(has_text=title)
    link.evaluate_all(
        """(links, title) => {
            window.answered = window.verdict = undefined;
            window.began = performance.now();
            links.find(link => link.innerText.split('\\n').pop().trim() === title).click();
        }""",
        title,
    )
    return _time_until(page, _TITLED, title)


def look_up_stream(page: Page, stream_id: str, expected_text: str) -> Timing:
    """Time the lookup of a stream, until the page shows `expected_text`."""
    field = page.get_by_label("Stream id")
    field.fill(stream_id)
    page.evaluate("window.answered = window.verdict = undefined; window.began = performance.now()")
    field.press("Enter")
    return _time_until(page, "document.body.innerText.includes(title)", expected_text)


def refresh_page(page: Page) -> None:
    """Rerun the open page with its key, and wait until it is drawn."""
    page.evaluate(
        """() => {
            const app = document.querySelector('[data-testid=stApp]');
            window.ran = new Promise(done => new MutationObserver((_, watch) => {
                if (app.dataset.testScriptState === 'notRunning') { watch.disconnect(); done(true); }
            }).observe(app, {attributes: true, attributeFilter: ['data-test-script-state']}));
        }"""
    )
    page.keyboard.press("r")
    page.evaluate("window.ran")
    page.wait_for_function(f"() => {_DONE}", timeout=PATIENCE_MS)

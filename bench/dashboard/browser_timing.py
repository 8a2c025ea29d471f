"""What a reader does, timed in the browser itself: click, look, refresh."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Page

PAGES = (
    "Overview", "Latency", "Throughput", "Errors", "Compare", "Streams", "Live", "Traces", "Pipeline", "SQL",
)  # fmt: skip
"""The pages of the menu; a single stream's own has no entry there."""
PATIENCE_MS = 60_000

_ENDED = "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
_DONE = f"""
    {_ENDED}
    && !document.querySelector('[data-testid=stSkeleton]')
    && [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(c => c.querySelector('svg, canvas'))
    && !document.querySelector('[data-stale=true]')"""
_TITLED = "document.querySelector('[data-testid=stMain] h1')?.textContent.trim() === title"


@dataclass(frozen=True)
class Took:
    """Seconds from the click: until the page's script had ended and everything was sent, and until it was drawn."""

    answered_s: float
    drawn_s: float


def _when(page: Page, there: str, argument: str) -> Took:
    """How long it takes from `window.began` until what is awaited is there."""
    found = page.wait_for_function(
        f"""title => {{
            if (!({there})) return false;
            if ({_ENDED}) window.answered ??= performance.now() - window.began;
            return ({_DONE}) && [window.answered, performance.now() - window.began];
        }}""",
        arg=argument,
        timeout=PATIENCE_MS,
    )
    answered_ms, drawn_ms = found.json_value()
    return Took(answered_ms / 1000, drawn_ms / 1000)


def clicked(page: Page, title: str) -> Took:
    """Click a page's entry in the menu; how long until it stands."""
    if page.locator("[data-testid=stMain] h1").inner_text() == title:
        raise ValueError(f"{title} is open already")
    link = page.locator("[data-testid=stSidebarNavLink]").filter(has_text=title)
    link.evaluate_all(
        """(links, title) => {
            window.answered = undefined;
            window.began = performance.now();
            links.find(link => link.innerText.split('\\n').pop().trim() === title).click();
        }""",
        title,
    )
    return _when(page, _TITLED, title)


def shown_stream(page: Page, stream_id: str, known_by: str) -> Took:
    """Ask for one stream on its page; how long until what it is known by stands there."""
    field = page.get_by_label("Stream id")
    field.fill(stream_id)
    page.evaluate("window.answered = undefined; window.began = performance.now()")
    field.press("Enter")
    return _when(page, "document.body.innerText.includes(title)", known_by)


def refreshed(page: Page) -> None:
    """Run the open page again, by its key, and wait until it stands."""
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

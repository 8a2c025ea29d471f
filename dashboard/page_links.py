"""Links and buttons in HTML of the pages (`st.html`): one script for all of them.

A link within the dashboard is an ordinary link: it can be copied or opened in another tab. Followed by the browser, it would load
the whole page and begin a new session (1.5 s). The script follows it inside the page (0.5 s): it sets the address and reports
a step in the history, after which Streamlit runs the page of the address. Streamlit has no call for a link to an address with
parameters, apart from `st.page_link`, which cannot be part of a table.
"""

from __future__ import annotations

COPY_LINK = '<button type="button" class="sg-copy" aria-live="polite">Copy link</button>'
"""A button that copies the address of the page, with its time range and filters, without the token."""

SCRIPT = """<script>
(() => {
    if (window.followsLinks) return;
    window.followsLinks = true;
    const addressOfPage = () => {
        const address = new URL(location.href);
        address.searchParams.delete("token");
        return address.href;
    };
    const tablesBeside = button => [...button.parentElement.querySelectorAll("tr")]
        .map(row => [...row.cells].map(cell => cell.textContent).join("\\t")).join("\\n");
    const copy = async button => {
        const tables = "copiesTables" in button.dataset;
        const label = button.textContent;
        button.disabled = true;
        try {
            await navigator.clipboard.writeText(tables ? tablesBeside(button) : addressOfPage());
            button.textContent = "Copied";
        } catch {
            // Browsers offer the clipboard only on HTTPS and on the loopback.
            button.textContent = tables ? "Select and copy the text" : "Copy it from the address bar";
        }
        setTimeout(() => { button.textContent = label; button.disabled = false; }, 2000);
    };
    document.addEventListener("click", click => {
        const button = click.target.closest("button.sg-copy");
        if (button) copy(button);
        const link = click.target.closest("[data-testid=stHtml] a[href]");
        const opensElsewhere = click.button || click.ctrlKey || click.metaKey || click.shiftKey || click.altKey;
        if (!link || link.origin !== location.origin || opensElsewhere || click.defaultPrevented) return;
        click.preventDefault();
        const leaves = link.pathname !== location.pathname;
        history.pushState({}, "", link.href);
        window.dispatchEvent(new PopStateEvent("popstate", {state: {}}));
        if (leaves) document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
    });
    // A refresh replaces the HTML of a table, and with it the link that has the focus.
    let focused = null;
    document.addEventListener("focusin", event => { focused = event.target.closest("[data-testid=stHtml] a[href]")?.href; });
    new MutationObserver(() => {
        if (!focused || document.activeElement !== document.body) return;
        const again = [...document.querySelectorAll("[data-testid=stHtml] a[href]")].find(link => link.href === focused);
        again?.focus({preventScroll: true});
    }).observe(document.body, {childList: true, subtree: true});
    document.addEventListener("pointerdown", () => { focused = null; });
})();
</script>"""
"""Follows links inside the page, and copies the address or, with `data-copies-tables`, the tables beside the button. Once per document."""

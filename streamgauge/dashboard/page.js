// Follow links inside the page, and copy what a button offers: its text, the address of the page, or the tables beside it.
//
// A link in the HTML of a page is an ordinary link: it can be copied or opened in another tab. Followed by the browser, it would
// load the whole page and begin a new session (1.5 s). Here it is followed inside the page (0.5 s): the address changes, and a step
// in the history is reported, after which Streamlit runs the page of the address. A link of `st.page_link` with parameters is followed
// in the same way: Streamlit would keep the values of the widgets that both pages have, and so ignore the parameters of the link.
(() => {
    if (window.followsLinks) return;
    window.followsLinks = true;
    const address = () => {
        const link = new URL(location.href);
        link.searchParams.delete("token"); // as filters.EXCLUDED_PARAMETERS
        return link.href;
    };
    const table = button => [...button.parentElement.querySelectorAll("tr")]
        .map(row => [...row.cells].map(cell => cell.textContent).join("\t")).join("\n");
    const copy = async button => {
        const ofPage = button.closest(".st-key-controls");
        const text = ofPage ? address() : button.dataset.copy ?? table(button);
        const label = button.textContent;
        button.disabled = true;
        try {
            await navigator.clipboard.writeText(text);
            button.textContent = "Copied";
        } catch {
            // Browsers offer the clipboard only on HTTPS and on the loopback.
            if (ofPage) window.prompt("Cannot write to the clipboard: the browser does not allow it. Copy the link from here.", text);
            else button.textContent = "Select and copy the text";
        }
        setTimeout(() => { button.textContent = label; button.disabled = false; }, 2000);
    };
    document.addEventListener("click", click => {
        const button = click.target.closest("button.sg-copy");
        if (button) copy(button);
        const link = click.target.closest("[data-testid=stHtml] a[href], [data-testid=stPageLink] a[href*='?']");
        if (!link || link.origin !== location.origin) return;
        click.stopPropagation(); // Streamlit follows its own links in this tab, whatever key is held.
        if (click.button || click.ctrlKey || click.metaKey || click.shiftKey || click.altKey) return;
        click.preventDefault();
        const leaves = link.pathname !== location.pathname;
        history.pushState({}, "", link.href);
        window.dispatchEvent(new PopStateEvent("popstate", {state: {}}));
        if (leaves) document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
    }, {capture: true});
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

// Collapse the sidebar of a narrow window at first, when the window gets narrow, and after a choice of a page.
//
// Streamlit has no setting for the width, but reads the key `stSidebarCollapsed-` when it starts and after each `resize` event.
// The reader's choice for wide windows has a key of its own while the window is narrow.
(() => {
    const collapsed = "stSidebarCollapsed-", chosen = "streamgauge-sidebar-collapsed";
    const narrow = window.matchMedia("(max-width:999px)"); // as in page.css
    let wasNarrow = false;
    const arrange = () => {
        const choice = localStorage.getItem(chosen);
        if (narrow.matches && !wasNarrow) {
            localStorage.setItem(chosen, choice ?? localStorage.getItem(collapsed) ?? "false");
            localStorage.setItem(collapsed, "true");
        } else if (!narrow.matches && choice !== null) {
            localStorage.setItem(collapsed, choice);
            localStorage.removeItem(chosen);
        }
        wasNarrow = narrow.matches;
    };
    arrange();
    document.body.classList.toggle("sidebar-collapsed", localStorage.getItem(collapsed) === "true");
    window.addEventListener("resize", arrange);
    document.addEventListener("click", click => {
        if (narrow.matches && click.target.closest("[data-testid=stSidebarNavLink]"))
            document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
    });
})();

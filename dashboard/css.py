"""Page CSS that theme.toml cannot express: margins, the colours of the verdict and of metric cards, and the sidebar of narrow windows."""

from __future__ import annotations

from streamgauge.dashboard import table_css, trace_css
from streamgauge.dashboard.charts.colors import RULE
from streamgauge.dashboard.charts.drawing import STEP_PX
from streamgauge.dashboard.preloads import HIDDEN

OVERLAY_BELOW_PX = 1000
"""Narrower windows show the sidebar above the page, collapsed at first. Streamlit itself does so only below 768 px."""
_OVERLAY = f"(min-width:768px) and (max-width:{OVERLAY_BELOW_PX - 1}px)"
MAX_RESERVED_PX = 800
_reserved = "".join(
    f"[class*='-height-{px}-']{{min-height:{px}px}}" for px in range(STEP_PX, MAX_RESERVED_PX + 1, STEP_PX)
)

STYLE = f"""<style>
:root{{--missed:light-dark(#c0303b,#f0717b);--met:light-dark(#25854f,#35b16f);--warned:light-dark(#bb6a12,#d9822b);--on-primary:light-dark(#fff,#0f1519)}}
[data-testid=stMainBlockContainer]{{padding:4rem 2.2rem 3rem;width:100%;max-width:none}}
@media (max-width:640px){{[data-testid=stMainBlockContainer]{{padding:4.2rem 1rem 3rem}}}}
@media {_OVERLAY}{{
section[data-testid=stSidebar]{{position:fixed!important;height:100dvh;box-shadow:0 0 2rem #0005}}
body:has([data-testid=stExpandSidebarButton]) section[data-testid=stSidebar]{{display:none}}
}}
@media (min-width:{OVERLAY_BELOW_PX}px){{
body:not(.sidebar-collapsed) [data-testid=stAppViewContainer]:not(:has([data-testid=stSidebar],h1)) > div{{margin-left:281.25px}}
}}
[data-testid=stSidebar]:not(:has([data-testid=stSidebarNav])) [data-testid=stSidebarUserContent]{{visibility:hidden}}
[data-testid=stLayoutWrapper]:has(> .st-key-{HIDDEN}){{display:none}}
[data-testid=stElementContainer][class*=st-key-] [data-testid=stSkeleton]{{height:64px}}
:is(.st-key-at,:has(+ .st-key-at)) [data-testid=stSkeleton]{{height:38px}}
{_reserved}
.st-key-controls{{min-height:64px}}
.st-key-utc{{min-width:80px}}
[class*=st-key-verdict-links] [data-testid=stSkeleton]{{height:25px}}
[data-testid=stMetricValue]{{font-variant-numeric:tabular-nums}}
[class*=st-key-objective-]{{border-left:4px solid #7b8794}}
[class*=st-key-objective-met]{{border-left-color:var(--met)}}
[class*=st-key-objective-missed]{{border-left-color:var(--missed)}}
[class*=st-key-objective-missed] [data-testid=stMetricValue]{{color:var(--missed)}}
.st-key-verdict-red{{border-left:4px solid var(--missed)}}
.st-key-verdict-orange{{border-left:4px solid var(--warned)}}
.st-key-verdict-green{{border-left:4px solid var(--met)}}
[class*=st-key-verdict-] p{{font-size:1.08rem}}
[data-testid=stCaptionContainer] code{{color:inherit}}
[data-testid^=stBaseButton-primary]{{color:var(--on-primary)}}
[data-testid^=stBaseButton-primary] kbd{{color:inherit;border-color:currentColor;opacity:1}}
[data-tag]{{color:var(--on-primary)}}
[data-testid=stVegaLiteChart] :is(.role-axis text,.role-legend text,.role-title text,text[fill="{RULE}"]){{
fill:light-dark(#4f5b65,#b4c0c8)}}
.st-key-range [data-testid=stWidgetLabel] p{{color:light-dark(#10181f,#e6edf1)}}
.st-key-cards [data-testid=stMetricValue]{{font-size:1.25rem}}
.st-key-legend button{{border-color:transparent;background:none;padding:0 .5rem;min-height:1.6rem;height:auto;max-width:22em}}
.st-key-legend button::before{{content:"";flex:none;width:.75em;height:.75em;border-radius:2px;margin-right:.4em}}
.st-key-legend button[kind$=Active]{{border-color:currentColor}}
.st-key-sql-editor{{min-height:24.4rem}}
{table_css.STYLE}
{trace_css.STYLE}
</style>"""

COLLAPSE_SIDEBAR = f"""<script>
(() => {{
    const collapsed = "stSidebarCollapsed-", chosen = "streamgauge-sidebar-collapsed";
    const narrow = window.matchMedia("(max-width:{OVERLAY_BELOW_PX - 1}px)");
    let wasNarrow = false;
    const arrange = () => {{
        const choice = localStorage.getItem(chosen);
        if (narrow.matches && !wasNarrow) {{
            localStorage.setItem(chosen, choice ?? localStorage.getItem(collapsed) ?? "false");
            localStorage.setItem(collapsed, "true");
        }} else if (!narrow.matches && choice !== null) {{
            localStorage.setItem(collapsed, choice);
            localStorage.removeItem(chosen);
        }}
        wasNarrow = narrow.matches;
    }};
    arrange();
    document.body.classList.toggle("sidebar-collapsed", localStorage.getItem(collapsed) === "true");
    window.addEventListener("resize", arrange);
    document.addEventListener("click", click => {{
        if (narrow.matches && click.target.closest("[data-testid=stSidebarNavLink]"))
            document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
    }});
}})();
</script>"""
"""Collapses the sidebar of a narrow window at first, when the window gets narrow, and after a choice of a page.

Streamlit has no setting for the width, but reads the key `stSidebarCollapsed-` when it starts and after each `resize` event.
The reader's choice for wide windows is kept in a key of its own while the window is narrow.
"""

"""CSS of `tables.html_table`, `tables.facets`, `saved_views` and `page_links`.

Colours follow the theme: `light-dark()` reads the colour scheme that Streamlit sets on the page.

A table fits the width of its box, not of the window, because two tables may stand side by side. `WIDTHS_PX` are the widths at
which columns can disappear or rows can become blocks.
"""

from __future__ import annotations

WIDTHS_PX = range(200, 1601, 50)
STACKED_BELOW_PX = 650
"""Wider boxes never show rows as blocks: they hide columns instead."""

_HIDING = "".join(
    f"@container sg-table (max-width:{width - 1}px){{.sg-from-{width}{{display:none!important}}"
    f".sg-note .sg-until-{width}{{display:inline}}}}"
    for width in WIDTHS_PX
)
_BLOCKS = "".join(
    f"@container sg-table (max-width:{width - 1}px){{"
    f".sg-rows-from-{width},.sg-rows-from-{width} tbody{{display:block}}"
    f".sg-rows-from-{width} thead{{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}}"
    f".sg-rows-from-{width} tr{{display:block;padding:.4em 0}}"
    f".sg-table .sg-rows-from-{width} :is(td,th[scope=row]){{display:flex!important;justify-content:space-between;gap:1em;"
    "border:0;padding:.1em .4em;min-width:0!important;text-align:right}"
    f".sg-rows-from-{width}+.sg-note{{display:none}}"
    f".sg-rows-from-{width} tbody tr{{border-bottom:1px solid var(--sg-line)}}"
    f".sg-rows-from-{width} [data-heading]::before{{content:attr(data-heading);opacity:.75;font-weight:400;text-align:left;"
    "overflow-wrap:normal}}"
    for width in WIDTHS_PX
    if width <= STACKED_BELOW_PX
)

STYLE = f"""
.sg-table{{container:sg-table/inline-size;overflow-x:auto;--sg-line:light-dark(#d4dce2,#2d3a43);
border:1px solid var(--sg-line);border-radius:6px;font-size:.87rem;line-height:1.35}}
.sg-table:focus-visible{{outline:2px solid light-dark(#0b6fb8,#4aa8e8);outline-offset:1px}}
.sg-table table{{border-collapse:collapse;width:100%;margin:0;position:relative}}
.sg-table :is(td,th){{padding:.36em .6em;text-align:left;vertical-align:top;border:0;border-bottom:1px solid var(--sg-line);
overflow-wrap:anywhere}}
.sg-table tbody tr:last-child :is(td,th){{border-bottom:0}}
.sg-table th{{font-weight:500}}
.sg-table thead th{{vertical-align:bottom;overflow-wrap:normal;background:color-mix(in srgb,currentColor 4%,transparent);
color:color-mix(in srgb,currentColor 82%,transparent)}}
.sg-table thead th[title]>*{{text-decoration:underline dotted;text-underline-offset:.25em;cursor:help}}
.sg-table :is(td,th).sg-number{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}
.sg-table thead th.sg-number{{white-space:normal}}
.sg-table .sg-line{{white-space:nowrap}}
.sg-note{{padding:0 .6em;line-height:1.9;color:color-mix(in srgb,currentColor 75%,transparent)}}
.sg-note span{{display:none}}
.sg-table a{{color:light-dark(#0b6fb8,#6fbdf0);text-decoration:none}}
.sg-table a:hover{{text-decoration:underline}}
.sg-table thead a{{color:inherit}}
.sg-table .sg-bad{{color:light-dark(#b3202c,#ff9a94)}}
.sg-table .sg-good{{color:light-dark(#1d7a48,#6fd39b)}}
.sg-table .sg-muted{{color:color-mix(in srgb,currentColor 75%,transparent)}}
.sg-table [data-heading]::before{{font-family:'Source Sans',sans-serif}}
.sg-table :is(tbody th,td).sg-mono{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.95em}}
.sg-table td.sg-bar{{background:linear-gradient(90deg,light-dark(#f6d9b8,#6b4416) var(--sg-share),transparent var(--sg-share))}}
.sg-table tr.sg-opens{{position:relative}}
.sg-table tr.sg-opens:hover{{background:color-mix(in srgb,currentColor 5%,transparent)}}
.sg-table tr.sg-opens a.sg-row::after{{content:"";position:absolute;inset:0}}
.sg-table tr.sg-opens a:not(.sg-row){{position:relative;z-index:1}}
.sg-pairs th{{width:40%}}
.sg-pairs td{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.95em}}
.sg-facets{{display:grid;grid-template-columns:repeat(auto-fit,minmax(135px,1fr));gap:.6em 1.4em;font-size:.87rem;line-height:1.45}}
.sg-facets>div{{min-width:0}}
.sg-facets .sg-facet{{font-weight:600}}
.sg-facets ul{{list-style:none;margin:0;padding:0}}
.sg-facets div ul li{{margin:0;padding:0;font-size:.87rem}}
.sg-facets a{{display:flex;justify-content:space-between;gap:.6em;padding:.05em .3em;margin:0 -.3em;border-radius:3px;
color:inherit;text-decoration:none}}
.sg-facets a:hover{{background:color-mix(in srgb,currentColor 8%,transparent)}}
.sg-facets a[aria-current]{{color:light-dark(#0b6fb8,#6fbdf0);font-weight:600}}
.sg-facets a span:first-child{{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}}
.sg-facets a span:last-child{{font-variant-numeric:tabular-nums}}
@media (max-width:640px){{.sg-facets li:nth-child(n+4){{display:none}}}}
.sg-views span{{font-size:.87rem}}
.sg-views ul{{list-style:none;margin:.2em 0 0;padding:0}}
.sg-views ul li{{margin:0;padding:.15em 0;font-size:.93rem;overflow-wrap:anywhere}}
.sg-views a{{color:light-dark(#0b6fb8,#6fbdf0);text-decoration:none}}
.sg-views a:hover{{text-decoration:underline}}
.sg-copy{{font:inherit;color:inherit;background:none;border:1px solid light-dark(#d4dce2,#2d3a43);border-radius:6px;
padding:.42rem .8rem;cursor:pointer}}
.sg-copy:hover{{border-color:light-dark(#0b6fb8,#4aa8e8)}}
{_HIDING}
{_BLOCKS}"""

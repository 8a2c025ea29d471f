"""CSS of `charts.trace`.

The tree is at the left of the bars. In a box below 640 px the names are above their bars.
"""

from __future__ import annotations

STYLE = """
.sg-back{color:light-dark(#0b6fb8,#6fbdf0);text-decoration:none}
.sg-trace{container:sg-trace/inline-size;font-size:.87rem;line-height:1.35;--line:light-dark(#d4dce2,#2d3a43)}
.sg-trace ul,.sg-trace ul ul{list-style:none;margin:0;padding:0}
.sg-trace li{position:relative;margin:0;padding:0;font-size:inherit}
.sg-trace .sg-axis,.sg-trace summary{display:grid;grid-template-columns:minmax(15rem,38%) minmax(0,1fr);column-gap:.8rem}
.sg-trace .sg-axis{position:sticky;top:0;z-index:2;padding:.3rem 0;border-bottom:1px solid var(--line);
background:light-dark(#fff,#0f1519)}
.sg-trace .sg-ticks{position:relative;height:1.35em;font-variant-numeric:tabular-nums}
.sg-trace .sg-ticks>span{position:absolute;white-space:nowrap;padding-left:.25rem;border-left:1px solid var(--line)}
.sg-trace summary{cursor:pointer;min-height:1.9rem;border-bottom:1px solid color-mix(in srgb,var(--line) 55%,transparent);
list-style:none}
.sg-trace summary::-webkit-details-marker{display:none}
.sg-trace summary:hover,.sg-trace details[open]>summary{background:color-mix(in srgb,currentColor 6%,transparent)}
.sg-trace :is(summary,.sg-twist):focus-visible{outline:2px solid light-dark(#0b6fb8,#4aa8e8);outline-offset:-2px}
.sg-trace .sg-label{display:flex;gap:.4rem;align-items:baseline;min-width:0;
padding:.25rem 0 .25rem calc(1.7rem + min(var(--d),12)*1rem)}
.sg-trace .sg-label i{flex:none;display:inline-block;width:.65em;height:.65em;margin-right:.25em;border-radius:2px}
.sg-trace .sg-name{flex:1;min-width:0;overflow-wrap:anywhere}
.sg-trace .sg-name small{font-size:.92em;color:color-mix(in srgb,currentColor 75%,transparent)}
.sg-trace .sg-error{color:var(--missed);font-weight:600}
.sg-trace .sg-marks{display:block;font-size:.92em}
.sg-trace .sg-length{flex:none;font-variant-numeric:tabular-nums}
.sg-trace .sg-track{position:relative;min-height:1.9rem;
background:repeating-linear-gradient(90deg,var(--line) 0 1px,transparent 1px var(--step))}
.sg-trace .sg-track>span{position:absolute;top:.55rem;height:.8rem;min-width:3px;border-radius:2px;background:var(--c)}
.sg-trace .sg-track .sg-measured{
background:repeating-linear-gradient(135deg,var(--c) 0 5px,color-mix(in srgb,var(--c) 55%,transparent) 5px 8px)}
.sg-trace .sg-track .sg-open{background:linear-gradient(90deg,var(--c),transparent)}
.sg-trace .sg-track .sg-stall{top:.3rem;height:1.3rem;border-radius:0;border:1px solid light-dark(#fff,#0f1519);opacity:.95}
.sg-trace .sg-track .sg-ttft{top:.5rem;width:.65rem;height:.65rem;min-width:0;margin:.1rem 0 0 -.33rem;border-radius:0;
transform:rotate(45deg);
background:light-dark(#10181f,#fff);border:1px solid light-dark(#fff,#0f1519)}
.sg-trace .sg-twist{appearance:none;position:absolute;z-index:1;top:.2rem;left:calc(min(var(--d),12)*1rem);width:1.5rem;height:1.5rem;
margin:0;
border-radius:3px;cursor:pointer;display:grid;place-items:center}
.sg-trace .sg-twist::before{content:"▸"}
.sg-trace .sg-twist:checked::before{content:"▾"}
.sg-trace .sg-twist:hover{background:color-mix(in srgb,currentColor 12%,transparent)}
.sg-trace .sg-twist:not(:checked)~ul{display:none}
.sg-trace .sg-more{padding:.3rem 0 .3rem calc(1.7rem + min(var(--d,0),12)*1rem);color:color-mix(in srgb,currentColor 75%,transparent)}
.sg-trace .sg-detail{position:relative;padding:.5rem .8rem .8rem;margin-left:calc(1.7rem + min(var(--d),12)*1rem);
border-left:3px solid var(--line)}
.sg-trace .sg-detail .sg-copy{position:absolute;right:.4rem;top:.4rem}
.sg-trace .sg-detail table{border-collapse:collapse;margin:0 0 .5rem;width:100%}
.sg-trace .sg-detail caption{caption-side:top;text-align:left;font-weight:600;color:inherit;padding:.3rem 0 .1rem}
.sg-trace .sg-detail :is(th,td){border:0;padding:.1rem .8rem .1rem 0;text-align:left;vertical-align:top;font-weight:400;
overflow-wrap:anywhere}
.sg-trace .sg-detail th{width:14rem;color:color-mix(in srgb,currentColor 78%,transparent)}
.sg-trace .sg-detail td{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.95em;white-space:pre-wrap}
@container sg-trace (max-width:640px){
.sg-trace :is(.sg-axis,summary){grid-template-columns:minmax(0,1fr)}
.sg-trace .sg-axis>span:first-child{display:none}
.sg-trace .sg-label{padding-left:calc(1.7rem + min(var(--d),8)*.5rem)}
.sg-trace .sg-twist{left:calc(min(var(--d),8)*.5rem)}
.sg-trace .sg-more{padding-left:calc(1.7rem + min(var(--d,0),8)*.5rem)}
.sg-trace .sg-detail{margin-left:0;padding:.5rem}
.sg-trace .sg-detail :is(tr,th,td){display:block;width:auto;padding-right:0}
.sg-trace .sg-detail td{padding-bottom:.25rem}
.sg-trace .sg-track{min-height:1.5rem}
.sg-trace .sg-track>span{top:.35rem}
.sg-trace .sg-track .sg-stall{top:.1rem}
}"""

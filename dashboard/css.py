"""Page CSS that theme.toml cannot express: margins and metric cards."""

from __future__ import annotations

STYLE = """<style>
[data-testid=stMainBlockContainer]{padding:2.6rem 2.2rem 3rem}
@media (max-width:640px){[data-testid=stMainBlockContainer]{padding:3rem 1rem 3rem}}
[data-testid=stMetricValue]{font-variant-numeric:tabular-nums}
.st-key-cards [data-testid=stMetricValue]{font-size:1.25rem}
</style>"""

"""One HTML file with the reports of a selection, for readers without access to the store: a provider, a manager.

The file needs no network and has no script. All its figures are those of `streamgauge.analytics.reports`, as on the pages. It has names,
ids and numbers of requests, but no text of prompts or answers. Its size is bounded: each section limits its rows and its texts.
"""

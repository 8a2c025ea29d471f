"""What all pages have in common: the title, the refresh, and an answer for every case that is not "here are the numbers".

- Whatever refreshes is one fragment: widgets outside it, the scroll position and the URL stay as they are.
- A store that cannot be read, empty tables and an empty selection each have a message that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import streamlit as st

from dashboard import filters, query_runner
from dashboard.queries import overview
from dashboard.queries.selection import Selection

Body = Callable[[Selection], None]


def title(text: str, subtitle: str | None = None) -> None:
    """The heading of a page."""
    st.title(text, anchor=False)
    if subtitle:
        st.caption(subtitle)


def show(
    body: Body,
    *,
    every_s: int | None = None,
    live: bool = True,
    need_streams: bool = True,
    timed: bool = True,
) -> None:
    """Draw `body(selection)`, again and again as the reader chose; `every_s` overrides, `live=False` draws once.

    `timed`: the page is about the time range, and says so. `need_streams`: without any, it says how to begin.
    """
    pause = (every_s or filters.refresh_s()) if live and filters.refresh_s() else None

    @st.fragment(run_every=pause)
    def refreshed() -> None:
        chosen = filters.selection()
        try:
            if need_streams and not overview.any_stream(query_runner.ask):
                nothing_yet()
                return
            if timed:
                st.caption(f"{filters.said(chosen)} · updated {_clock()}")
            body(chosen)
        except query_runner.QueryError as error:
            cannot_read(error)

    refreshed()


def cannot_read(error: Exception) -> None:
    """A query failed: why, and what to do."""
    st.error(f"**The tables cannot be read.** {error}", icon=":material/cloud_off:")
    st.markdown(
        f"The pages read the tables in the data folder `{query_runner.data_dir()}`, which analytics writes. "
        "The tap and its log are not affected.\n\n"
        "- Is analytics running? See `streamgauge status`, or start everything with `streamgauge up --upstream URL`.\n"
        "- Another folder? Start the dashboard with `--data DIR`.\n"
        "- The page tries again by itself."
    )


def nothing_yet() -> None:
    """No stream was ever seen: how to begin."""
    address = query_runner.tap_address()
    st.info("**No streams yet.** Point an LLM client at the tap, and its first stream shows here within seconds.",
            icon=":material/water_drop:")  # fmt: skip
    if address is None:
        st.markdown(
            f"No tap runs on the data folder `{query_runner.data_dir()}`. Start one, in front of your gateway:"
        )
        st.code("streamgauge up --upstream https://your-gateway.example", language="shell")
        st.markdown("Or look at simulated traffic first: `streamgauge demo`.")
        return
    st.markdown(f"The tap listens on **{address}**. Only the base URL of the client changes:")
    st.code(f'export OPENAI_BASE_URL="{address}/v1"', language="shell")
    st.code(
        f'client = openai.OpenAI(base_url="{address}/v1")\nclient = anthropic.Anthropic(base_url="{address}")',
        language="python",
    )


def nothing_chosen() -> None:
    """There are streams, but none in this selection."""
    st.info("No streams in this time range with these filters. Choose a longer range, or take a filter away (sidebar).",
            icon=":material/filter_alt_off:")  # fmt: skip


def _clock() -> str:
    return f"{datetime.now(UTC).astimezone(filters.zone()):%H:%M:%S}"

"""The frame of all pages: title, time range, filters, refresh, and messages for errors, an empty store and an empty selection.

A refresh reruns one fragment. Widgets outside it, the scroll position and the URL stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import streamlit as st

from streamgauge.analytics.reports import formatting, overview
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, page_settings, query_runner, share, verdict, zoom

_PAGE, _OPENS, _BEGAN = "page", "opens", "began"


@dataclass(frozen=True)
class Page:
    """One page of the dashboard. Its address is the name of the module of `draw`."""

    draw: Callable[[], None]
    """Draws the page below its head, for each reader on each full rerun. Its docstring is the help text of the navigation."""
    title: str
    icon: str
    """Name of a Material symbol."""
    applying: Callable[[], Collection[str]] = lambda: ("from", "to", *filters.FILTERS)
    """The filters that change the page, and `from` or `to` if the time range does."""
    own_filters: Sequence[str] = ()
    """Its own filters. They have no widget: links set them in the URL, and chips remove them."""
    diagnosed: bool = False
    """Whether it shows a diagnosis or its onsets."""
    hidden: bool = False
    """Whether only links of other pages open it."""
    shares: bool = True
    """Whether the head has the button *Copy link*."""

    @property
    def address(self) -> str:
        return self.draw.__module__.rpartition(".")[2]


def begin(page: Page) -> None:
    """Call once per run, before anything is drawn. Queues the diagnosis: no other query of a page takes as long."""
    query_runner.leave_page()
    st.session_state[_OPENS] = st.session_state.get(_PAGE) != page.title
    st.session_state[_PAGE] = page.title
    st.session_state[_BEGAN] = now = datetime.now(UTC)
    if page.diagnosed and filters.is_known():
        verdict.begin(filters.selection(now), recent=opens())


def header(page: Page) -> None:
    """Draw the head of every page: its title, time range and refresh at the right, and the filters below."""
    applying = page.applying()
    with st.container(
        horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute", key="header"
    ):
        st.title(page.title, anchor=False, width="content")
        with st.container(
            horizontal=True,
            vertical_alignment="bottom",
            horizontal_alignment="right",
            width="content",
            key="controls",
        ):
            has_range = "from" in applying or "to" in applying
            filters.draw_time_range(enabled=has_range)
            if page.shares:
                share.draw_share(page.title, has_range=has_range)
    filters.draw_chips(applying, page.own_filters)
    zoom.draw_pointer()


def opens() -> bool:
    """Whether the page is drawn for the first time since the reader opened it."""
    return bool(st.session_state.get(_OPENS))


def show(
    body: Callable[[Selection], None],
    *,
    every_s: int | None = None,
    needs_streams: bool = True,
    uses_time_range: bool = True,
) -> None:
    """Draw `body(selection)`, and redraw it at the reader's refresh interval.

    `every_s` replaces that interval unless refresh is off. `needs_streams` shows the first steps if the store is empty.
    `uses_time_range` shows the time range.
    """
    interval_s = filters.refresh_interval_s()

    # `every_s` would refresh although the reader switched it off, hence the `and`.
    @st.fragment(run_every=interval_s and (every_s or interval_s))
    def fragment() -> None:
        if (address := filters.opened()) is not None:
            zoom.follow(address)
            return
        chosen = filters.selection(st.session_state.pop(_BEGAN, None))  # as in `begin`
        try:
            if needs_streams and not _has_streams():
                _show_first_steps()
                return
            chosen = replace(chosen, began=overview.data_began(query_runner.query_catalog))
            if uses_time_range:
                clock = f"{datetime.now(UTC).astimezone(filters.time_zone()):%H:%M:%S}"
                st.caption(f"{filters.describe(chosen)} · updated {clock}")
            body(chosen)
        except query_runner.QueryError as error:
            _show_error(error)
        # The first refresh makes a new diagnosis; until then the page may show a recent one at once.
        st.session_state[_OPENS] = False

    fragment()


def _has_streams() -> bool:
    """Whether the store has streams. If it has, the answer is kept for all readers."""
    known, data = _with_streams(), str(page_settings.data_dir())
    if data not in known and overview.any_stream(query_runner.query):
        known.add(data)
    return data in known


@st.cache_resource(show_spinner=False)
def _with_streams() -> set[str]:
    """The data folders that had streams. A dashboard has one, its tests have several."""
    return set()


def _show_error(error: Exception) -> None:
    if (waits_for := page_settings.waits_for()) is not None:
        st.info(
            f"**Waiting for analytics.** {formatting.markdown(waits_for)}", icon=":material/hourglass_top:"
        )
    st.error(f"**Cannot read the tables.** {formatting.markdown(str(error))}", icon=":material/cloud_off:")
    st.markdown(
        f"The pages read the tables of the data folder `{page_settings.data_dir()}`. Analytics writes them. "
        "The tap and the record log are not affected.\n\n"
        "- Check that analytics runs: `streamgauge status`. `streamgauge up --upstream URL` starts everything.\n"
        "- To use another data folder, start the dashboard with `--data DIR`.\n"
        "- The page retries at every refresh."
    )


def _show_first_steps() -> None:
    address = page_settings.tap_address()
    st.info("**No streams yet.** Point an LLM client at the tap. Its first stream appears within seconds.",
            icon=":material/water_drop:")  # fmt: skip
    if address is None:
        st.markdown(
            f"No tap runs on the data folder `{page_settings.data_dir()}`. Start one in front of your gateway:"
        )
        st.code("streamgauge up --upstream https://your-gateway.example", language="shell")
        st.markdown("For simulated traffic, run `streamgauge demo`.")
        return
    st.markdown(f"The tap listens on **{address}**. Change the base URL of the client:")
    st.code(f'export OPENAI_BASE_URL="{address}/v1"', language="shell")
    st.code(
        f'client = openai.OpenAI(base_url="{address}/v1")\nclient = anthropic.Anthropic(base_url="{address}")',
        language="python",
    )


def show_no_matches(found: str = "No streams match") -> None:
    """Show that the selection has nothing, although the store has something. `found` begins the sentence."""
    st.info(f"{found} the time range and filters. Choose a longer range or remove a filter.",
            icon=":material/filter_alt_off:")  # fmt: skip

"""The overview names the cause of an incident, with its onset and links."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import Diagnosis
from streamgauge.analytics.reports.selection import Selection
from streamgauge.dashboard import filters, panels, verdict
from streamgauge.dashboard.charts import colors
from streamgauge.dashboard.charts.drawing import OVER_TIME
from tests.dashboard.app_test import open_page, page_text
from tests.dashboard.generated_incident import GATEWAY, MODEL

NOON, HOUR = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(hours=1)


def links(app: AppTest) -> dict[str, str]:
    """Label of each link to a page → its query string."""
    found: list[Any] = [element.proto for element in app.get("page_link")]
    return {link.label: link.query_string for link in found}


def test_verdict_names_place_onset_evidence_and_links(
    incident: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, onset = incident
    app = open_page(data, monkeypatch, range="1h", refresh="off", utc="true")
    assert not app.exception
    (headline,) = (line.replace("\\", "") for line in page_text(app).splitlines() if "HTTP 429" in line)
    assert headline.startswith(":red[:material/error:] Error rate since ")
    assert f"**{MODEL} @ {GATEWAY}**" in headline
    assert headline.count("**") == 2  # nothing else is bold
    said = re.search(r"since (?:[\d-]+ )?(\d\d:\d\d:\d\d)", headline)
    assert said is not None
    at = datetime.combine(onset.date(), time.fromisoformat(said[1]), UTC)
    assert abs((at - onset).total_seconds()) % 86400 < 15
    assert "Unaffected: " in headline
    found = links(app)
    for label in ("Errors", "Compare with before"):
        assert f"model={MODEL}" in found[label]
        assert f"gateway={GATEWAY}" in found[label]
    assert f"onset={at:%Y-%m-%dT}" in found["Compare with before"].replace("%3A", ":")
    assert re.match(r"id=[0-9a-f-]{36}&range=1h&", found["Example stream"])


def test_a_page_that_is_opened_shows_the_recent_diagnosis_and_a_refresh_a_new_one(
    incident: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnosed: list[datetime] = []

    def counted(query: Any, scope: Selection, *further: Any) -> Diagnosis:
        diagnosed.append(scope.until)
        return diagnose(query, scope, *further)

    monkeypatch.setattr(verdict, "diagnose", counted)
    open_page(incident[0], monkeypatch, range="3h", refresh="off", utc="true")
    (first,) = diagnosed
    app = open_page(incident[0], monkeypatch, range="3h", refresh="off", utc="true")
    assert diagnosed == [first]
    assert f"as of {first:%H:%M:%S}" in page_text(app)
    st.cache_data.clear()  # as after `CACHED_S`
    app.run()
    assert len(diagnosed) == 2
    assert f"as of {diagnosed[1]:%H:%M:%S}" in page_text(app)


def test_the_diagnosis_of_the_address_is_queued_once_and_before_the_filters(
    incident: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def counted(query: Any, scope: Selection, *further: Any) -> Diagnosis:
        asked.append((scope.length, scope.filters()))
        return diagnose(query, scope, *further)

    def options(query: Any, scope: Selection) -> dict[str, list[str]]:
        asked.append(scope.length // HOUR)
        return {}

    monkeypatch.setattr(verdict, "diagnose", counted)
    monkeypatch.setattr(
        verdict, "prefetch", lambda ask, *args, **named: partial(lambda found: found, ask(*args, **named))
    )
    monkeypatch.setattr(filters.overview, "filter_options", options)
    address = {"range": "4h", "model": [MODEL], "gateway": [GATEWAY]}
    app = open_page(incident[0], monkeypatch, refresh="off", **address)
    scope = Selection(since=NOON, until=NOON + 4 * HOUR).filtered({"model": (MODEL,), "gateway": (GATEWAY,)})
    of_address = (scope.length, scope.filters())
    assert asked == [of_address, 4]
    st.cache_data.clear()
    app.run()
    assert asked[2:] == [of_address, 4]


def test_the_diagnosis_of_a_range_that_has_just_ended_is_the_recent_one(
    incident: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine, the end of the range passes before the page asks for the diagnosis."""
    made = Diagnosis(state="healthy", since=NOON, until=NOON + HOUR, measured=(), streams=1)
    monkeypatch.setattr(verdict, "diagnose", lambda _query, scope, *_: replace(made, until=scope.until))
    monkeypatch.setattr(verdict, "stored_objectives", lambda *_: ())
    monkeypatch.setattr(verdict.overview, "label_names", lambda *_: [])
    monkeypatch.setattr(verdict.page_settings, "data_dir", lambda: incident[0])

    def until(later: timedelta) -> datetime:
        chosen = Selection(since=NOON + later, until=NOON + HOUR + later)
        return verdict.recent_diagnosis(chosen).until

    assert until(timedelta(0)) == NOON + HOUR
    assert until(timedelta(seconds=2)) == NOON + HOUR
    assert until(timedelta(seconds=40)) == NOON + HOUR + timedelta(seconds=40)


def test_charts_mark_the_onset_and_highlight_the_culprit(
    incident: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(incident[0], monkeypatch, range="1h", refresh="off")
    specs = [chart.proto.spec for chart in app.get("vega_lite_chart")]
    over_time = [spec for spec in specs if json.loads(spec).get("usermeta") == OVER_TIME]
    assert len(over_time) == 4
    for spec in over_time:
        assert colors.MARK in spec
        assert f'"oneOf": ["{MODEL}", "total"]' in json.dumps(json.loads(spec))


def test_a_healthy_range_is_green_without_links(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(streams_data, monkeypatch, range="24h", model=["nothing"])
    assert "No requests in this range" in page_text(app)
    assert "Example stream" not in links(app)


def test_a_series_keeps_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colors, "_remembered", {})
    first = colors.of_groups(pl.DataFrame({"name": ["a", "b", "c", "others"]}))
    assert len(set(first.values())) == 4
    assert colors.of_groups(pl.DataFrame({"name": ["c", "0"]}))["c"] == first["c"]
    many = colors.of_groups(pl.DataFrame({"name": [f"n{i}" for i in range(5)] + ["a", "b", "c"]}))
    assert len(set(many.values())) == 8
    assert {name: many[name] for name in "abc"} == {name: first[name] for name in "abc"}


def test_only_changes_outside_the_noise_have_a_colour(
    incident: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[dict[str, Any]] = []
    monkeypatch.setattr(panels.st, "metric", lambda *args, **options: drawn.append(options))
    panels.card("TTFT p95", 3, 6, str, "")
    panels.card("TTFT p95", 3, 6, str, "", outside_noise=True)
    panels.card("TTFT p95", 6, 3, str, "", outside_noise=True)
    assert [one["delta_color"] for one in drawn] == ["off", "blue", "orange"]


def test_noise_of_rates_and_quantiles() -> None:
    def rate(events: int, counted: int) -> dict[str, float | None]:
        return {"errors": events, "counted": counted}

    def ttft(p95: float, n: int) -> dict[str, float | None]:
        return {"ttft_n": n, "ttft_p90_ns": p95 * 0.9, "ttft_p95_ns": p95, "ttft_p98_ns": p95 * 1.2}

    assert not panels.rate_outside_noise(rate(5, 100), rate(3, 100), "errors", "counted")
    assert panels.rate_outside_noise(rate(30, 100), rate(3, 100), "errors", "counted")
    assert not panels.rate_outside_noise(rate(10, 20), rate(0, 20), "errors", "counted")
    assert not panels.p95_outside_noise(ttft(1e9, 300), ttft(1.02e9, 300), "ttft")
    assert panels.p95_outside_noise(ttft(1e9, 300), ttft(2e9, 300), "ttft")
    assert not panels.p95_outside_noise(ttft(1e9, 30), ttft(2e9, 30), "ttft")

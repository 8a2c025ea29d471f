"""The page Alerts: what fires and links to its time and place, history, rules and silences."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.dashboard.app_test import links, open_page, page_text, table
from tests.dashboard.generated_store import add_alerts, filling

UNTIL = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture(scope="module")
def with_alerts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("alerts")
    with filling(data) as connection:
        add_alerts(connection, UNTIL)
    return data


def test_page_lists_what_fires_and_fired_the_rules_and_the_silences(
    with_alerts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(with_alerts, monkeypatch, "alerts", range="1h")
    incident, silent = table(app, "Alerts that fire")
    assert (incident["Severity"], incident["Rule"], incident["Evidence"]) == (
        "page",
        "diagnosis",
        "510 ms → 2.1 s; unaffected: vllm",
    )
    assert silent["No message"] == "alert 00000000"
    command, *_ = re.findall(r"<code>(.+?)</code>", page_text(app))
    assert shlex.split(unescape(command))[:10] == [
        "streamgauge", "silence", "--rule", "diagnosis", "--model", "gpt-4o-mini", "--gateway", "litellm", "--for", "2h",
    ]  # fmt: skip
    assert f'data-copy="{command}"' in page_text(app)
    assert [row["Rule"] for row in table(app, "Resolved alerts")] == ["cache_hit_rate"]
    assert "silent_stream" in [row["Rule"] for row in table(app, "Rules")]
    assert [(row["Model"], row["Reason"]) for row in table(app, "Silences")] == [("qwen*", "load test")]
    # A link has the place and an absolute range around the begin.
    address = parse_qs(links(app, "Alerts that fire")[0][0].removeprefix("./?"))
    assert (address["model"], address["gateway"], address["range"]) == (
        ["gpt-4o-mini"],
        ["litellm"],
        ["custom"],
    )
    begin, end = (datetime.fromisoformat(address[key][0]).replace(tzinfo=UTC) for key in ("from", "until"))
    began = UNTIL - timedelta(seconds=300)
    assert begin < began - timedelta(minutes=9)
    assert began < end <= UNTIL + timedelta(minutes=3)


def test_history_has_the_alerts_of_the_time_range_only(
    with_alerts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(with_alerts, monkeypatch, "alerts", range="5m")
    assert "No alert resolved in this time range." in page_text(app)


def test_page_of_an_empty_store_says_that_nothing_fires(
    empty_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(empty_data, monkeypatch, "alerts")
    assert [one.value for one in app.success] == ["No alert fires."]

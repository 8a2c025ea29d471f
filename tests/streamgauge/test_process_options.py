"""Options of the parts, built from settings."""

from __future__ import annotations

import logging
from dataclasses import MISSING, fields
from typing import Any

import pytest
from click.testing import CliRunner

from streamgauge.analytics.alerts.evaluator import AlertOptions
from streamgauge.analytics.options import AnalyzeOptions
from streamgauge.analytics.query.serve import ServeOptions
from streamgauge.analytics.telemetry.telemetry import TelemetryOptions
from streamgauge.cli import cli
from streamgauge.dashboard.launch import DashboardOptions
from streamgauge.ingest.ship import ShipOptions
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.settings.flags import load
from streamgauge.settings.model import Settings, option_name
from streamgauge.settings.process_options import analyze_options, serve_options, ship_options, tap_options


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        ({}, 0),
        ({"admin": "127.0.0.2:1", "metrics": "[::1]:2", "sql_listen": "127.0.0.1:1"}, 0),
        ({"metrics": ""}, 0),
        ({"admin": "0.0.0.0:4101"}, 1),
        ({"metrics": "10.0.0.1:4102", "sql_listen": "gauge.internal:1"}, 2),
    ],
)
def test_listening_beyond_this_machine_is_a_warning(
    given: dict[str, Any], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(**given)
    with caplog.at_level(logging.WARNING):
        tap_options(settings)
        analyze_options(settings)
        serve_options(settings)
    assert len(caplog.records) == warnings


def test_content_is_captured_on_no_all_or_selected_routes() -> None:
    assert Settings().captured_routes == ()
    assert Settings(capture_content=True).captured_routes == ("*",)  # type: ignore[arg-type]  # in a file
    assert Settings(capture_content="false").captured_routes == ()
    assert load({"capture_content": "/v1/chat/*, /v1/messages"}).captured_routes == (
        "/v1/chat/*",
        "/v1/messages",
    )


def test_the_flag_capture_content_needs_no_value() -> None:
    found = [
        CliRunner().invoke(cli, ["config", "check", "--capture-content", *more]) for more in ((), ("/v1/*",))
    ]
    assert ['capture_content = "*"' in found[0].output, 'capture_content = "/v1/*"' in found[1].output] == [
        True
    ] * 2


def test_every_option_is_a_setting_or_has_a_default() -> None:
    """A default stands once: an option that takes a setting has none of its own."""
    names = {option_name(name) for name in Settings.model_fields}
    for kind, prefix in (
        (TapOptions, ""), (ShipOptions, ""), (AnalyzeOptions, ""), (TelemetryOptions, ""), (AlertOptions, "alert_"),
        (ServeOptions, "sql_"), (DashboardOptions, "dashboard_"),
    ):  # fmt: skip
        for option in fields(kind):
            if {option.name, prefix + option.name} & names:
                assert (option.default, option.default_factory) == (MISSING, MISSING), (kind, option.name)


def test_ship_and_analytics_capture_the_same_routes() -> None:
    settings = Settings(kafka="127.0.0.1:9092", capture_content="/v1/*")
    assert analyze_options(settings).capture == ("/v1/*",)
    redactor = ship_options(settings).redactor
    assert redactor is not None
    assert redactor._capture == ("/v1/*",)
    assert ship_options(Settings(kafka="127.0.0.1:9092")).redactor is not None

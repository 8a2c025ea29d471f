"""Options of the parts, built from settings."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from streamgauge.part_options import analyze_options, serve_options, ship_options, tap_options
from streamgauge.settings import Settings


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        ({}, 0),
        ({"admin": "127.0.0.2:1", "metrics": "[::1]:2", "sql_host": "127.0.0.1"}, 0),
        ({"metrics": ""}, 0),
        ({"admin": "0.0.0.0:4101"}, 1),
        ({"metrics": "10.0.0.1:4102", "sql_host": "gauge.internal"}, 2),
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
    assert Settings(capture_content=True).captured_routes == ("*",)
    chosen = Settings(capture_content=True, capture_routes="/v1/chat/*, /v1/messages")
    assert chosen.captured_routes == ("/v1/chat/*", "/v1/messages")
    with pytest.raises(ValueError, match="capture-content"):
        Settings(capture_routes="/v1/chat/*")


def test_ship_and_analytics_capture_the_same_routes() -> None:
    settings = Settings(kafka="127.0.0.1:9092", capture_content=True, capture_routes="/v1/*")
    assert analyze_options(settings).capture == ("/v1/*",)
    redactor = ship_options(settings).redactor
    assert redactor is not None
    assert redactor._capture == ("/v1/*",)
    assert ship_options(Settings(kafka="127.0.0.1:9092")).redactor is not None

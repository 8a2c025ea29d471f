"""What the parts are told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from streamgauge.part_options import analyze_options, serve_options, ship_options, tap_options
from streamgauge.settings import Settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, 0),
        ({"admin": "127.0.0.2:1", "metrics": "[::1]:2", "sql_host": "127.0.0.1"}, 0),
        ({"metrics": ""}, 0),
        ({"admin": "0.0.0.0:4101"}, 1),
        ({"metrics": "10.0.0.1:4102", "sql_host": "gauge.internal"}, 2),
    ],
)
def test_a_door_beyond_this_machine_is_said(
    given: dict[str, Any], said: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(**given)
    with caplog.at_level(logging.WARNING):
        tap_options(settings)
        analyze_options(settings)
        serve_options(settings)
    assert len(caplog.records) == said


def test_text_is_captured_nowhere_everywhere_or_on_chosen_routes() -> None:
    assert Settings().capture == ()
    assert Settings(capture_content=True).capture == ("*",)
    chosen = Settings(capture_content=True, capture_routes="/v1/chat/*, /v1/messages")
    assert chosen.capture == ("/v1/chat/*", "/v1/messages")
    with pytest.raises(ValueError, match="capture-content"):
        Settings(capture_routes="/v1/chat/*")


def test_ship_and_analytics_capture_the_same() -> None:
    settings = Settings(kafka="127.0.0.1:9092", capture_content=True, capture_routes="/v1/*")
    assert analyze_options(settings).capture == ("/v1/*",)
    redactor = ship_options(settings).redactor
    assert redactor is not None
    assert redactor._capture == ("/v1/*",)
    assert ship_options(Settings(kafka="127.0.0.1:9092")).redactor is not None

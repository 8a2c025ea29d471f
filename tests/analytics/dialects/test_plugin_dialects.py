"""Dialects of plugins cannot stop analytics: their errors are malformed events, reported once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from streamgauge.analytics.dialects import plugin_dialects
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import DecodedEvent, TextDelta
from streamgauge.analytics.dialects.plugin_dialects import guarded

EXCHANGE = ExchangeInfo(path="/x")


class Failing:
    name, provider, operation = "failing", "x", "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        raise RuntimeError("text of a stream")

    recognises = reader = claims


class Reader:
    open_ended = False

    def read(self, name: str, data: bytes) -> Any:
        self.open_ended = data == b"good"
        return TextDelta("text", "a") if data == b"good" else None

    def read_body(self, body: bytes) -> Any:
        raise KeyError(body)


class Mixed(Failing):
    name = "mixed"

    def claims(self, exchange: ExchangeInfo) -> int:
        return 5

    def recognises(self, name: str, data: bytes) -> Any:
        return "6"

    def reader(self, exchange: ExchangeInfo) -> Any:
        return Reader()


def test_errors_are_malformed_events_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    dialect: Any = guarded(Failing())
    with caplog.at_level(logging.WARNING):
        assert (dialect.claims(EXCHANGE), dialect.recognises("", b"")) == (0, 0)
        reader = dialect.reader(EXCHANGE)
        assert reader.read("", b"{}").kind == "malformed"
        assert [event.kind for event in reader.read_body(b"")] == ["malformed"]
    assert caplog.messages == [
        "the dialect plugin failing failed in claims: RuntimeError. Its events count as malformed. Correct or uninstall the plugin"
    ]


def test_results_are_passed_on() -> None:
    dialect = guarded(Mixed())
    assert (dialect.claims(EXCHANGE), dialect.recognises("", b"")) == (5, 6)
    reader: Any = dialect.reader(EXCHANGE)
    assert (reader.open_ended, reader.operation) == (False, None)
    assert reader.read("", b"good") == TextDelta("text", "a")
    assert reader.open_ended
    assert reader.read("", b"bad") == DecodedEvent(kind="malformed")
    assert reader.read_body(b"bad") == [DecodedEvent(kind="malformed")]


@pytest.mark.parametrize(
    ("found", "why"),
    [(Mixed(), "there is a dialect 'mixed'"), (object(), "it has no valid name, provider, ")],
)
def test_dialects_with_a_taken_name_or_without_the_interface_are_refused(
    found: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(group: str, check: Any) -> dict[str, Any]:
        with pytest.raises((TypeError, ValueError), match=why):
            check(found)
        return {}

    monkeypatch.setattr(plugin_dialects, "load_plugins", load)
    assert plugin_dialects.plugin_dialects(["mixed"]) == []

"""Notifications reach a real receiver, or are counted, whatever the receiver does."""

from __future__ import annotations

import logging
import time

import pytest

from streamgauge.analytics.alerts.sinks import ATTEMPTS, Webhook
from streamgauge.settings.model import check_http_url
from tests.analytics.alerts.receiver import SECRET, receiver
from tests.deadline import DEADLINE_S
from tests.ports import free_port


def finished(webhook: Webhook, count: int) -> tuple[int, int, int]:
    """(sent, failed, dropped) once `count` notifications have one of these ends."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        found = webhook.exported, webhook.failed, webhook.dropped
        if sum(found) >= count:
            return found
        assert time.monotonic() < end_s, found
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("answers", "requests", "expected"),
    [
        ((200,), 1, (1, 0, 0)),
        ((500, 500, 204), 3, (1, 0, 0)),
        (("reset", 200), 2, (1, 0, 0)),
        (("hang", 200), 2, (1, 0, 0)),
        ((429, 200), 2, (1, 0, 0)),
        ((500,), ATTEMPTS, (0, 1, 0)),
        ((404,), 1, (0, 1, 0)),
        (((302, {"location": "/elsewhere"}),), 1, (0, 1, 0)),
        (((429, {"retry-after": "soon"}), 200), 2, (1, 0, 0)),
    ],
)
def test_failed_attempts_are_repeated_and_counted(
    answers: tuple[int, ...], requests: int, expected: tuple[int, int, int]
) -> None:
    with receiver(*answers) as found:
        webhook = Webhook(found.url, timeout_s=0.3, first_pause_s=0.01)
        webhook.offer([{"text": "late"}])
        assert finished(webhook, 1) == expected
        found.released.set()
        webhook.close()
    assert found.received == [{"text": "late"}] * requests


def test_retry_after_of_the_receiver_is_respected() -> None:
    with receiver((429, {"retry-after": "1"}), 200) as found:
        webhook = Webhook(found.url, first_pause_s=0.01)
        webhook.offer([{"text": "late"}])
        assert finished(webhook, 1) == (1, 0, 0)
        webhook.close()
    first_s, second_s = found.times_s
    assert second_s - first_s >= 0.9


def test_receiver_that_is_down_costs_the_caller_no_time_and_is_counted() -> None:
    webhook = Webhook(f"http://127.0.0.1:{free_port()}/{SECRET}", first_pause_s=0.01, queue_size=3)
    began_s = time.monotonic()
    for number in range(50):
        webhook.offer([{"text": str(number)}])
    assert time.monotonic() - began_s < 20
    sent, failed, dropped = finished(webhook, 50)
    webhook.close()
    assert sent == 0
    assert failed >= 3
    assert failed + dropped == 50


def test_close_does_not_wait_for_a_pause() -> None:
    with receiver(503) as found:
        webhook = Webhook(found.url, first_pause_s=300.0)
        webhook.offer([{"text": "late"}])
        end_s = time.monotonic() + DEADLINE_S
        while not found.received:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        began_s = time.monotonic()
        webhook.close()
        assert time.monotonic() - began_s < DEADLINE_S
        assert webhook.failed == 1


def test_url_is_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for url in (f"http://127.0.0.1:{free_port()}/{SECRET}", f"http://{SECRET.replace('/', '-')}.invalid/"):
        webhook = Webhook(url, first_pause_s=0.01)
        webhook.offer([{"text": "late"}])
        assert finished(webhook, 1) == (0, 1, 0)
        webhook.close()
    assert "cannot send an alert" in caplog.text
    assert "verysecret" not in caplog.text


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "host/x", "http://", "https://:1", "http://host:99999/x", "file:///etc"]
)
def test_other_urls_are_refused_without_naming_them(url: str) -> None:
    with pytest.raises(ValueError, match=r"^the value is not an http or https URL$"):
        check_http_url(url)

"""Markers over real HTTP: stored, refused, limited. And by the command, into a real store."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner

from streamgauge.analytics.intake import store_endpoint
from streamgauge.analytics.intake.commit_queue import CommitQueue
from streamgauge.analytics.intake.posted_items import (
    MARKERS_PATH,
    SILENCES_PATH,
    parse_marker,
    parse_silence,
)
from streamgauge.analytics.intake.store_endpoint import MAX_BODY_BYTES, StoreEndpoint, item_queue
from streamgauge.analytics.main import Ready, run_until
from streamgauge.analytics.schema.tables import MARKERS, SILENCES
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.telemetry import prometheus
from streamgauge.analytics.telemetry.prometheus import PrometheusEndpoint
from streamgauge.cli import cli
from tests import host_headers
from tests.analytics.stores import ask_as_reader
from tests.deadline import DEADLINE_S
from tests.options import analyze_options, telemetry_options

TOKEN = "a-token-of-some-length"


@contextmanager
def listening(
    queue: CommitQueue[Any],
    *,
    path: str = MARKERS_PATH,
    parse: Callable[[bytes, datetime], Any] = parse_marker,
    commits: bool = True,
    token: str | None = None,
) -> Iterator[str]:
    """The URL of an endpoint whose queue is committed by another thread."""
    stop = threading.Event()

    def commit() -> None:
        while not stop.wait(0.005):
            queue.rows((), {})
            queue.committed()

    thread = threading.Thread(target=commit)
    if commits:
        thread.start()
    endpoint = PrometheusEndpoint(
        "127.0.0.1:0", lambda: None, apps={path: StoreEndpoint(queue, parse, token=token)}
    )
    try:
        yield endpoint.root + path
    finally:
        stop.set()
        if commits:
            thread.join()
        queue.close()
        endpoint.close()


def post(url: str, content: object = None, **headers: str) -> tuple[int, str]:
    """Status and error of a request."""
    body = content if isinstance(content, bytes) else json.dumps(content or {"text": "deploy"}).encode()
    response = httpx.post(
        url, content=body, headers={"content-type": "application/json"} | headers, timeout=20
    )
    return response.status_code, response.json().get("error", "")


def test_marker_is_acknowledged_and_other_requests_are_refused_and_counted() -> None:
    queue = item_queue(MARKERS)
    with listening(queue) as url:
        assert post(url) == (201, "")
        assert post(url, {"text": ""})[0] == 400
        assert post(url, **{"content-type": "text/plain"}) == (
            415,
            "the content type must be application/json",
        )
        assert post(url, b" " * (MAX_BODY_BYTES + 1))[0] == 413
        chunked = httpx.post(url, content=iter([b"{}"]), headers={"content-type": "application/json"})
        assert (chunked.status_code, httpx.get(url).headers["allow"]) == (411, "POST")
        assert httpx.get(url.replace(MARKERS_PATH, "/metrics")).status_code == 200
        for headers in host_headers.FOREIGN:
            assert host_headers.answer(url, headers, method="POST")[0] == 403
        assert queue.health() == {"markers.stored": 1, "markers.refused": 5}


def test_silence_is_answered_with_its_times_in_iso_form() -> None:
    with listening(item_queue(SILENCES), path=SILENCES_PATH, parse=parse_silence) as url:
        answer = httpx.post(url, json={"model": "gpt-*", "seconds": 60}).json()
    began, ends = (answer.pop(name) for name in ("created_at", "ends_at"))
    assert (datetime.fromisoformat(ends) - datetime.fromisoformat(began)).total_seconds() == 60
    assert all("T" in at and at.endswith("Z") for at in (began, ends))
    assert answer == {"rule": "*", "model": "gpt-*", "gateway": "*", "reason": "silenced"}


def test_token_is_required_if_there_is_one() -> None:
    with listening(item_queue(MARKERS), token=TOKEN) as url:
        assert post(url) == (401, "a bearer token is required: the one of --otlp-token")
        assert post(url, authorization="Bearer x")[0] == 401
        assert post(url, authorization=f"Bearer {TOKEN}")[0] == 201


@pytest.mark.parametrize(
    ("address", "status"),
    [("127.0.0.1", 201), ("::1", 201), ("::ffff:127.0.0.1", 201), ("10.0.0.7", 403), ("fe80::1%eth0", 403), ("", 403)],
)  # fmt: skip
def test_other_machines_need_a_token(address: str, status: int) -> None:
    assert (store_endpoint.is_loopback(address)) == (status == 201)


def test_marker_that_is_not_stored_in_time_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_endpoint, "STORE_WITHIN_S", 0.05)
    queue = item_queue(MARKERS)
    with listening(queue, commits=False) as url:
        assert post(url) == (503, "timeout while storing the marker. Try again")
        assert queue.waiting
        assert queue.rows((), {}) == {}


def test_waiting_markers_and_markers_per_hour_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_endpoint, "STORE_WITHIN_S", 0.01)
    monkeypatch.setattr(store_endpoint, "MAX_WAITING", 2)
    monkeypatch.setattr(store_endpoint, "MAX_PER_HOUR", 3)
    now_s = [0.0]
    queue = item_queue(MARKERS, lambda: now_s[0])

    def statuses(url: str, count: int) -> list[str]:
        return [post(url)[1].partition(" ")[0] for _ in range(count)]

    with listening(queue, commits=False) as url:
        assert statuses(url, 3) == ["timeout", "timeout", "there"]
        queue.rows((), {})
        assert statuses(url, 2) == ["timeout", "there"]
        now_s[0] = 3601
        assert statuses(url, 1) == ["timeout"]


def test_body_that_pauses_gets_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus._QuietHandler, "timeout", 0.1)
    with listening(item_queue(MARKERS)) as url:
        parts = urlsplit(url)
        assert parts.hostname is not None
        with socket.create_connection((parts.hostname, parts.port or 0), timeout=DEADLINE_S) as connection:
            head = "POST /v1/markers HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 408 " in connection.recv(1000)


NO_ZONE = "at is not a time with a time zone, such as 2026-11-22T07:00:00Z"


def test_command_stores_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stop, results = threading.Event(), []

    def mark(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["mark", "--data", str(tmp_path), *arguments])
        return result.exit_code, result.output

    assert mark("x") == (
        1, f"Error: cannot store the marker: analytics does not run on {tmp_path}. Start it, or pass --data.\n",
    )  # fmt: skip

    def ready(_: Ready) -> None:
        def run() -> None:
            results.append(mark("deploy v2", "--at", "2026-03-01T12:00:00Z", "--source", "ci"))
            results.append(mark("a\nb"))
            results.append(mark("x", "--at", "2026-03-01T12:00:00"))
            results.append(mark("x", "--at", "yesterday"))
            stop.set()

        threading.Thread(target=run).start()

    options = analyze_options(data=tmp_path, telemetry=telemetry_options(metrics="127.0.0.1:0"))
    assert run_until(options, stop, ready) == 0
    assert results == [
        (0, "2026-03-01T12:00:00Z  deploy v2\n"),
        (1, "Error: cannot store the marker: text is not a text of 1 to 200 characters in one line.\n"),
        *[(1, f"Error: cannot store the marker: {NO_ZONE}.\n")] * 2,
    ]
    rows = ask_as_reader(locate("sqlite", tmp_path), "SELECT epoch(marked_at), text, source FROM markers")
    assert rows == [(1772366400.0, "deploy v2", "ci")]

"""JSON logs: one object per line, with trace and span id where present."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from streamgauge.process_logging import configure_logging


@pytest.fixture
def json_logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configure_logging("json")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("json_logs")
def test_each_line_is_one_object_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("streamgauge.analytics.x")
    configure_logging("json")  # pytest has replaced stderr since
    log.info("two\nlines of %s", "naïve text")
    log.warning("no spans", extra={"trace_id": "ab" * 16, "span_id": "cd" * 8})
    try:
        raise ValueError("a prompt")
    except ValueError:
        log.exception("it broke")
    plain, traced, broken = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (plain["level"], plain["logger"], plain["message"]) == (
        "info",
        "streamgauge.analytics.x",
        "two\nlines of naïve text",
    )
    assert "trace_id" not in plain
    assert (traced["trace_id"], traced["span_id"]) == ("ab" * 16, "cd" * 8)
    assert broken["exception"].endswith("\nValueError")

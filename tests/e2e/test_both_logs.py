"""The same traffic over the embedded log and over Kafka gives the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from streamgauge.commands.status import status_command
from tests.deadline import until
from tests.e2e.running import simulator, up

CASES: list[dict[str, Any]] = [
    {"tokens": 30},
    {"tokens": 10, "reasoning_tokens": 8},
    {"tokens": 12, "tool_calls": 2},
    {"tokens": 6, "fault": "http_429"},
    {"tokens": 6, "fault": "http_500"},
    {"tokens": 20, "fault": "truncate"},
    {"tokens": 20, "fault": "reset"},
    {"tokens": 20, "fault": "inband_error"},
    {"tokens": 20, "fault": "malformed"},
    {"tokens": 20, "fault": "burst"},
]
PATHS = ("/v1/chat/completions", "/v1/messages")
STABLE = """request_id, gateway, method, path, provider, dialect, operation, request_model, response_model, http_status,
    streamed, outcome, error_type, error_phase, finish_reason, input_tokens, output_tokens, reasoning_tokens,
    cached_input_tokens, token_source, event_count, output_event_count, text_chars, reasoning_chars, tool_call_count,
    comment_count, response_bytes, malformed_events, lost_bytes, delivered_bytes, aborted_after_terminal,
    ttft_ns IS NULL AS no_ttft, itl_ns IS NULL AS no_itl"""


def traffic(tap: str) -> int:
    """Send every case once. Returns the number of requests."""
    count = 0
    for path in PATHS:
        for number, case in enumerate(CASES):
            headers = {
                "x-request-id": f"{path.rsplit('/', 1)[1]}-{number}",
                "x-simulate": json.dumps({"ttft_ms": 3, "gap_ms": 1, "fault": "none", **case}),
            }
            body = {
                "model": "atlas-large",
                "stream": True,
                "max_tokens": 99,
                "messages": [{"role": "user", "content": "x"}],
            }
            try:
                with httpx.stream("POST", tap + path, json=body, headers=headers) as response:
                    response.read()
            except httpx.HTTPError:
                pass  # some cases end in an error
            count += 1
    return count


def status_of(data: Path) -> Result | None:
    """None if the machine was too busy for an answer in time."""
    status = CliRunner().invoke(status_command, ["--data", str(data)], standalone_mode=False)
    return None if "Try again when the machine is less busy" in str(status.exception) else status


def rows_of(upstream: str, data: Path, *argv: str) -> list[dict[str, Any]]:
    with up(f"sim={upstream}", data, *argv) as running:
        running.rows(traffic(running.tap))
        # `status` without --kafka reads the topic that the parts use.
        status = until(lambda: status_of(data), "a status in time")
        assert (status.exception, status.return_value) == (None, 0), status.output
        assert "are not counted" not in status.output
        return running.sql(f"SELECT {STABLE} FROM streams ORDER BY request_id")


@pytest.mark.kafka
def test_embedded_and_kafka_give_the_same_rows(tmp_path: Path, kafka_broker: str) -> None:
    with simulator("--seed", "11") as upstream:
        embedded = rows_of(upstream, tmp_path / "embedded")
        kafka = rows_of(
            upstream,
            tmp_path / "kafka",
            "--kafka",
            kafka_broker,
            "--kafka-topic",
            f"same-rows-{tmp_path.name}",
        )
    assert len(embedded) == len(CASES) * len(PATHS)
    assert kafka == embedded
    assert {row["outcome"] for row in embedded} >= {
        "ok",
        "http_error",
        "truncated",
        "upstream_reset",
        "inband_error",
    }

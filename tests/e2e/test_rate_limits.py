"""From the headers of a provider that limits its clients to the columns and the report of `top`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.deadline import DEADLINE_S, until
from tests.e2e.running import simulator, up

LIMIT = 4


def test_limits_of_two_vendors_reach_the_columns_and_top(tmp_path: Path) -> None:
    asked = (("/v1/chat/completions", "gpt-sim-mini"), ("/v1/messages", "claude-sim-large"))
    with (
        simulator("--rate-limit", str(LIMIT), "--rate-faults", "0", "--time-scale", "0.01") as url,
        up(f"sim={url}", tmp_path / "data") as running,
    ):
        for path, model in asked:
            for _ in range(LIMIT + 1):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
                headers = {"x-api-key": "k"}
                httpx.post(f"{running.tap}{path}", json=body, headers=headers, timeout=DEADLINE_S)
        for _, model in asked:
            rows = running.rows(LIMIT + 1, f"request_model = '{model}'")
            assert [row["requests_limit"] for row in rows] == [LIMIT] * (LIMIT + 1)
            assert [row["requests_remaining"] for row in rows] == [3, 2, 1, 0, 0]
            assert [row["http_status"] for row in rows] == [200, 200, 200, 200, 429]
            assert rows[-1]["retry_after_ns"] > 0

        def of_both() -> list[dict[str, Any]] | None:
            """The report ends at a whole ten seconds."""
            done = running.run("top", "--once", "--format", "json")
            assert done.returncode == 0, done.stderr
            found: list[dict[str, Any]] = json.loads(done.stdout)["rate_limits"]
            return found if {row["model"] for row in found} == {model for _, model in asked} else None

        found = until(of_both, "rate limits of both models")
    assert {row["limit"] for row in found if row["kind"] == "requests"} == {LIMIT}

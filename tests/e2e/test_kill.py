"""kill -9 of analytics during traffic: every stream is stored exactly once."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import httpx

from tests.e2e.running import simulator, until, up

STREAMS = 120


def test_every_stream_is_stored_once_despite_kills_of_analytics(tmp_path: Path) -> None:
    with simulator("--seed", "5") as upstream, up(f"sim={upstream}", tmp_path / "data") as running:
        tap = running.tap
        done = threading.Semaphore(0)

        def send(numbers: range) -> None:
            with httpx.Client(timeout=60) as client:
                for n in numbers:
                    force = {"ttft_ms": 20, "gap_ms": 5, "tokens": 20 + n % 7, "fault": "none"}
                    headers = {"x-request-id": f"kill-{n}", "x-simulate": json.dumps(force)}
                    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
                    assert (
                        client.post(f"{tap}/v1/chat/completions", json=body, headers=headers).status_code
                        == 200
                    )
                    done.release()

        threads = [threading.Thread(target=send, args=(range(k, STREAMS, 8),)) for k in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            for _ in range(STREAMS // 5):
                assert done.acquire(timeout=60)
            pid = running.part("analyze")["pid"]
            os.kill(pid, signal.SIGKILL)

            def back(pid: int = pid) -> bool | None:
                try:
                    return running.part("analyze")["pid"] != pid or None
                except (OSError, ValueError):
                    return None

            until(back, "analytics to restart")
        for thread in threads:
            thread.join(60)

        rows = running.rows(STREAMS)
        assert {row["request_id"] for row in rows} == {f"kill-{n}" for n in range(STREAMS)}
        for row in rows:
            n = int(row["request_id"].removeprefix("kill-"))
            assert row["outcome"] == "ok"
            assert row["output_event_count"] == 20 + n % 7
        counts = running.sql(
            "SELECT stream_id, count(*) AS n, count(DISTINCT seq) AS d FROM events GROUP BY stream_id"
        )
        assert len(counts) == STREAMS
        assert all(c["n"] == c["d"] for c in counts)
        assert sum(c["n"] for c in counts) == sum(row["event_count"] for row in rows)

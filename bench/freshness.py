"""From the last byte of a stream at the client to its row in SQL, over a real `up`.

One stream after the other through the tap, at random distances so that the pipeline's own rhythm is sampled
evenly. The row is asked for every 5 ms over Quack as any reader would; the figure holds that reader's delay too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from analytics.serving.ask import Asker
from tests.e2e.running import simulator, up


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench freshness", description=__doc__)
    parser.add_argument("--streams", type=int, default=60)
    arguments = parser.parse_args()
    rng = random.Random(1)
    waits_ms = []
    with (
        tempfile.TemporaryDirectory() as folder,
        simulator() as upstream,
        up(upstream, Path(folder) / "data") as running,
    ):
        asker = Asker(running.data)
        with httpx.Client() as client:
            for number in range(arguments.streams):
                headers = {
                    "x-request-id": f"fresh-{number}",
                    "x-simulate": json.dumps({"ttft_ms": 5, "gap_ms": 1, "tokens": 10, "fault": "none"}),
                }
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
                client.post(f"{running.tap}/v1/chat/completions", json=body, headers=headers)
                ended_s = time.monotonic()
                query = f"SELECT 1 FROM streams WHERE request_id = 'fresh-{number}'"
                while asker.query(query).is_empty():
                    time.sleep(0.005)
                waits_ms.append((time.monotonic() - ended_s) * 1e3)
                time.sleep(rng.random() * 0.3)
    cuts = statistics.quantiles(waits_ms, n=100)
    print(
        f"freshness over {len(waits_ms)} streams: p50 {statistics.median(waits_ms):.0f} ms, "
        f"p95 {cuts[94]:.0f} ms, max {max(waits_ms):.0f} ms"
    )
    return 0

"""Time from the last byte of a stream at the client to its row in SQL, with a real `up`.

Streams run one after another at random intervals, to sample the pipeline's commit interval evenly. A reader in this process
queries the store every 5 ms. The result includes the reader's delay.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import httpx

from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import locate
from tests.e2e.running import simulator, up

TIMEOUT_S = 20.0


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
        closing(Reader(locate("sqlite", running.data), lock_down=False)) as reader,
        httpx.Client() as client,
    ):
        for number in range(arguments.streams):
            headers = {
                "x-request-id": f"fresh-{number}",
                "x-simulate": json.dumps({"ttft_ms": 5, "gap_ms": 1, "tokens": 10, "fault": "none"}),
            }
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
            client.post(f"{running.tap}/v1/chat/completions", json=body, headers=headers)
            ended_s = time.monotonic()
            query = f"SELECT 1 FROM streams WHERE request_id = 'fresh-{number}'"
            while reader.query(query, 1, TIMEOUT_S).is_empty():
                time.sleep(0.005)
            waits_ms.append((time.monotonic() - ended_s) * 1e3)
            time.sleep(rng.random() * 0.3)
    cuts = statistics.quantiles(waits_ms, n=100)
    print(
        f"freshness over {len(waits_ms)} streams: p50 {statistics.median(waits_ms):.0f} ms, "
        f"p95 {cuts[94]:.0f} ms, max {max(waits_ms):.0f} ms"
    )
    return 0

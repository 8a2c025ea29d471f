"""The pictures of README and docs: `python -m tests.dashboard.tour FOLDER`, over a demo of a few minutes.

`make screenshots` runs it. The stream that is shown called a tool and reasoned aloud, if there is one: the slowest of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from analytics.ask import Asker
from tests.dashboard.screenshots import main as take

SECONDS = 330
WARM_UP_S = 290
"""The pages then show five minutes whole."""
STREAM = """
    SELECT stream_id::VARCHAR AS id FROM streams WHERE outcome = 'ok' AND streamed
    ORDER BY (reasoning_chars > 0 AND tool_call_count > 0) DESC, end_ns DESC LIMIT 1"""


def main(folder: Path) -> int:
    with tempfile.TemporaryDirectory() as data:
        ports = [word for flag in ("--quack-port", "--dashboard-port") for word in (flag, "0")]
        ports += [word for flag in ("--listen", "--admin") for word in (flag, "127.0.0.1:0")]
        demo = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "streamgauge",
                "demo",
                "--seconds",
                str(SECONDS),
                "--rate",
                "10",
                "--data",
                data,
                *ports,
            ]
        )
        try:
            began_s = time.monotonic()
            while time.monotonic() - began_s < WARM_UP_S:
                if demo.poll() is not None:
                    return 1
                time.sleep(1)
            url = json.loads((Path(data) / "run" / "dashboard.json").read_text())["url"]
            stream_id = str(Asker(Path(data)).query(STREAM)["id"][0])
            take(url, folder, stream_id=stream_id)
            return demo.wait()
        finally:
            demo.terminate()
            demo.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""The example package of plugins, installed by pip: dialect, session headers, alert sink and exporter work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.deadline import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "streamgauge-acme"
BODY = 'data: {"word": "Hello"}\n\ndata: {"word": " there"}\n\ndata: {"count": 2}\n\n'
SCRIPT = """
import logging, sys, threading
from pathlib import Path
from streamgauge.analytics.alerts.sinks import alert_sinks
from streamgauge.analytics.main import run_until
from streamgauge.cli import cli
from streamgauge.settings.flags import load
from streamgauge.settings.process_options import tap_options
from tests.options import analyze_options
from tests.streamgauge.stored import write_streams

logging.basicConfig(level=logging.WARNING)
folder = Path(sys.argv[1])
print(tap_options(load({"upstream": ("http://a",), "session_header": ("x-own",)})).session_headers)
for sink in alert_sinks(None):
    sink.offer([{"rule": "silence"}])
    sink.close()
write_streams(folder / "data", range(5))
stop = threading.Event()
options = analyze_options(data=folder / "data")
assert run_until(options, stop, lambda ready: stop.set()) == 0
cli.main(["read", str(folder / "body.sse"), "--path", "/acme/talk", "--format", "json"], standalone_mode=False)
"""


def test_installed_example_adds_its_plugins(tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-compile",
    ]
    subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(site), str(EXAMPLE)], check=True, timeout=100
    )
    # The entry point of a package that is no longer complete.
    (site / "half.dist-info").mkdir()
    (site / "half.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1\n")
    groups = ("dialects", "session_headers", "alert_sinks", "exporters")
    points = "".join(f"[streamgauge.{group}]\nhalf = half_gone:x\n" for group in groups)
    (site / "half.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "body.sse").write_text(BODY)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "ACME_FOLDER": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    headers, decoded = done.stdout.split("\n", 1)
    assert headers == "('x-own', 'x-acme-dialogue', 'x-acme-room:plain')"
    found = json.loads(decoded)
    found = found[0] if isinstance(found, list) else found
    assert (found["dialect"], found["provider"], found["outcome"]) == ("acme_talk", "acme", "ok")
    assert (found["text"], found["output_tokens"]) == ("Hello there", 2)
    assert json.loads((tmp_path / "alerts.jsonl").read_text()) == {"rule": "silence"}
    outcomes = [json.loads(line) for line in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
    assert sum(one["ok"] for one in outcomes) == 5
    warned = [
        line.split(":", 2)[2] for line in done.stderr.splitlines() if "cannot load the plugin half" in line
    ]
    assert len(warned) >= len(groups)
    why = "ModuleNotFoundError: No module named 'half_gone'. Correct or uninstall the package"
    assert [line for line in warned if not line.endswith(f") of half: {why}")] == []

"""Run a real Prometheus with the shipped configuration and rules."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deadline import DEADLINE_S, until
from tests.e2e.collector import built
from tests.e2e.running import ROOT, answers

OTEL = ROOT / "deploy/otel"


@dataclass
class Prometheus:
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of a response. Fails with the message of Prometheus."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=DEADLINE_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{parameters}: {e.read().decode()}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of an instant query."""
        return [
            (found["metric"], float(found["value"][1]))
            for found in self.get("query", query=expression)["result"]
        ]

    def value(self, expression: str) -> float | None:
        """The single value of a query, None if there is none yet."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None


@contextmanager
def prometheus(folder: Path, port: int, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these addresses by job instead of the configured ones."""
    home = built("prometheus-for-tests")
    config = yaml.safe_load((OTEL / "prometheus.yaml").read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == targets.keys()
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    config["global"] |= {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(OTEL / name) for name in config["rule_files"]]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    log = folder / "prometheus.log"
    flags = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    flags += [
        f"--web.listen-address=127.0.0.1:{port}",
        "--scrape.discovery-reload-interval=100ms",  # by default it begins to scrape after 5 s
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with log.open("w") as sink:
        process = subprocess.Popen(
            [home / "prometheus", *flags],
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:

        def ready() -> bool | None:
            assert process.poll() is None, log.read_text()[-2000:]
            return answers(f"http://127.0.0.1:{port}/-/ready")

        until(ready, "Prometheus")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(DEADLINE_S)

"""All parts with a broker that requires TLS and authentication. The password is not logged, stored or shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.running import simulator, up
from tests.e2e.test_both_logs import traffic
from tests.ingest.record_log.test_kafka import certificate  # noqa: F401 - a fixture
from tests.kafka import Broker, sasl_ssl

PASSWORD = "pw-plantedzwiebel"


@pytest.mark.kafka
@pytest.mark.parametrize("method", ["environment", pytest.param("flag", marks=pytest.mark.slow)])
def test_ship_and_analytics_authenticate_over_tls(
    method: str,
    tmp_path: Path,
    own_broker: Callable[..., Broker],
    certificate: tuple[Path, Path],  # noqa: F811
) -> None:
    store, pem = certificate
    arguments, kafka_options = sasl_ssl(store, pem, PASSWORD)
    broker = own_broker(*arguments)
    options = json.dumps(kafka_options)
    data = tmp_path / "data"
    flags = ["--kafka", broker.address, *(["--kafka-options", options] if method == "flag" else [])]
    environment = {"STREAMGAUGE_KAFKA_OPTIONS": options} if method == "environment" else {}
    with (
        simulator("--seed", "11") as upstream,
        up(f"sim={upstream}", data, *flags, dashboard=False, **environment) as running,
    ):
        running.rows(traffic(running.tap))
        for name in ("tap", "ship", "analyze"):  # `up` itself was started with the flag
            assert PASSWORD.encode() not in Path(f"/proc/{running.part(name)['pid']}/cmdline").read_bytes(), (
                name
            )
        for file in [*filter(Path.is_file, (data / "run").iterdir()), running.log]:
            assert PASSWORD not in file.read_text(), file
        assert PASSWORD not in repr(running.sql("FROM log_positions"))
        assert running.stop() == 0
    assert PASSWORD not in running.log.read_text()
    check = subprocess.run(
        [sys.executable, "-m", "streamgauge", "config", "check"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "STREAMGAUGE_KAFKA": broker.address, "STREAMGAUGE_KAFKA_OPTIONS": options},
    )
    assert "kafka_options" in check.stdout
    assert PASSWORD not in check.stdout + check.stderr

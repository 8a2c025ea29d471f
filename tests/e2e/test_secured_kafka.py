"""All parts against a broker that speaks TLS and asks who they are; the password is nowhere to be read."""

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
from tests.ingest.log.test_kafka import certificate  # noqa: F401 - a fixture
from tests.kafka import Broker

PASSWORD = "pw-plantedzwiebel"


@pytest.mark.kafka
@pytest.mark.parametrize("way", ["environment", pytest.param("flag", marks=pytest.mark.slow)])
def test_ship_and_analytics_sign_in_over_tls(
    way: str,
    tmp_path: Path,
    own_broker: Callable[..., Broker],
    certificate: tuple[Path, Path],  # noqa: F811
) -> None:
    store, pem = certificate
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{login} user_gauge="{PASSWORD}";',
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "changeit",
    }
    configured = [part for name, value in properties.items() for part in ("--config", f"{name}={value}")]
    broker = own_broker("--security", "SASL_SSL", *configured)
    options = json.dumps({
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "gauge",
        "sasl_plain_password": PASSWORD,
        "ssl_cafile": str(pem),
    })  # fmt: skip
    data = tmp_path / "data"
    flags = ["--kafka", broker.address, *(["--kafka-options", options] if way == "flag" else [])]
    environment = {"STREAMGAUGE_KAFKA_OPTIONS": options} if way == "environment" else {}
    with (
        simulator("--seed", "11") as upstream,
        up(f"sim={upstream}", data, *flags, dashboard=False, **environment) as running,
    ):
        running.rows(traffic(running.tap))
        for name in ("tap", "ship", "analyze"):  # whoever started `up` with the flag has shown it himself
            assert PASSWORD.encode() not in Path(f"/proc/{running.part(name)['pid']}/cmdline").read_bytes(), (
                name
            )
        for file in [*(data / "run").iterdir(), running.log]:
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

"""A real Kafka broker for tests: `deploy/kafka/broker` with its own port and data folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

SCRIPT = Path(__file__).parents[1] / "deploy" / "kafka" / "broker"
QUICK_START = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Compile quickly: a third less CPU time per start of a broker that lives for seconds."""


@dataclass
class Broker:
    """One broker and its data folder; `address` does not change with restarts."""

    data: Path
    arguments: tuple[str, ...] = ()
    address: str = ""

    def start(self) -> str:
        """Start or restart the broker and return HOST:PORT. Skips the test if Kafka is not installed."""
        done = subprocess.run(
            [SCRIPT, "start", "--port", "0", "--data", self.data, *self.arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **QUICK_START},
        )
        if done.returncode:
            error = done.stderr.strip()
            if "is not installed" in error or "needs Java" in error or "Maven" in error:
                pytest.skip(error)
            raise RuntimeError(error)
        assert self.address in ("", done.stdout.strip()), "another process took the broker's port"
        self.address = done.stdout.strip()
        return self.address

    @property
    def pid(self) -> int:
        return int((self.data / "broker.pid").read_text())

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        subprocess.run([SCRIPT, "stop", "--data", self.data], check=True)


def skip_without_java() -> None:
    """Skip the test, with the reason, if the broker cannot run here."""
    if not shutil.which("java") or not shutil.which("mvn"):
        pytest.skip("no Java 17 and Maven; on Debian: apt-get install openjdk-17-jre-headless maven")


SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def add_scram_user(broker: str, options: dict[str, str], password: str) -> None:
    """Create SCRAM credentials for the user `gauge`. `options` connect as an authenticated client."""
    admin = KafkaAdminClient(bootstrap_servers=broker, **options)
    try:
        # A request may name a user only once.
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion("gauge", mechanism, password)
            assert admin.alter_user_scram_credentials([change]) == {"gauge": None}
    finally:
        admin.close()


def sasl_ssl(store: Path, ca: Path, password: str) -> tuple[list[str], dict[str, str]]:
    """Arguments of a broker that requires SASL_SSL with the user `gauge`, and the matching client options."""
    properties = {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.client.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_gauge="{password}";',
        **{
            f"listener.name.client.{mechanism.lower()}.sasl.jaas.config": "org.apache.kafka.common.security.scram."
            "ScramLoginModule required;"
            for mechanism in SCRAM
        },
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "changeit",
    }
    configured = [part for name, value in properties.items() for part in ("--config", f"{name}={value}")]
    options = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "gauge",
        "sasl_plain_password": password,
        "ssl_cafile": str(ca),
    }
    return ["--security", "SASL_SSL", *configured], options

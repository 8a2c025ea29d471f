"""A real broker for tests: `deploy/kafka/broker` on a port and in a folder of its own, ended by pid."""

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


@dataclass
class Broker:
    """One broker and its data folder; `address` stays the same over restarts."""

    data: Path
    arguments: tuple[str, ...] = ()
    address: str = ""

    def start(self) -> str:
        """Start it, or go on with the data that is there; HOST:PORT. Skips the test where Kafka cannot be had."""
        done = subprocess.run(
            [SCRIPT, "start", "--port", "0", "--data", self.data, *self.arguments],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = done.stderr.strip()
            if "is not installed" in said or "needs Java" in said or "Maven" in said:
                pytest.skip(said)
            raise RuntimeError(said)
        assert self.address in ("", done.stdout.strip()), "another process took the broker's port meanwhile"
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
    """Skip early and with the reason. (`broker` itself says it too.)"""
    if not shutil.which("java") or not shutil.which("mvn"):
        pytest.skip("no Java 17 and Maven; on Debian: apt-get install openjdk-17-jre-headless maven")


SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def let_in_by_scram(broker: str, options: dict[str, str], password: str) -> None:
    """Let the user `gauge` in by SCRAM as well, with that password; `options` are those of one who is in."""
    admin = KafkaAdminClient(bootstrap_servers=broker, **options)
    try:
        for kind in (
            ScramMechanism.SCRAM_SHA_256,
            ScramMechanism.SCRAM_SHA_512,
        ):  # one user once in a request
            said = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("gauge", kind, password)])
            assert said == {"gauge": None}
    finally:
        admin.close()


def sasl_ssl(store: Path, ca: Path, password: str) -> tuple[list[str], dict[str, str]]:
    """Arguments of a broker that wants SASL_SSL of the user `gauge`, and the options of a client that has it."""
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

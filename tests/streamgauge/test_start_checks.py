"""The faults of settings, by part: `config check` names all, `up` refuses to start only for those of the tap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from streamgauge.cli import cli
from streamgauge.settings.flags import load_used
from streamgauge.settings.model import Settings, settings_of
from streamgauge.settings.process_options import start_faults

UPSTREAM = 'upstream = "http://localhost:4000"\n'


TAP = settings_of("tap")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "part", "message"),
    [
        ({"listen": "127.0.0.1:4100", "admin": "127.0.0.1:4100"}, "tap", "are the same address"),
        ({"tls_cert": "none.pem"}, "tap", "none.pem has no usable certificate"),
        ({"tls_key": "none.pem"}, "tap", "--tls-cert"),
        ({"listen": "0.0.0.0:8501"}, "tap", "--listen and --dashboard-listen have the same address"),
        (
            {"metrics": "127.0.0.1:9494", "serve": True},
            "serve",
            "--metrics and --sql-listen have the same address",
        ),
        ({"price_file": "none.csv"}, "analyze", "cannot read the price file none.csv"),
        ({"otlp_listen": "0.0.0.0:4318"}, "analyze", "Set --otlp-token"),
        ({"otlp_listen": "127.0.0.1:4318", "otlp_token": "short"}, "analyze", "at least 16 characters"),
        ({"alert_webhook": "https://events.pagerduty.com/v2/enqueue"}, "analyze", "Set alert_routing_key"),
        ({"sql_token": "short"}, "serve", "at least 16 characters"),
        ({"mcp_token": "short"}, "mcp", "at least 16 characters"),
        ({"dashboard_oidc": "none.toml"}, "dashboard", "cannot read none.toml"),
        ({"kafka": "a:1", "kafka_options": {"nope": 1}}, "ship", "kafka-python has no option 'nope'"),
    ],
)
def test_fault_names_the_part(given: dict[str, Any], part: str, message: str) -> None:
    (fault,) = start_faults(Settings(upstream=("http://localhost:4000",), **given))  # type: ignore[arg-type]
    assert (fault.part, message in fault.message) == (part, True), fault
    assert bool(start_faults(Settings(upstream=("http://a",), **given), "tap")) == (part == "tap")  # type: ignore[arg-type]


def test_defaults_have_no_fault() -> None:
    assert start_faults(Settings(upstream=("http://localhost:4000",), serve=True)) == []  # type: ignore[arg-type]


def test_config_check_prints_the_faults_of_all_parts(folder: Path) -> None:
    text = (
        UPSTREAM + 'admin = "127.0.0.1:4100"\nkafka_topic = "two words"\nsql_token = "short"\nworkers = 0\n'
    )
    (folder / "streamgauge.toml").write_text(text)
    found = CliRunner().invoke(cli, ["config", "check", "--format", "json"])
    assert found.exit_code == 2
    faults = {fault["part"]: fault["message"] for fault in json.loads(found.stdout)["faults"]}
    assert faults.keys() == {"tap", "ship, analyze", "serve"}
    assert "'two words' is not the name of a Kafka topic" in faults["ship, analyze"]
    assert all(f"streamgauge: {part}: {message}" in found.stderr for part, message in faults.items())
    assert "--workers (file streamgauge.toml): 0 is not a whole number" in found.stderr


def test_command_refuses_invalid_values_of_its_own_settings_and_flags_alone(folder: Path) -> None:
    (folder / "streamgauge.toml").write_text(UPSTREAM + 'stall_factor = -1\nlake_path = "x"\nworkers = 2\n')
    settings, invalid = load_used({}, TAP)
    assert (settings.workers, settings.stall_factor, invalid.keys()) == (
        2,
        5.0,
        {"stall_factor", "lake_path"},
    )
    with pytest.raises(click.UsageError, match="stall-factor"):
        load_used({}, ("stall_factor",))
    with pytest.raises(click.UsageError, match="'x' is not HOST:PORT"):
        load_used({"dashboard_listen": "x"}, TAP)
    (folder / "streamgauge.toml").write_text("lisen = 1\n")
    with pytest.raises(click.UsageError, match="unknown setting 'lisen'"):
        load_used({}, TAP)

"""Every command that reports has `--format json`, with the keys that docs/reference/cli.md lists."""

from __future__ import annotations

import csv
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from streamgauge.analytics.alerts.alert_states import Change, Condition, Key
from streamgauge.analytics.alerts.evaluator import event_rows
from streamgauge.analytics.intake.posted_items import SILENCES_PATH, parse_silence
from streamgauge.analytics.intake.store_endpoint import item_queue
from streamgauge.analytics.schema.tables import MARKERS, SILENCES
from streamgauge.analytics.storage.commit import Commit
from streamgauge.cli import COMMAND_ORDER, cli
from tests.analytics.intake.test_markers import listening
from tests.analytics.stores import new_store
from tests.streamgauge.stored import analyse, write_streams

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = {
    row["command"]: row["keys"] for row in csv.DictReader((ROOT / "docs" / "data" / "json_output.csv").open())
}
PROCESSES = {
    "run",
    "open",
    "up",
    "demo",
    "tap",
    "capture",
    "ship",
    "analyze",
    "dashboard",
    "serve",
    "mcp",
    "simulate",
}
"""Commands that run until they are stopped."""
RECORDED = ROOT / "tests" / "analytics" / "captures" / "fireworks" / "responses.sse"
OF_THE_QUERY = "streams"


def commands(group: click.Group = cli, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands with their paths."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")
        else:
            yield prefix + name, command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory whose data folder has streams, a firing alert, and analytics that stores markers and silences."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "catalog.json").write_text(
        '{"m": {"litellm_provider": "x", "input_cost_per_token": 1, "output_cost_per_token": 1}}'
    )
    data = folder / "streamgauge-data"
    write_streams(data, range(2))
    analyse(data, flush=True, back_up=True)
    condition = Condition(value=2.0, threshold=1.0, message="slow", since_ns=time.time_ns())
    change = Change(str(uuid.uuid4()), Key("burn_rate", "g", "m"), "firing", condition)
    store = new_store(data)
    store.commit(Commit("log", tables={"alert_events": event_rows([(change, time.time_ns(), None)], "test")}))
    store.close()
    of_silences = listening(item_queue(SILENCES), path=SILENCES_PATH, parse=parse_silence)
    with listening(item_queue(MARKERS)) as url, of_silences as silences_url:
        (data / "run").mkdir(exist_ok=True)
        ready = {"pid": os.getpid(), "markers": url, "silences": silences_url}
        (data / "run" / "analyze.json").write_text(json.dumps(ready))
        yield folder


def run(folder: Path, *argv: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(cli, [*argv, "--format", "json"])


ARGUMENTS: dict[str, list[str]] = {
    "sql": [f"SELECT count(*) AS {OF_THE_QUERY} FROM streams"],
    "export": ["--duckdb", "export.duckdb"],
    "mark": ["deploy v2"],
    "prices import": ["catalog.json", "--price-file", "imported.csv"],
    "rebuild": [],
    "forget": ["--session", "none", "--dry-run"],
    "read": [str(RECORDED)],
}  # fmt: skip


@pytest.mark.parametrize(
    "command", sorted(DOCUMENTED.keys() - {"import"})
)  # which waits for analytics: test_import.py
def test_json_has_the_documented_keys(command: str, folder: Path) -> None:
    done = run(folder, *command.split(), *ARGUMENTS.get(command, []))
    assert done.exit_code in (0, 1), done.output
    found: Any = json.loads(done.stdout)
    keys = {key for row in found for key in row} if isinstance(found, list) else set(found)
    documented = DOCUMENTED[command].partition(";")[0].split(", ")
    assert keys == ({OF_THE_QUERY} if command == "sql" else set(documented))


def test_every_command_that_reports_prints_json() -> None:
    with_format = {
        path for path, command in commands() if any("--format" in option.opts for option in command.params)
    }
    reporting = (
        {path for path, _ in commands()} - PROCESSES - {"completion", "report"}
    )  # these write a script and a page
    assert with_format == reporting == DOCUMENTED.keys()
    assert set(COMMAND_ORDER) > PROCESSES


def test_json_of_config_check_has_sources_and_no_secrets(tmp_path: Path) -> None:
    (tmp_path / "streamgauge.toml").write_text(
        'workers = 3\nsql_token = "planted-secret-of-16"\nkafka_options = {sasl_plain_password = "planted-too"}\n'
        'store = "postgres:host=db password=planted-third"\n[clients]\n9f86d081884c7d659a2feaa0c55ad015 = "billing"\n'
    )
    done = run(tmp_path, "config", "check", "--upstream", "a=http://a")
    found = json.loads(done.stdout)
    settings = found["settings"]
    assert found["file"] == "streamgauge.toml"
    assert settings["workers"] == {"value": 3, "source": "file streamgauge.toml", "hidden": False}
    assert settings["upstream"] == {"value": ["a=http://a:80"], "source": "flag --upstream", "hidden": False}
    assert settings["clients"]["value"] == {"9f86d081884c7d659a2feaa0c55ad015": "billing"}
    for name in ("sql_token", "kafka_options", "store"):
        assert settings[name] == {"value": None, "source": "file streamgauge.toml", "hidden": True}
    assert settings["client_key"] == {"value": None, "source": "default", "hidden": False}
    assert "planted" not in done.output


def test_json_of_rebuild_counts_the_rows_of_each_table(folder: Path) -> None:
    found = json.loads(run(folder, "rebuild", "--from-files").stdout)
    assert found["source"] == "files"
    assert found["tables"]["streams"] == 2
    assert Path(found["catalog"]) == folder / "streamgauge-data" / "catalog.sqlite"

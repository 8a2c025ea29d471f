"""`streamgauge forget` shows what it deletes, asks, deletes it, and names what it cannot delete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
from streamgauge.commands.status import status_command
from streamgauge.commands.store_commands import forget_command
from streamgauge.ingest.keyed_ids import load_client_key
from streamgauge.ingest.labels import parse_label
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.records import AnyRecord, Opened, pack
from tests.analytics.log_entries import alive, stream, stream_id
from tests.analytics.sockets import create, events, recorded
from tests.streamgauge.stored import analyse

pytestmark = pytest.mark.usefixtures("reads_in_process")

CLIENT, OTHER = "c1" * 16, "0b" * 16


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two requests and a WebSocket with two answers of CLIENT, and one request of OTHER, as a tap counts them."""
    sent = [(1, "client", create()), *((2 + n, "server", one) for n, one in enumerate(events("r", ["a"])))]
    sent += [(20, "client", create()), *((30 + n, "server", one) for n, one in enumerate(events("s", ["b"])))]
    socket = recorded(sent, stream=stream_id(4))  # type: ignore[arg-type]
    lanes = [(stream(1), CLIENT), (stream(2), CLIENT), (socket, CLIENT), (stream(3), OTHER)]
    data = tmp_path_factory.mktemp("data")
    with EmbeddedWriter(data / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack(with_client(records, client), compress=True) for records, client in lanes])
        writer.append([pack([alive(9000, stopping=True, streams_opened=4)], compress=False)])
    analyse(data)
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def with_client(records: list[AnyRecord], client: str) -> list[AnyRecord]:
    return [replace(one, client_id=client) if isinstance(one, Opened) else one for one in records]


def run(data: Path, *argv: str, answer: str = "") -> Result:
    return CliRunner().invoke(forget_command, ["--data", str(data), *argv], input=answer)


def status(data: Path) -> dict[str, Any]:
    done = CliRunner().invoke(status_command, ["--data", str(data), "--format", "json"])
    found: dict[str, Any] = json.loads(done.output)
    return {name: found[name] for name in ("reconciles", "captured", "stored", "forgotten")}


def test_it_asks_and_counters_reconcile_before_and_after(data: Path) -> None:
    refused = run(data, "--client", CLIENT, answer="n\n")
    assert refused.exit_code == 1
    assert "5 rows" in refused.output
    assert f"Delete all data of the client {CLIENT}?" in refused.output
    planned = json.loads(run(data, "--client", CLIENT, "--dry-run", "--format", "json").stdout)
    assert status(data) == {"reconciles": True, "captured": 4, "stored": 4, "forgotten": 0}
    done = run(data, "--client", CLIENT, "--format", "json", answer="y\n")
    found = json.loads(done.stdout)
    assert found == {**planned, "dry_run": False}
    assert (found["caller"], found["streams"], found["tables"]["streams"]) == (f"client {CLIENT}", 5, 5)
    assert [word for word in ("Kafka", "backups") if word in " ".join(found["notes"])] == ["Kafka", "backups"]
    assert status(data) == {"reconciles": True, "captured": 4, "stored": 1, "forgotten": 3}
    text = CliRunner().invoke(status_command, ["--data", str(data)]).output
    assert "stored             1  (and 3 forgotten)" in text
    assert "no rows" in run(data, "--client", CLIENT, "--yes").output


def test_client_is_found_by_its_name(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = run(original, "--client", "team-a", "--dry-run")
    assert "no client has the name 'team-a'" in unknown.output
    monkeypatch.setenv("STREAMGAUGE_CLIENTS", json.dumps({CLIENT: "team-a"}))
    assert (
        f"would delete the data of the client {CLIENT}"
        in run(original, "--client", "team-a", "--dry-run").output
    )


def test_label_is_given_as_sent_or_as_stored(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, plain = "team=header:x-team", "team=header:x-team:plain"
    stored = parse_label(hashed).recorded("search", load_client_key(original / "client.key"))
    for label, value, meant in (
        (hashed, "search", stored),
        (hashed, stored, stored),
        (plain, "search", "search"),
    ):
        monkeypatch.setenv("STREAMGAUGE_LABELS", label)
        done = run(original, "--label", f"team={value}", "--dry-run")
        assert f"would delete the data of the label team={meant}\n" in done.output
    assert "is not a label such as" in run(original, "--label", "team").output
    assert "_other is no value" in run(original, "--label", "team=_other").output


def test_running_analytics_is_an_error(original: Path) -> None:
    with lock_data_folder(original):
        assert run(original, "--client", CLIENT, "--dry-run").exit_code == 0
        done = run(original, "--client", CLIENT, "--yes")
    assert isinstance(done.exception, OSError)
    assert "another analytics" in str(done.exception)
    assert "Stop it" in str(done.exception)

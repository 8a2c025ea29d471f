"""Names of clients in the file, as flags and in the environment, and the table that readers use."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner

from streamgauge.analytics.schema.clients import MAX_CLIENTS, Client
from streamgauge.analytics.schema.tables import CLIENTS
from streamgauge.analytics.storage.replaced_tables import replace_rows
from streamgauge.cli import cli
from streamgauge.settings.flags import flags, load
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import analyze_options
from streamgauge.settings.tables import parse_clients
from tests.analytics.stores import ask, new_store

A, B = "a1" * 16, "b2" * 16
EXPECTED = (Client(B, "nightly = evaluation"), Client(A, 'the "billing" agent'))
FILE = f"""
[clients]
{B} = "nightly = evaluation"
{A} = 'the "billing" agent'
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_of_the_file_and_of_config_check(folder: Path) -> None:
    (folder / "streamgauge.toml").write_text(FILE)
    assert analyze_options(load({})).clients == EXPECTED
    printed = CliRunner().invoke(cli, ["config", "check"])
    assert printed.exit_code == 0, printed.output
    (folder / "streamgauge.toml").write_text(printed.output)
    assert load({}).clients == EXPECTED


def test_flags_for_a_child_process_give_the_same_names() -> None:
    argv = flags(Settings(clients=EXPECTED), ["clients"])
    assert argv[::2] == ["--clients", "--clients"]
    assert load({"clients": tuple(argv[1::2])}).clients == EXPECTED


@pytest.mark.parametrize("value", [f'{{"{A}": "billing"}}', f"{A}=billing"])
def test_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMGAUGE_CLIENTS", value)
    assert load({}).clients == (Client(A, "billing"),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a1b2=x",), "'a1b2' is not a client id: 32 hexadecimal digits, such as in 9f86d081884c7d659a2feaa0c55ad015=billing"),
        ((f"{A}=",), f"the name of {A} is not text of 1 to 64 characters"),
        ((f"{A}={B}",), f"the name of {A} is not text of 1 to 64 characters"),
        ((f"{A}=two\nlines",), f"the name of {A} is not text of 1 to 64 characters"),
        ((f"{A}=others",), "the name 'others' has another meaning. Choose another name"),
        ((f"{A}=x", f"{B}=x"), "'x' is taken: give each entry its own"),
        ((f"{A}=x", f"{A}=y"), f"'{A}' is taken: give each entry its own"),
        ('{"a', "the value is not JSON: Unterminated string starting at: line 1 column 2 (char 1)"),
        ([1], "the value is not a table of names by client id, such as 9f86d081884c7d659a2feaa0c55ad015=billing"),
    ],
)  # fmt: skip
def test_wrong_name_is_one_clear_line(given: object, message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        load({"clients": given})
    assert wrong.value.message == f"--clients: {message}."


def test_number_of_names_is_limited() -> None:
    with pytest.raises(ValueError, match=f"above the limit of {MAX_CLIENTS}"):
        parse_clients({f"{n:032x}": f"client {n}" for n in range(MAX_CLIENTS + 1)})


def test_start_of_analytics_replaces_the_names_if_they_differ(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    try:
        snapshots = []
        for clients in (EXPECTED, EXPECTED[::-1], EXPECTED[:1], ()):
            replace_rows(store, CLIENTS, clients)
            assert ask(store, "FROM clients ORDER BY client_id") == [
                (c.client_id, c.name) for c in sorted(clients)
            ]
            snapshots += ask(store, "SELECT max(snapshot_id) FROM ducklake_snapshots('lake')")
        assert snapshots[0] == snapshots[1] < snapshots[2] < snapshots[3]
    finally:
        store.close()

"""Output of the command; invalid input gives one line and exit code 2."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from streamgauge.cli import COMMAND_ORDER, LAZY_COMMANDS, SECTIONS, cli
from tests.deadline import DEADLINE_S


def streamgauge(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamgauge", *argv],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def help_of(*command: str) -> str:
    done = CliRunner().invoke(cli, [*command, "--help"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", COMMAND_ORDER)
def test_every_command_has_help(command: str) -> None:
    assert len(help_of(command).splitlines()) >= 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["up"], "no upstream"),
        (["up", "--upstream", "localhost"], "is not a URL"),
        (["up", "--upstream", "http://a", "--upstream", "http://a"], "two upstreams are named"),
        (["up", "--upstream", "http://a", "--nope"], "--nope"),
        (["up", "--upstream", "http://a", "--listen", "4100"], "HOST:PORT"),
        (["up", "--upstream", "http://a", "--sql-listen", "a:99999"], "--sql-listen"),
        (["up", "--upstream", "http://a", "--store", "duckdb"], "--store must be sqlite or postgres:DSN"),
        (["up", "--upstream", "http://a", "--lake-path", "x"], "--lake-path requires --store postgres:DSN"),
        (["serve", "--sql-token", "short"], "at least 16 characters"),
        (["serve"], "does not exist. Pass the data folder"),
        (["export", "--duckdb", "x.duckdb"], "cannot attach the store"),
        (["export", "--duckdb", "x.duckdb", "--since", "soon"], "neither a duration"),
        (["rebuild"], "cannot rebuild"),
        (["forget", "--client", "a"], "has no store. Check --data"),
        (["forget"], "Pass either --client, --session or --label"),
        (["up", "--upstream", "http://a", "--kafka", "nowhere"], "HOST:PORT"),
        (["up", "--upstream", "http://a", "--kafka-options", "{"], "JSON"),
        (["up", "--upstream", "http://a", "--max-request-bytes", "many"], "'many' is not a size"),
        (["up", "--upstream", "http://a", "--idle-timeout", "soon"], "--idle-timeout"),
        (["nope"], "nope"),
    ],
)
def test_invalid_input_is_one_line(argv: list[str], message: str, tmp_path: Path) -> None:
    done = streamgauge(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert message in done.stderr
    assert "-- (" not in done.stderr


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    (tmp_path / "streamgauge.toml").write_text('listen = "127.0.0.1:1"\nadmin = "127.0.0.1:2"\nworkers = 3\n')
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_ADMIN="127.0.0.1:22")
    assert 'listen = "127.0.0.1:1"  # file streamgauge.toml' in done.stdout
    assert 'admin = "127.0.0.1:22"  # environment STREAMGAUGE_ADMIN' in done.stdout
    assert "workers = 3  # file streamgauge.toml" in done.stdout


def test_unknown_setting_in_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "streamgauge.toml").write_text('lisen = "127.0.0.1:1"\n')
    done = streamgauge("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown setting 'lisen' in streamgauge.toml. Did you mean 'listen'?" in done.stderr


def test_unknown_variable_is_an_error_if_it_resembles_a_setting(tmp_path: Path) -> None:
    for command in (["status"], ["version"]):
        done = streamgauge(*command, cwd=tmp_path, STREAMGAUGE_WROKERS="2")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            "streamgauge: unknown environment variable STREAMGAUGE_WROKERS. Did you mean STREAMGAUGE_WORKERS?"
        )
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_BANANA="2")
    assert done.returncode == 0
    assert "# STREAMGAUGE_BANANA is ignored: it is not a setting." in done.stdout


def test_former_flag_names_the_new_one(tmp_path: Path) -> None:
    done = streamgauge("serve", "--quack-port", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "streamgauge: unknown option --quack-port. It is now --sql-listen.\n",
    )


def test_flag_of_another_command_names_the_commands_that_have_it(tmp_path: Path) -> None:
    done = streamgauge("top", "--objectives", "{}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "streamgauge: unknown option --objectives. It is an option of analyze or up.\n"


def test_an_option_for_a_port_names_the_address_of_the_command(tmp_path: Path) -> None:
    done = streamgauge("dashboard", "--port", "8501", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "streamgauge: unknown option --port. Pass --dashboard-listen HOST:PORT.\n"


def test_removed_setting_names_its_replacement(tmp_path: Path) -> None:
    reason = "It was removed: set OTEL_SDK_DISABLED=true."
    done = streamgauge("analyze", "--no-otlp", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"streamgauge: unknown option --no-otlp. {reason}\n")
    done = streamgauge("analyze", cwd=tmp_path, STREAMGAUGE_NO_OTLP="true")
    assert done.returncode == 2
    assert f"STREAMGAUGE_NO_OTLP. {reason}" in done.stderr
    (tmp_path / "streamgauge.toml").write_text("no_otlp = true\n")
    done = streamgauge("config", "check", cwd=tmp_path)
    assert f"unknown setting 'no_otlp' in streamgauge.toml. {reason} " in done.stderr


def test_config_check_prints_a_configuration_file(tmp_path: Path) -> None:
    flags = (
        "--upstream",
        "a=http://a/v1",
        "--upstream",
        "http://b:1",
        "--idle-timeout",
        "90s",
        "--server-metrics",
        "--data",
        'a"\\b',
    )
    printed = streamgauge("config", "check", *flags, cwd=tmp_path, STREAMGAUGE_CLIENT_KEY="planted-secret")
    values = tomllib.loads(printed.stdout)
    assert values["upstream"] == ["a=http://a:80/v1", "b=http://b:1"]
    assert (values["idle_timeout"], values["server_metrics"], values["data"]) == (90.0, True, 'a"\\b')
    assert "idle_timeout = 90.0  # flag --idle-timeout\n" in printed.stdout
    assert "# client_key = (set)  # environment STREAMGAUGE_CLIENT_KEY\n" in printed.stdout
    (tmp_path / "printed.toml").write_text(printed.stdout)
    again = streamgauge("config", "check", "--config", "printed.toml", cwd=tmp_path)
    assert tomllib.loads(again.stdout) == values, again.stderr
    assert "server_metrics = true  # file printed.toml\n" in again.stdout


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_SQL_TOKEN="planted-secret")
    assert "planted-secret" not in done.stdout + done.stderr
    assert "sql_token = (set)" in done.stdout


def test_config_check_hides_the_password_of_the_store(tmp_path: Path) -> None:
    store = "postgres:host=db password=planted-secret dbname=lake"
    done = streamgauge("config", "check", cwd=tmp_path, STREAMGAUGE_STORE=store)
    assert "host=db password=… dbname=lake" in done.stdout
    assert "planted-secret" not in done.stdout + done.stderr


def test_unwritable_data_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = streamgauge(
        "up", "--upstream", "http://a", "--data", str(tmp_path / "file" / "data"), cwd=tmp_path
    )
    assert done.returncode == 2
    assert "data folder" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_groups_commands_and_options(tmp_path: Path) -> None:
    root = help_of()
    assert streamgauge("--help", cwd=tmp_path).stdout == root.replace("Usage: cli ", "Usage: streamgauge ")
    assert all(f"\n{title}:\n" in root for title in SECTIONS)
    up = help_of("up")
    titles = [line for line in up.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Common options:", "Other options:"]
    assert len(re.findall(r"^  --", up, re.MULTILINE)) <= 14
    up = CliRunner().invoke(cli, ["up", "--help-all"]).output
    titles = [line for line in up.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "Common options:"
    assert all(title.startswith("Advanced: ") for title in titles[1:-1])
    assert up.index("--upstream") < up.index("Advanced: ") < up.index("--record-log-max-bytes")
    assert "[default: 2GiB]" in " ".join(up.split())


def test_help_imports_no_command(tmp_path: Path) -> None:
    code = (
        "import sys; from streamgauge.cli import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print({'asyncio', 'duckdb', 'polars', 'pydantic', 'streamlit', 'kafka', 'uvloop'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd())
    assert done.stdout.rstrip().endswith("set()"), done.stdout + done.stderr


@pytest.mark.parametrize("command", sorted(LAZY_COMMANDS))
def test_summary_is_the_first_sentence_of_the_commands_help(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    assert found.get_short_help_str(200) == LAZY_COMMANDS[command][1]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("s",), ["ship", "serve", "sql", "status", "silence", "simulate"]),
        (("sql", "--format", ""), ["table", "json", "csv", "parquet"]),
        (("tap", "--drain-"), ["--drain-timeout"]),
    ],
)
def test_bash_completes_commands_flags_and_values(words: tuple[str, ...], offered: list[str]) -> None:
    command = Path(sys.executable).with_name("streamgauge")
    script = (
        f'source <({command} completion bash); COMP_WORDS=(streamgauge "$@"); COMP_CWORD=$#;'
        f' _streamgauge_completion {command}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "-", *words], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.stderr, done.stdout.split()) == ("", offered)

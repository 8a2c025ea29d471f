"""Wrong values of every flag give one line that says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streamgauge.cli import cli
from streamgauge.settings.flags import SettingOption, allowed_values, flag, load
from streamgauge.settings.model import Settings
from streamgauge.settings.values import Duration, in_words, one_of

JARGON = re.compile(
    r"Input should|String should|Value error|valid (integer|number|string|boolean|range)|pattern|pydantic|Source|"
    r"Literal|ByteSize|SecretStr|\bdict\b|tuple|<=|\^|\\|\n"
)
WRONG = ("§", "-1x")
VALIDATED_TEXT = {
    "upstream", "listen", "admin", "metrics", "otlp_listen", "dashboard_listen", "sql_listen", "mcp_listen", "kafka", "store", "lake_path",
    "capture_content", "retain_events", "retain_streams", "retain_rollups",
}  # fmt: skip
"""Other settings of text accept any."""


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


OPTIONS = [
    pytest.param(parameter, id=f"{name} {parameter.opts[0]}")
    for name, command in commands(cli)
    for parameter in command.params
    if isinstance(parameter, click.Option)
    and not isinstance(parameter, SettingOption)
    and not isinstance(parameter.type, click.types.StringParamType | click.Path | click.types.BoolParamType)
]


def test_flags_with_allowed_values_are_found() -> None:
    assert len(OPTIONS) >= 20


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("wrong", [*WRONG, "nan", "-1"])
def test_wrong_value_of_a_flag_names_the_allowed_ones(option: click.Option, wrong: str) -> None:
    kind = option.type.types[0] if isinstance(option.type, click.Tuple) else option.type
    with pytest.raises(click.BadParameter) as refused:
        kind.convert(wrong, option, None)
    message = refused.value.format_message()
    assert option.opts[0] in message
    assert repr(wrong) in message
    assert not JARGON.search(message), message


def refusal(given: dict[str, object]) -> str:
    with pytest.raises(click.UsageError) as refused:
        load(given)
    return refused.value.format_message()


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_wrong_value_of_a_setting_names_the_allowed_ones(
    name: str, source: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STREAMGAUGE_CONFIG", raising=False)
    (folder / "streamgauge.toml").unlink(missing_ok=True)
    any_text = allowed_values(name) == "text in quotes" and name not in VALIDATED_TEXT
    for wrong in () if any_text else WRONG:
        if source == "flag":
            message = refusal({name: (wrong,) if name == "upstream" else wrong})
        elif source == "environment":
            monkeypatch.setenv(f"STREAMGAUGE_{name.upper()}", wrong)
            message = refusal({})
        else:
            (folder / "streamgauge.toml").write_text(f'{name} = "{wrong}"')
            message = refusal({})
        check(message, name)
    if source == "file":  # a wrong type
        (folder / "streamgauge.toml").write_text(f"{name} = [[1]]")
        check(refusal({}), name)
        assert name in ("store", "lake_path") or f"({source} streamgauge.toml)" in refusal({})


def check(message: str, name: str) -> None:
    assert flag(name) in message
    assert message.endswith(".")
    assert not JARGON.search(message), message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": "0"}, "--workers: '0' is not a whole number from 1 to 256."),
        ({"max_request_bytes": "many"}, "--max-request-bytes: 'many' is not a size such as 64MiB."),
        ({"record_log_max_bytes": "1kB"}, "--record-log-max-bytes: '1kB' is not a size of at least 1MiB, such as 64MiB."),
        ({"idle_timeout": "soon"}, "--idle-timeout: 'soon' is not a duration such as 500ms, 30s or 5m."),
        ({"stall_floor": "0"}, "--stall-floor: '0' is not a duration greater than 0, such as 500ms, 30s or 5m."),
        ({"idle_timeout": "inf"}, "--idle-timeout: 'inf' is not a duration such as 500ms, 30s or 5m."),
        ({"stall_factor": "0"}, "--stall-factor: '0' is not a number greater than 0."),
        ({"log_format": "xml"}, "--log-format: 'xml' is not text or json."),
        ({"relay": "go"}, "--relay: 'go' is not auto, native or python."),
        ({"capture_content": "ture"}, "--capture-content: 'ture' is not true, false, or globs of paths such as /v1/chat/*,/v1/messages."),
        ({"store": "foo"}, "--store must be sqlite or postgres:DSN, for example 'postgres:host=db dbname=streamgauge'."),
    ],
)  # fmt: skip
def test_messages(given: dict[str, object], message: str) -> None:
    assert refusal(given) == message


@pytest.mark.parametrize("name", ["client_key", "sql_token", "kafka_options", "store"])
def test_a_wrong_secret_is_not_printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("streamgauge.toml").write_text(f'{name} = ["planted"]')
    assert "planted" not in refusal({})


def test_a_duration_flag_accepts_units() -> None:
    duration = Duration(0.1, 300)
    assert (duration.convert("500ms", None, None), duration.convert("2", None, None)) == (0.5, 2.0)


def test_words_of_bounds() -> None:
    assert in_words("a number", above=0, most=9) == "a number greater than 0 of at most 9"
    assert one_of([1]) == "1"
    assert one_of("abc") == "a, b or c"

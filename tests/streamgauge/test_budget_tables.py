"""Budgets in the file and as flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click import UsageError
from click.testing import CliRunner

from streamgauge.analytics.schema.budgets import Budget
from streamgauge.cli import cli
from streamgauge.settings.flags import flags, load
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import analyze_options

FILE = """
price_file = "prices.csv"
labels = ["team=header:x-team"]

[[budgets]]
client = "search-*"
period = "month"
label = "team=a=b*"
amount = 500
currency = "USD"

[[budgets]]
name = "night shift"
model = "gpt-*"
period = "day"
amount = 2.5
currency = "EUR"
time_zone = "Europe/Berlin"
severity = "ticket"
"""
EXPECTED = (
    Budget(
        name="client=search-* team=a=b* per month", client="search-*", label="team=a=b*", period="month", amount=500, currency="USD"
    ),
    Budget(
        name="night shift", model="gpt-*", period="day", amount=2.5, currency="EUR", time_zone="Europe/Berlin", severity="ticket"
    ),
)  # fmt: skip
VALID: dict[str, Any] = {"period": "day", "amount": 1, "currency": "USD"}


def test_tables_of_the_file_as_config_check_prints_them_and_as_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "streamgauge.toml"
    file.write_text(FILE)
    (tmp_path / "prices.csv").write_text("model,input,output,currency\n*,3,15,USD\n")
    assert analyze_options(load({})).budgets == EXPECTED
    printed = CliRunner().invoke(cli, ["config", "check"])
    assert printed.exit_code == 0, printed.output
    file.write_text(printed.output)
    assert load({}).budgets == EXPECTED
    file.unlink()
    assert load({"budgets": tuple(flags(Settings(budgets=EXPECTED), ["budgets"])[1::2])}).budgets == EXPECTED


def test_budget_in_which_no_request_could_count_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "streamgauge.toml"
    for without, message in (
        ("price_file", "analyze: budgets need prices. Pass --price-file."),
        (
            "labels",
            "analyze: budget 'client=search-* team=a=b* per month': no label is called 'team'. Pass --label.",
        ),
    ):
        file.write_text(
            "".join(line for line in FILE.splitlines(keepends=True) if not line.startswith(without))
        )
        (tmp_path / "prices.csv").write_text("model,input,output,currency\n*,3,15,USD\n")
        found = CliRunner().invoke(cli, ["config", "check"])
        assert found.exit_code == 2
        assert message in found.output


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"period": "year"}, "period = 'year' is not day, week or month"),
        ({"period": None}, "period is missing: day, week or month"),
        ({"amount": 0}, "amount = 0 is not a number above 0"),
        ({"currency": "usd"}, "currency = 'usd' is not a currency code such as USD"),
        ({"time_zone": "Mars/Olympus"}, "time_zone = 'Mars/Olympus' is not a time zone such as Europe/Berlin"),
        ({"label": "search"}, "label = 'search' is not a label and a glob, such as team=search-*"),
        ({"team": "x"}, "unknown key 'team'. Allowed: name, model, gateway, client, label, period, amount, currency, time_zone, severity"),
    ],
)  # fmt: skip
def test_wrong_table_names_the_key_and_the_allowed_values(table: dict[str, object], message: str) -> None:
    given = {key: value for key, value in (VALID | table).items() if value is not None}
    with pytest.raises(UsageError) as wrong:
        load({"budgets": (given,)})
    assert wrong.value.message == f"--budgets: budget 1: {message}."

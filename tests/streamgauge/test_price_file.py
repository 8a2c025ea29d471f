"""`--price-file`: CSV and TOML give the same prices; a bad file is one clear line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamgauge.analytics.schema.tables import PRICES
from streamgauge.analytics.storage.replaced_tables import replace_rows
from streamgauge.cli import cli
from streamgauge.settings.model import Settings
from streamgauge.settings.price_file import read_prices
from streamgauge.settings.process_options import analyze_options
from tests.analytics.schema.prices import price
from tests.analytics.stores import ask, new_store

CSV = """model, input, cached_input, output, currency
gpt-4o-mini*,0.15,0.075,0.6,USD
"claude-*",3,,15,USD

"""
TOML = """
[[prices]]
model = "gpt-4o-mini*"
input = 0.15
cached_input = 0.075
output = 0.6
currency = "USD"
[[prices]]
model = "claude-*"
input = 3
output = 15
currency = "USD"
"""

EXPECTED = (price("gpt-4o-mini*", 0.15, 0.6, cached_input=0.075), price("claude-*", 3.0, 15.0))


@pytest.mark.parametrize(("name", "text"), [("p.csv", CSV), ("p.csv", "\ufeff" + CSV), ("p.toml", TOML)])
def test_csv_and_toml_give_the_same_prices(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_prices(path) == EXPECTED
    assert analyze_options(Settings(price_file=path)).prices == EXPECTED


ROW = "m,1,1,2,USD\n"
HEADER = "model,input,cached_input,output,currency\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "", "line 1: no 'model'"),
        ("p.csv", "model,input,output\n", "line 1: no 'currency'"),
        ("p.csv", "model,input,output,currency,extra\n", "line 1: 'extra' is unknown or repeated"),
        ("p.csv", "model,input,output,currency,model\n", "line 1: 'model' is unknown or repeated"),
        ("p.csv", HEADER + ROW + "n,x,1,2,USD\n", "line 3: input = 'x' is not a price"),
        ("p.csv", HEADER + "n,1,1,-2,USD\n", "line 2: output = '-2' is not a price"),
        ("p.csv", HEADER + "n,nan,1,2,USD\n", "line 2: input = 'nan' is not a price"),
        ("p.csv", HEADER + "n,,1,2,USD\n", "line 2: input = None is not a price"),
        ("p.csv", HEADER + "n,1,1,2,USD,9\n", "line 2: it has more values than the header"),
        ("p.csv", HEADER + "n,1,1,2,dollars\n", "line 2: currency = 'dollars' is not a code such as USD"),
        (
            "p.csv",
            HEADER.strip() + ",speed\nn,1,1,2,USD,very fast\n",
            "line 2: speed = 'very fast' is not a word",
        ),
        (
            "p.csv",
            HEADER.strip() + ",service_tier\nn,1,1,2,USD,\nn,1,1,2,USD,flex\n",
            "line 3: it never applies, because line 2",
        ),
        ("p.csv", HEADER + "gpt-[45],1,1,2,USD\n", "line 2: model = 'gpt-[45]' is not a name"),
        ("p.csv", HEADER + ",1,1,2,USD\n", "line 2: model = None is not a name"),
        ("p.toml", "[[price]]\n", "it has no [[prices]] tables"),
        ("p.toml", "[[prices]]\nmodel = 'm'\n", "price 1: no 'input'"),
        ("p.toml", "prices = [", "Invalid"),
        ("p.toml", "prices = " + "[" * 3000, "it is nested too deeply"),
        ("p.toml", TOML.replace("0.15", "true"), "price 1: input = True is not a price"),
    ],
)
def test_bad_file_is_reported_by_row(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"cannot use the price file {path}: {message}")):
        read_prices(path)


def test_price_of_a_tier_comes_before_the_price_of_all(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(HEADER.strip() + ",service_tier\nn,2,1,2,USD,priority\nn,1,1,2,USD,\n")
    assert [(row.service_tier, row.input) for row in read_prices(path)] == [("priority", 2), (None, 1)]


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"cannot read the price file .*: No such file or directory. Check --price-file.",
    ):
        read_prices(tmp_path / "none.csv")


def test_config_check_reports_the_prices_or_the_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(CSV)
    good = CliRunner().invoke(cli, ["config", "check", "--price-file", str(path)])
    assert (good.exit_code, f"# {path} has 2 prices." in good.output) == (0, True)
    path.write_text(HEADER + "n,x,1,2,USD\n")
    bad = CliRunner().invoke(cli, ["config", "check", "--price-file", str(path)])
    assert bad.exit_code == 2
    assert "line 2: input = 'x' is not a price. Write a number per million tokens." in bad.output


def test_start_of_analytics_replaces_the_prices(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    try:
        for prices in (EXPECTED, EXPECTED[1:], ()):
            replace_rows(store, PRICES, prices)
            assert [row[1] for row in ask(store, "FROM prices ORDER BY priority")] == [
                p.model for p in prices
            ]
    finally:
        store.close()

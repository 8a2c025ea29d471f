"""The setting `price_file`: a CSV or TOML file with prices of tokens, as `Price`s.

CSV has a header line with the names of `COLUMNS`, in any order; TOML has a table `[[prices]]` per row. `cached_input` is optional
and defaults to `input`. Prices are per million tokens.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from streamgauge.analytics.schema.prices import COLUMNS, MAX_PRICES, Price
from streamgauge.setting_tables import problem

MAX_BYTES = 4 * 2**20
_REQUIRED = tuple(name for name in COLUMNS if name != "cached_input")
_Cost = Annotated[
    float, Field(ge=0, le=1e9, allow_inf_nan=False, description="a price. Write a number per million tokens")
]


class PriceRow(BaseModel):
    """One row. The description of a column says what is allowed."""

    model: str = Field(pattern=r"^[^\s\[\]\\]{1,256}$", description="a name with the wildcards * and ?")
    input: _Cost
    cached_input: _Cost | None = Field(None, description="a price. Write a number per million tokens")
    output: _Cost
    currency: str = Field(pattern="^[A-Z]{3}$", description="a code such as USD")

    def price(self) -> Price:
        """The price, with the default of `cached_input`."""
        cached = self.input if self.cached_input is None else self.cached_input
        return Price(self.model, self.input, cached, self.output, self.currency)


def read_prices(path: Path) -> tuple[Price, ...]:
    """The prices in the file, in its order. Raises ValueError with one line that names the file and the row."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB. Remove rows.")
        text = path.read_text("utf-8-sig")
        is_toml = path.suffix.lower() == ".toml"
        rows = list(_toml_rows(text) if is_toml else _csv_rows(text))
        if len(rows) > MAX_PRICES:
            raise ValueError(f"it has {len(rows)} prices, above the limit of {MAX_PRICES}. Use globs.")
        # Values of CSV are texts. TOML has types, so a text or `true` is no number there.
        return tuple(_price(where, row, strict=is_toml) for where, row in rows)
    except OSError as e:
        raise ValueError(f"cannot read the price file {path}: {e.strerror}. Check --price-file.") from None
    except (ValueError, csv.Error) as e:
        raise ValueError(f"cannot use the price file {path}: {e}") from None


def _csv_rows(text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True, strict=True)
    names = [name.strip() for name in reader.fieldnames or ()]
    _check_names("line 1", names)
    reader.fieldnames = names
    for row in reader:
        where = f"line {reader.line_num}"
        if None in row:
            raise ValueError(f"{where}: it has more values than the header. Quote values with commas.")
        yield where, {name: (value or "").strip() or None for name, value in row.items()}


def _toml_rows(text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    tables = tomllib.loads(text)
    rows = tables.get("prices")
    if set(tables) != {"prices"} or not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise ValueError("it has no [[prices]] tables, or others. Write one [[prices]] table per row.")
    for number, row in enumerate(rows, 1):
        _check_names(f"price {number}", row)
        yield f"price {number}", row


def _check_names(where: str, names: Iterable[str]) -> None:
    given = list(names)
    missing = [name for name in _REQUIRED if name not in given]
    unknown = [name for name in given if name not in COLUMNS]
    if missing or unknown or len(set(given)) < len(given):
        problem = f"no {missing[0]!r}" if missing else f"{(unknown or given)[0]!r} is unknown or repeated"
        raise ValueError(f"{where}: {problem}. The names are {', '.join(COLUMNS)}.")


def _price(where: str, row: Mapping[str, Any], *, strict: bool) -> Price:
    try:
        return PriceRow.model_validate(row, strict=strict).price()
    except ValidationError as e:
        raise ValueError(f"{where}: {problem(e, PriceRow)}.") from None

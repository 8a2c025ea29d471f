"""The setting `price_file`: a CSV or TOML file with prices, as `Price`s.

CSV has a header line with the names of `COLUMNS`, in any order; TOML has a table `[[prices]]` per row. Only `model`, `input`, `output`
and `currency` are required; `DEFAULTS` says which price another one has. Prices are per million tokens, and per 1,000 web searches.
"""

from __future__ import annotations

import csv
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamgauge.analytics.schema.prices import COLUMNS, DEFAULTS, MAX_PRICES, SERVED, Price
from streamgauge.settings.tables import model_of, problem

MAX_BYTES = 8 * 2**20
_REQUIRED = ("model", "input", "output", "currency")
_MODEL = model_of(Price)


def read_prices(path: Path) -> tuple[Price, ...]:
    """The prices in the file, in its order. Raises ValueError with one line that names the file and the row."""
    try:
        return check_rows(read_rows(path), strict=_is_toml(path))
    except OSError as e:
        raise ValueError(f"cannot read the price file {path}: {e.strerror}. Check --price-file.") from None
    except ValueError as e:
        raise ValueError(f"cannot use the price file {path}: {e}") from None


def check_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], *, strict: bool = False) -> tuple[Price, ...]:
    """The prices of rows, each with its place. `strict`: a text is no number. Raises ValueError."""
    prices = [(where, _price(where, row, strict=strict)) for where, row in rows]
    if len(prices) > MAX_PRICES:
        raise ValueError(f"it has {len(prices)} prices, above the limit of {MAX_PRICES}. Use globs.")
    _check_order(prices)
    return tuple(price for _, price in prices)


def _is_toml(path: Path) -> bool:
    # Values of CSV are texts. TOML has types, so a text or `true` is no number there.
    return path.suffix.lower() == ".toml"


def read_rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """The place and the values of each row, as written. Raises OSError and ValueError."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB. Remove rows.")
    text = path.read_text("utf-8-sig")
    try:
        return list(_toml_rows(text) if _is_toml(path) else _csv_rows(text))
    except csv.Error as e:
        raise ValueError(str(e)) from None


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
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply. Write one [[prices]] table per row.") from None
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
    values = dict.fromkeys(_REQUIRED) | {name: value for name, value in row.items() if value is not None}
    values = {"web_search": 0.0} | values
    for name, instead in DEFAULTS.items():
        values.setdefault(name, values[instead])
    try:
        return Price(**_MODEL.model_validate(values, strict=strict).model_dump())
    except ValidationError as e:
        raise ValueError(f"{where}: {problem(e, _MODEL)}.") from None


def _check_order(prices: Iterable[tuple[str, Price]]) -> None:
    """Raise ValueError for a row that never applies because an earlier one of the same model always does."""
    earlier = defaultdict[tuple[str, str | None], list[tuple[str, Price]]](list)
    for where, price in prices:
        if price.valid_from and price.valid_until and price.valid_from >= price.valid_until:
            raise ValueError(f"{where}: valid_until is not after valid_from.")
        same = earlier[price.model, price.source]
        for first, other in same:
            if (
                (other.above or 0) <= (price.above or 0)
                and (other.valid_from is None or (price.valid_from or _FIRST) >= other.valid_from)
                and (other.valid_until is None or (price.valid_until or _LAST) <= other.valid_until)
                and all(getattr(other, name) in (None, getattr(price, name)) for name in SERVED)
            ):
                raise ValueError(
                    f"{where}: it never applies, because {first} of the same model does. Put it first."
                )
        same.append((where, price))


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

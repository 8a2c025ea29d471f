"""`streamgauge prices`: import price catalogs into the price file, and show the models without a price."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import click

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.render import render
from streamgauge.analytics.schema.prices import COLUMNS
from streamgauge.analytics.storage.location import locate
from streamgauge.settings.flags import load, load_with_running_parts, settings_options
from streamgauge.settings.price_catalogs import catalog_rows, merged
from streamgauge.settings.price_file import check_rows, read_rows
from streamgauge.settings.values import format_option, print_report

MAX_CATALOG_BYTES = 64 * 2**20
UNPRICED = """
SELECT unpriced_model AS model, gateway, count(*) AS requests, sum(input_tokens)::BIGINT AS input_tokens,
    sum(output_tokens)::BIGINT AS output_tokens, max(started_at) AS last_seen
FROM spend WHERE unpriced_model IS NOT NULL AND source IS NOT NULL GROUP BY ALL ORDER BY requests DESC, model, gateway LIMIT 1000
"""


@click.group("prices")
def prices_command() -> None:
    """Import price catalogs, and show the models without a price.

    Costs are estimates from your price file, not a bill.
    """


@prices_command.command("import")
@click.argument("catalog", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE")
@click.option(
    "--provider", "providers", multiple=True, metavar="NAME",
    help="Read the prices of this provider only, such as openai; repeatable.",
)  # fmt: skip
@click.option(
    "--valid-from", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE",
    help="Day (UTC) from which changed prices apply.  [default: today]",
)  # fmt: skip
@settings_options("price_file")
@format_option()
def import_command(
    catalog: Path,
    providers: tuple[str, ...],
    valid_from: dt.datetime | None,
    form: str,
    price_file: Path | None,
) -> int:
    """Import LiteLLM's price map or models.dev's catalog into the price file.

    Rows that you wrote stay as they are and come first. Rows of an earlier import of the same catalog keep the prices that did not
    change. A changed price applies from --valid-from, and the former one until then. Analytics reads the file when it starts.
    """
    path = load({"price_file": price_file}).price_file
    if path is None:
        raise click.UsageError(
            "no price file is set. Pass --price-file, or set price_file in the configuration."
        )
    if path.suffix.lower() == ".toml":
        raise click.UsageError(f"cannot import into {path}: comments of TOML would be lost. Use a CSV file.")
    day = (valid_from or dt.datetime.now(dt.UTC)).date().isoformat()
    try:
        own = [row for _, row in read_rows(path)] if path.exists() else []
        source, imported = catalog_rows(_json(catalog), providers)
    except OSError as e:
        raise click.ClickException(f"cannot read {path}: {e.strerror}. Check --price-file.") from None
    except ValueError as e:
        raise click.ClickException(
            f"cannot import {catalog} into {path}: {e.args[0].rstrip('.')}. Check the file."
        ) from None
    if not imported:
        of = f" of {', '.join(providers)}" if providers else ""
        raise click.ClickException(
            f"cannot import {catalog}: it has no prices per token{of}. Check --provider."
        )
    rows, changed = merged(own, imported, source, day)
    try:
        check_rows([(f"{row['model']} ({row.get('source', 'your row')})", row) for row in rows])
        _write(path, rows)
    except (ValueError, OSError) as e:
        raise click.ClickException(f"cannot write {path}: {e}") from None
    found = {
        "file": str(path),
        "source": source,
        "imported": len(imported),
        "changed": changed,
        "rows": len(rows),
    }
    text = f"{path}: {len(imported)} prices from {source}, {changed} changed from {day}, {len(rows)} rows"
    print_report(found, text, form)
    return 0


def _json(path: Path) -> Any:
    if path.stat().st_size > MAX_CATALOG_BYTES:
        raise ValueError(f"it is larger than {MAX_CATALOG_BYTES // 2**20} MiB")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise ValueError(f"it is no JSON: {e}") from None


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file as a whole."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text.getvalue(), "utf-8")
    fresh.replace(path)


@prices_command.command("check")
@settings_options("data", "store")
@format_option()
def check_command(form: str, **given: Any) -> int:
    """Show the models of stored requests without a price.

    The prices are those with which analytics last started. Exit code 0 if all requests have a price, else 1.
    """
    settings = load_with_running_parts(given)
    try:
        with contextlib.closing(QueryPool(locate(settings.store, settings.data), untrusted=False)) as tables:
            rows = tables.query(UNPRICED)
    except QueryError as e:
        raise click.ClickException(str(e)) from None
    click.echo(render(rows, form), nl=False)
    return int(not rows.is_empty())

"""`streamgauge export --trace`: write the requests of a store as a trace without text, for benchmark tools."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from streamgauge import __version__

if TYPE_CHECKING:
    from streamgauge.analytics.storage.location import StoreLocation

MAX_ROWS, TIMEOUT_S = 10_000_000, 600.0
ABOUT = ".about.json"
"""Suffix of the file next to a trace. It has the block size and the counts of omitted and estimated requests."""


def export_trace(
    location: StoreLocation,
    form: str,
    path: Path,
    *,
    since: datetime | None,
    until: datetime | None,
    block_size: int | None,
    by_session: bool,
) -> dict[str, Any]:
    """Write the file of a Mooncake trace, or the folder of a Weka trace. Returns its path and the content of the `ABOUT` file.

    Raises OSError, QueryError.
    """
    from streamgauge.analytics.query.reader import Reader
    from streamgauge.analytics.reports.workload_traces import FORMATS, Traced, Tracer

    if path.exists():
        raise OSError(f"cannot write {path}: it exists. Choose another name, or remove it.")
    found = Traced(block_size or FORMATS[form])
    with contextlib.closing(Reader(location)) as reader:
        query = partial(reader.query, max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
        tracer = Tracer(query, found, since, until)
        if form == "mooncake":
            with _new_file(path) as file:
                for line in tracer.mooncake(by_session=by_session):
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
        else:
            path.mkdir(mode=0o700)
            for number, conversation in enumerate(tracer.weka(), 1):
                with _new_file(path / f"conversation-{number:06d}.json") as file:
                    json.dump(conversation, file, separators=(",", ":"))
    about = {"format": form, **asdict(found), "streamgauge": __version__}
    with _new_file(path.with_name(path.name + ABOUT)) as file:
        json.dump(about, file, indent=1)
    return {"path": str(path), **about}


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    """A private file. It has this name only after it is complete."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "w", opener=partial(os.open, mode=0o600)) as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)

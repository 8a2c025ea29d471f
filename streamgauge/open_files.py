"""`streamgauge open`: the requests in files, in a data folder and on the dashboard."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

import click
import cloup

from streamgauge.analytics.decoding.content_coding import BodyDecoder
from streamgauge.analytics.extras import require
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import CATALOG_FILE, SQLITE, locate
from streamgauge.flags import load, own_command, settings_options
from streamgauge.ingest.capture.packet_files import is_packet_file
from streamgauge.ingest.capture.pcap import read_pcap
from streamgauge.ingest.files import har
from streamgauge.ingest.files.exchange_log import Exchange, ExchangeLog, exchange_log
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.record_log.reader_cursors import highest_cursor
from streamgauge.ingest.records import coding_of
from streamgauge.process_options import analyze_options, client_key, redactor, tap_options
from streamgauge.recorded_response import exchange_of_file
from streamgauge.run import free_address, runs_folder, say, summary
from streamgauge.settings import Settings
from streamgauge.values import Address

REPORT_EVERY_S = 2.0
MAX_PROBLEMS = 20
"""Lines about unreadable entries of one file."""
_SLICE_BYTES, _START_BYTES = 2**20, 1024
_MAX_RATIO = 10_000
"""A file that grows more when it is decompressed is a bomb."""
_UNUSED = ("kafka", "lake_path", "otlp_listen", "alert_webhook", "alert_routing_key")
_RETENTION = ("retain_events", "retain_streams", "retain_rollups")


@cloup.command("open")
@cloup.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@cloup.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Data folder.  [default: a folder of the first file's name below ~/.local/share/streamgauge/runs]",
)  # fmt: skip
@cloup.option("--no-dashboard", is_flag=True, help="Do not start the dashboard.")
@cloup.option(
    "--dashboard-listen", type=Address(), metavar="HOST:PORT", help="Address of the dashboard.  [default: any free port of this machine]"
)  # fmt: skip
@settings_options("capture_content", "price_file")
def open_command(
    files: tuple[Path, ...], data: Path | None, no_dashboard: bool, dashboard_listen: str | None, **given: Any
) -> int:
    """Measure the requests in files: HAR, packets, recorded responses.

    \b
    streamgauge open session.har
    streamgauge open --no-dashboard --data captured/ *.sse

    Reads HAR files of browsers, Playwright and mitmproxy, pcap and pcapng files, and files that `streamgauge read` decodes; also compressed
    by gzip or zstd. Stores their requests in a data folder, prints a summary on stderr, and runs the dashboard until Ctrl-C.
    """
    require("duckdb" if no_dashboard else "streamlit")
    name = f"{files[0].name.partition('.')[0]}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    own = runs_folder() / name
    settings = load({"data": data or own, **given})
    # Only what the files hold: no other log or store, no retention of old traffic, no messages about it.
    only = {**dict.fromkeys(_UNUSED), **dict.fromkeys(_RETENTION, "forever"), "store": SQLITE, "metrics": ""}
    settings, data = settings.model_copy(update=only), settings.data
    os.environ["OTEL_SDK_DISABLED"] = "true"
    if (data / CATALOG_FILE).exists():
        raise click.UsageError(f"{data} has other requests already. Pass another folder with --data.")
    is_new = data == own and not data.exists()
    prepare_data_folder(data)  # before the key, which must be in a private folder
    log = asyncio.run(_read_all(files, settings))
    if not log.exchanges:
        if is_new:
            shutil.rmtree(data)
        raise click.ClickException("no request to a model was found in the files")
    from streamgauge.analytics.main import run_until  # imports much that an error before does not need

    if run_until(analyze_options(settings), _Stored(data / "log", log)):
        raise OSError(f"cannot store the requests in {data}")
    since, last = (datetime.fromtimestamp(ns // 10**9, UTC) for ns in (log.first_ns, log.last_ns))
    until = last + timedelta(seconds=1)
    for line in summary(locate(SQLITE, data), Selection(since=since, until=until)):
        say(line)
    if not no_dashboard:
        _run_dashboard(data, dashboard_listen or free_address(), since, until)
    query = "SELECT started_at, gateway, coalesce(request_model, response_model) AS model, outcome, output_tokens FROM streams"
    say(f"  query      {own_command()} sql --data {shlex.quote(str(data))} {shlex.quote(query)}")
    return 0


class _Progress:
    """Writes a line at most every `REPORT_EVERY_S`."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + REPORT_EVERY_S

    def __call__(self, line: str) -> None:
        if time.monotonic() > self._due_s:
            self._due_s = time.monotonic() + REPORT_EVERY_S
            say(line)


async def _read_all(files: Iterable[Path], settings: Settings) -> ExchangeLog:
    """Write the exchanges of the files into the log. A coroutine, because recorders belong to an event loop."""
    async with exchange_log(tap_options(settings), redactor(settings), client_key(settings)) as log:
        for file in files:
            try:
                _read(file, log)
            except (OSError, ValueError) as e:
                say(f"{file}: cannot be read: {getattr(e, 'strerror', None) or e}")
    return log


def _read(file: Path, log: ExchangeLog) -> None:
    """Raises OSError, and ValueError for an invalid URL in a sidecar."""
    if is_packet_file(file):
        _read_packets(file, log)
        return
    content = _decompressed(file)
    text = content.decode("utf-8-sig", "replace")
    if har.is_har(text):
        _read_har(file, text, log)
    elif not content:
        say(f"{file}: the file is empty")
    elif (
        file.suffix == ".har"
        or b"\0" in content[:_START_BYTES]
        or (exchange := exchange_of_file(file, content)) is None
    ):
        say(f"{file}: neither a HAR file with entries, nor packets, nor a recorded response")
    else:
        log.add(exchange, file.name)
        say(f"{file}: a recorded response. It has no times, so latencies are unknown")


def _read_packets(file: Path, log: ExchangeLog) -> None:
    progress = _Progress()
    report = read_pcap(
        file, log.recorders(file.name, "reads"), log.flush,
        lambda read_bytes, size_bytes: progress(f"{file}: {100 * read_bytes // max(1, size_bytes)} % read"),
    )  # fmt: skip
    for line in report.lines:
        say(f"{file}: {line}")


def _read_har(file: Path, text: str, log: ExchangeLog) -> None:
    found_kinds, untimed, progress = Counter[type](), 0, _Progress()
    for number, (end, found) in enumerate(har.exchanges(text, file.stat().st_mtime_ns), 1):
        if isinstance(found, Exchange):
            log.add(found, file.name)
            untimed += found.times != "reads"
        elif found is not None and found_kinds[ValueError] < MAX_PROBLEMS:
            say(f"{file}: entry {number} cannot be read: {found}")
        found_kinds[type(found)] += 1
        progress(f"{file}: {100 * end // len(text)} % read, {found_kinds[Exchange]:,} requests")
    if (more := found_kinds[ValueError] - MAX_PROBLEMS) > 0:
        say(f"{file}: {more:,} more entries cannot be read")
    read, left_out = found_kinds[Exchange], found_kinds[type(None)]
    say(
        f"{file}: {read:,} requests read, {left_out:,} left out (neither an event stream nor a POST with JSON)"
    )
    if untimed:
        say(
            f"{file}: {untimed:,} without times of events: their TTFT, inter-token latency and rates are unknown"
        )


def _decompressed(file: Path) -> bytes:
    content = file.read_bytes()
    if (coding := coding_of(content)) is None:
        return content
    decoder = BodyDecoder(coding, max_ratio=_MAX_RATIO)
    parts = [decoder.feed(content[at : at + _SLICE_BYTES]) for at in range(0, len(content), _SLICE_BYTES)]
    if decoder.broken or decoder.bomb or decoder.unfinished:
        say(f"{file}: its {coding} data is damaged. Only its beginning was read")
    return b"".join(parts)


class _Stored(threading.Event):
    """Set once analytics has stored a log up to its end."""

    def __init__(self, folder: Path, log: ExchangeLog) -> None:
        super().__init__()
        self._folder, self._log, self._progress = folder, log, _Progress()

    def is_set(self) -> bool:
        stored = highest_cursor(self._folder, self._log.partition)
        self._progress(f"{100 * stored // max(1, self._log.end)} % analysed")
        return stored >= self._log.end


def _run_dashboard(data: Path, address: str, since: datetime, until: datetime) -> NoReturn:
    """Become the dashboard: the memory of the analysis is free then."""
    ends = {"from": since, "until": until + timedelta(minutes=1)}  # the address has whole minutes
    shown = {"range": "custom", **{key: f"{at:%Y-%m-%dT%H:%M}" for key, at in ends.items()}, "refresh": "off"}
    say(f"  dashboard  http://{address}/?{urlencode(shown, safe=':')}")
    command = [sys.executable, "-P", "-m", "streamgauge", "dashboard", "--data", str(data), "--store", SQLITE]
    os.execv(command[0], [*command, "--dashboard-listen", address])  # noqa: S606

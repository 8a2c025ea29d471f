"""`streamgauge open`: the requests in files, in a data folder and on the dashboard."""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

import click
import cloup

from streamgauge.analytics.extras import require
from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.reports.formatting import plural
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.location import CATALOG_FILE, SQLITE, locate
from streamgauge.commands.background import own_command
from streamgauge.commands.request_summary import summarize
from streamgauge.commands.run import free_address, runs_folder, say
from streamgauge.ingest.capture.packet_files import is_packet_file
from streamgauge.ingest.capture.pcap import read_pcap
from streamgauge.ingest.files import har
from streamgauge.ingest.files.exchange_log import Exchange, ExchangeLog, exchange_log
from streamgauge.ingest.input_file import InputFile
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.record_log.reader_cursors import highest_cursor
from streamgauge.python_api.recorded_response import exchange_of_file
from streamgauge.settings.flags import load, settings_options
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import analyze_options, client_key, recording_options, redactor
from streamgauge.settings.values import Address

REPORT_EVERY_S = 2.0
MAX_PROBLEMS = 20
"""Lines about unreadable entries of one file."""
_START_BYTES = 1024
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
    is_new = data is None and not own.exists()
    try:
        data, since, until, damaged = store_files(files, data or own, given)
    except click.ClickException:
        if is_new:
            shutil.rmtree(own, ignore_errors=True)
        raise
    try:
        for line in summarize(locate(SQLITE, data), Selection(since=since, until=until)).lines:
            say(line)
    except QueryError as e:
        say(f"  no summary: {e}")
    if not no_dashboard:
        _run_dashboard(data, dashboard_listen or free_address(), since, until)
    query = "SELECT started_at, gateway, coalesce(request_model, response_model) AS model, outcome, output_tokens FROM streams"
    say(f"  query      {own_command()} sql --data {shlex.quote(str(data))} {shlex.quote(query)}")
    check_whole(files, damaged)
    return 0


def store_files(
    files: Sequence[Path], folder: Path, given: Mapping[str, Any]
) -> tuple[Path, datetime, datetime, list[Path]]:
    """Store the requests of files in a data folder. `given`: settings.

    Returns the data folder, the range of the requests, and the files that cannot be read, or not whole.

    Raises click.UsageError if the folder has other requests, click.ClickException if the files have none, OSError.
    """
    settings = load({"data": folder, **given})
    # Only what the files hold: no other log or store, no retention of old traffic, no messages about it.
    only = {**dict.fromkeys(_UNUSED), **dict.fromkeys(_RETENTION, "forever"), "store": SQLITE, "metrics": ""}
    settings, data = settings.model_copy(update=only), settings.data
    os.environ["OTEL_SDK_DISABLED"] = "true"
    if (data / CATALOG_FILE).exists():
        raise click.UsageError(f"{data} has other requests already. Pass another folder with --data.")
    prepare_data_folder(data)  # before the key, which must be in a private folder
    log, damaged = asyncio.run(_read_all(files, settings))
    if not log.exchanges:
        raise click.ClickException("no request to a model was found in the files")
    from streamgauge.analytics.main import run_until  # imports much that an error before does not need

    stored = _Stored(data / "log", log)
    if run_until(analyze_options(settings), stored):
        raise OSError(f"cannot store the requests in {data}")
    stored.progress.end()
    since, last = (datetime.fromtimestamp(ns // 10**9, UTC) for ns in (log.first_ns, log.last_ns))
    return data, since, last + timedelta(seconds=1), damaged


def check_whole(files: Sequence[Path], damaged: Sequence[Path]) -> None:
    """Raises click.ClickException, at the end of a command, if some of the files could not be read."""
    if damaged:
        raise click.ClickException(
            f"not all of {len(files):,} files could be read: {', '.join(map(str, damaged))}"
        )


class _Progress:
    """Writes a line at most every `REPORT_EVERY_S`, and 100 % at the end."""

    def __init__(self, before: str, after: str) -> None:
        self._before, self._after = before, after
        self._due_s, self._shown = time.monotonic() + REPORT_EVERY_S, False

    def __call__(self, done: int, all_of_it: int) -> None:
        if time.monotonic() > self._due_s:
            self._due_s, self._shown = time.monotonic() + REPORT_EVERY_S, True
            say(f"{self._before}{100 * min(done, all_of_it - 1) // max(1, all_of_it)} % {self._after}")

    def end(self) -> None:
        if self._shown:
            say(f"{self._before}100 % {self._after}")


async def _read_all(files: Iterable[Path], settings: Settings) -> tuple[ExchangeLog, list[Path]]:
    """Write the exchanges of the files into the log. A coroutine, because recorders belong to an event loop.

    Also returns the files that cannot be read, or not whole.
    """
    damaged = []
    async with exchange_log(recording_options(settings), redactor(settings), client_key(settings)) as log:
        for file in files:
            progress = _Progress(f"{file}: ", "read")
            try:
                lines, is_whole = _read(file, log, progress)
            except (OSError, ValueError) as e:
                lines, is_whole = [f"cannot be read: {getattr(e, 'strerror', None) or e}"], False
            if is_whole:
                progress.end()
            else:
                damaged.append(file)
            for line in lines:
                say(f"{file}: {line}")
    return log, damaged


def _read(file: Path, log: ExchangeLog, progress: _Progress) -> tuple[list[str], bool]:
    """What to say about a file, and whether it is whole. Raises OSError, and ValueError for an invalid URL in a sidecar."""
    if is_packet_file(file):
        report = read_pcap(file, log.recorders(file.name, "reads"), log.flush, progress)
        return report.lines, not report.problems
    try:
        return _read_har(file, log, progress)
    except har.NotHar:
        return _read_response(file, log, progress)


def _read_har(file: Path, log: ExchangeLog, progress: _Progress) -> tuple[list[str], bool]:
    counts, problems, untimed, silent, damage = Counter[type](), list[str](), 0, 0, None
    with InputFile(file, progress) as source:
        try:
            for number, found in enumerate(har.exchanges(source, file.stat().st_mtime_ns), 1):
                counts[type(found)] += 1
                if isinstance(found, Exchange):
                    log.add(found, file.name)
                    untimed += found.times != "reads"
                    silent += found.status == 101 and not found.frames
                elif found is not None and len(problems) < MAX_PROBLEMS:
                    problems.append(f"entry {number} cannot be read: {found}")
        except har.Damaged as e:
            damage = source.problem or str(e)
    read, left_out = counts[Exchange], counts[type(None)]
    first = f"{read:,} {plural(read, 'request')} read, {left_out:,} left out (of a cache, or not over the network)"
    lines = [
        first if damage is None else f"{first}; the rest of the file cannot be read: {damage}",
        *problems,
    ]
    if (more := counts[ValueError] - MAX_PROBLEMS) > 0:
        lines.append(f"{more:,} more entries cannot be read")
    if silent:
        lines.append(f"{silent:,} WebSockets without messages: the file does not have their answers")
    if untimed:
        lines.append(
            f"{untimed:,} without times of events: their TTFT, inter-token latency and rates are unknown"
        )
    return lines, damage is None


def _read_response(file: Path, log: ExchangeLog, progress: _Progress) -> tuple[list[str], bool]:
    with InputFile(file, progress) as source, io.BufferedReader(source) as reader:
        content = reader.read(har.MAX_ENTRY_BYTES + 1)
        damage = source.problem
    if len(content) > har.MAX_ENTRY_BYTES:
        content, damage = content[:-1], f"it has more than {har.MAX_ENTRY_BYTES >> 20} MiB"
    lines = [] if damage is None else [f"the rest of the file cannot be read: {damage}"]
    if not content:
        return lines or ["the file is empty"], False
    is_other = file.suffix == ".har" or b"\0" in content[:_START_BYTES]
    if is_other or (exchange := exchange_of_file(file, content)) is None:
        return [*lines, "neither a HAR file with entries, nor packets, nor a recorded response"], False
    log.add(exchange, file.name)
    return [*lines, "a recorded response. It has no times, so latencies are unknown"], damage is None


class _Stored(threading.Event):
    """Set once analytics has stored a log up to its end."""

    def __init__(self, folder: Path, log: ExchangeLog) -> None:
        super().__init__()
        self._folder, self._log, self.progress = folder, log, _Progress("", "analysed")

    def is_set(self) -> bool:
        stored = highest_cursor(self._folder, self._log.partition)
        self.progress(stored, self._log.end)
        return stored >= self._log.end


def _run_dashboard(data: Path, address: str, since: datetime, until: datetime) -> NoReturn:
    """Become the dashboard: the memory of the analysis is free then."""
    ends = {"from": since, "until": until + timedelta(minutes=1)}  # the address has whole minutes
    shown = {"range": "custom", **{key: f"{at:%Y-%m-%dT%H:%M}" for key, at in ends.items()}, "refresh": "off"}
    say(f"  dashboard  http://{address}/?{urlencode(shown, safe=':')}")
    command = [sys.executable, "-P", "-m", "streamgauge", "dashboard", "--data", str(data), "--store", SQLITE]
    os.execv(command[0], [*command, "--dashboard-listen", address])  # noqa: S606

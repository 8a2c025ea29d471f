"""The n-th system call of a process fails, for n = 1, 2, … until a run has none. Clients, accounts and rows stay right."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.tap.relay.choice import native_relay
from tests.analytics.storage.former_stores import VERSIONS, content, figures_of, former_figures
from tests.faults import analytics, record_log, ship, tap
from tests.faults.calls import ON_FILES, ON_SOCKETS, SENDS, Fault, build_library
from tests.faults.forks import forks
from tests.faults.sequence import until_clean
from tests.streamgauge.conftest import reads_in_process
from tests.streamgauge.upstream import upstream

__all__ = ["reads_in_process"]
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("reads_in_process"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
BUILDS = [
    pytest.param(
        False,
        marks=pytest.mark.skipif(native_relay is None, reason="the native relay is not built"),
        id="compiled",
    ),
    pytest.param(True, id="interpreted"),
]
ENOSPC, EIO, *_ = ON_FILES
RESET = ON_SOCKETS[1]
WITHOUT_ACCEPT = [fault for fault in ON_SOCKETS if fault.error != errno.EMFILE]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with upstream() as url:
        yield url


def points_of_the_tap(
    library: Path, folder: Path, server: str, fault: Fault, *, interpreted: bool, step: int = 1
) -> int:
    with forks(library, folder, *tap.IMPORTS, interpreted=interpreted) as processes:
        runs = tap.TapRuns(processes, server, fault)
        return until_clean(processes.page, runs.run, runs.check, step=step)


@pytest.mark.slow
@pytest.mark.parametrize("interpreted", BUILDS)
@pytest.mark.parametrize("fault", [*ON_FILES, *ON_SOCKETS], ids=str)
def test_each_call_of_the_tap_fails_in_one_run(
    fault: Fault, interpreted: bool, library: Path, server: str, tmp_path: Path
) -> None:
    assert points_of_the_tap(library, tmp_path, server, fault, interpreted=interpreted) > 0


@pytest.mark.parametrize("fault", [ENOSPC, RESET], ids=str)
def test_a_sample_of_the_calls_of_the_tap(fault: Fault, library: Path, server: str, tmp_path: Path) -> None:
    step = 8 if fault.kinds >= SENDS else 23
    interpreted = native_relay is None
    assert points_of_the_tap(library, tmp_path, server, fault, interpreted=interpreted, step=step) > 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault is EIO else pytest.mark.slow, id=str(fault))
        for fault in ON_FILES
    ],
)
def test_each_call_of_the_record_log_fails_in_one_run(fault: Fault, library: Path, tmp_path: Path) -> None:
    with forks(library, tmp_path, *record_log.IMPORTS) as processes:
        runs = record_log.LogRuns(processes, fault)
        assert until_clean(processes.page, runs.run, runs.check) > 40


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("fault", [*ON_FILES, *WITHOUT_ACCEPT], ids=str)
def test_each_call_of_ship_fails_in_one_run(
    fault: Fault, kafka_broker: str, library: Path, tmp_path: Path
) -> None:
    with forks(library, tmp_path, *ship.IMPORTS) as processes:
        runs = ship.ShipRuns(processes, kafka_broker, fault)
        assert until_clean(processes.page, runs.run, runs.check) > 5


@pytest.mark.slow
@pytest.mark.parametrize("fault", [ENOSPC, EIO], ids=str)
def test_every_third_call_of_analytics_fails_in_one_run(fault: Fault, library: Path, tmp_path: Path) -> None:
    with forks(library, tmp_path) as processes:
        runs = analytics.AnalyticsRuns(processes, fault)
        assert until_clean(processes.page, runs.run, runs.check, step=3) > 50


@pytest.mark.slow
@pytest.mark.parametrize("fault", [ENOSPC, EIO], ids=str)
def test_a_sample_of_the_calls_of_an_upgrade_fails(fault: Fault, library: Path, tmp_path: Path) -> None:
    unpacked = content(VERSIONS[0], tmp_path)
    with forks(library, tmp_path) as processes:

        def same() -> None:
            location = locate("sqlite", processes.data)
            before = former_figures(unpacked, location)
            assert figures_of(location, tmp_path, before) == before

        runs = analytics.UpgradeRuns(processes, fault, unpacked / "data", same)
        assert until_clean(processes.page, runs.run, same, step=97) > 5

"""The page Pipeline names the threads and loops at fault of running parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.ingest.ready_file import remove_ready_file, write_ready_file
from tests.dashboard.app_test import open_page, page_text


def test_faults_of_running_parts_are_listed(empty_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = empty_data / "run" / "tap.json"
    write_ready_file(file, {"faults": {"record log": "cannot append to /x_y_z: disk *full*"}})
    try:
        app = open_page(empty_data, monkeypatch, "pipeline")
    finally:
        remove_ready_file(file)
    assert [error.value.replace("\\", "") for error in app.error] == [
        "Fault in tap: record log: cannot append to /x_y_z: disk *full*"
    ]
    assert "Fault in" not in page_text(open_page(empty_data, monkeypatch, "pipeline"))

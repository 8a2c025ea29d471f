"""A table is added in two files: schema.sql and tables.py. The rest of the product follows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deadline import DEADLINE_S

ROOT = Path(__file__).parents[3]
ADDED = {
    "schema.sql": """
-- Added by a test.
CREATE TABLE IF NOT EXISTS added (
    stream_id UUID NOT NULL,
    number INTEGER NOT NULL, -- A number.
    note VARCHAR -- A note.
);
""",
    "tables.py": '\nADDED = Table("added", Retention.STREAMS, "stream_id", key="stream_id, number", sorted_by="stream_id")\n',
}
"""By file of analytics/schema."""
END_OF_TABLES = "\nTABLES = "


def copied_package(folder: Path) -> Path:
    """A copy of the product that a test may change."""
    package = folder / "streamgauge"
    shutil.copytree(ROOT / "streamgauge", package)
    return package


def copy_with_added_table(folder: Path) -> None:
    package = copied_package(folder)
    for file, added in ADDED.items():
        path = package / "analytics" / "schema" / file
        before, end, after = path.read_text().partition(END_OF_TABLES)
        path.write_text(before + added + end + after)


def test_table_added_in_two_files_is_stored_deleted_exported_rebuilt_and_merged(tmp_path: Path) -> None:
    copy_with_added_table(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("use_added_table.py")), str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "added table works\n"

"""Instants as Python datetimes without pytz."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import duckdb
from streamgauge.python_api.python_instants import use_zoneinfo
use_zoneinfo()
use_zoneinfo()
assert "pytz" not in sys.modules
con = duckdb.connect()
for zone in ("UTC", "Europe/Berlin"):
    con.execute(f"SET TimeZone = '{zone}'")
    ((instant, days),) = con.sql("SELECT TIMESTAMPTZ '2026-07-01 12:00:00+00', [TIMESTAMPTZ '2026-01-01 12:00:00+00']").fetchall()
    print(instant.isoformat(), days[0].isoformat(), type(instant.tzinfo).__module__, sep="|")
print(con.sql("SELECT TIMESTAMPTZ '2026-07-01 12:00:00+00' AS at").df()["at"].dtype)
"""


def test_instants_without_pytz() -> None:

    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2026-07-01T12:00:00+00:00|2026-01-01T12:00:00+00:00|datetime",
        "2026-07-01T14:00:00+02:00|2026-01-01T13:00:00+01:00|zoneinfo",
        "datetime64[us, Europe/Berlin]",
    ]

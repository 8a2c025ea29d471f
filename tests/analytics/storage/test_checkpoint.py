"""kill -9 inside DuckDB's own checkpoint, at each place where DuckDB lets one stop it, and wherever it is caught writing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analytics.storage.store import FILE, Commit, Store
from tests.analytics.storage.test_store import LOG, streams

ROOT = Path(__file__).resolve().parents[3]

COMMITS_THEN_CHECKPOINT = """
import json, os, signal, sys, threading
from pathlib import Path
import duckdb
from analytics.storage.store import Commit, Store
from tests.analytics.storage.test_checkpoint import commit, filled

path, how, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = filled(path)
for number in range(10, 30):
    commit(store, number)
cursor = store.cursor()
cursor.execute("DELETE FROM internal.packed_events WHERE (number - first_number) % 3 = 0").fetchall()
for number in range(30, 40):
    commit(store, number)
print(json.dumps([store.totals()["entries"], path.with_name(path.name + ".wal").stat().st_size]), flush=True)
if how == "write":
    # Files under the folder change as the checkpoint goes: at the count-th change it is killed.
    def look():
        return [(p.name, s.st_size, s.st_mtime_ns) for p in sorted(path.parent.iterdir()) for s in [p.stat()]]
    def watch():
        seen, changes = look(), 0
        begun.set()
        while True:
            try:
                now = look()
            except FileNotFoundError:
                continue
            if now != seen:
                seen, changes = now, changes + 1
                if changes >= count:
                    os.kill(os.getpid(), signal.SIGKILL)
    begun = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    begun.wait()
else:
    cursor.execute(f"SET GLOBAL debug_checkpoint_abort = '{how}'")
try:
    cursor.execute("CHECKPOINT").fetchall()
except duckdb.Error:
    pass
else:
    sys.exit("the checkpoint went through")
os.kill(os.getpid(), signal.SIGKILL)
"""


def filled(path: Path) -> Store:
    """Half of what is committed is in the file, so that the checkpoint changes what is there."""
    store = Store(path)
    with closing(store.cursor()) as cursor:
        cursor.execute("SET GLOBAL wal_autocheckpoint = '1 TB'")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS internal.ballast AS SELECT range AS n, hash(range) AS h FROM range(300_000)"
        )
    for number in range(10):
        commit(store, number)
    with closing(store.cursor()) as cursor:
        cursor.execute("FORCE CHECKPOINT").fetchall()
        cursor.execute("DELETE FROM internal.ballast WHERE n % 2 = 0").fetchall()
    return store


def commit(store: Store, number: int) -> None:
    rows = streams(number)
    events = duckdb.sql(
        f"SELECT '{rows['stream_id'][0]}' AS stream_id, i::INT AS seq, i::INT AS read_seq, "
        "(i * 7919 % 1000003)::BIGINT AS at_ns, 'text' AS kind FROM range(500) t(i)"
    ).pl()
    store.commit(Commit(LOG, tables={"streams": rows, "events": events}, totals={"entries": 1}))


def told(path: Path) -> dict[str, Any]:
    store = Store(path)
    try:
        with closing(store.cursor()) as cursor:
            return {
                "streams": cursor.execute(
                    "SELECT count(DISTINCT stream_id), count(*) FROM streams"
                ).fetchall(),
                "events": cursor.execute(
                    "SELECT count(*), sum(at_ns)::BIGINT, sum(seq)::BIGINT, bit_xor(hash(e)) FROM events AS e"
                ).fetchall(),
                "minutes": cursor.execute("SELECT sum(streams)::BIGINT FROM stream_minutes").fetchall(),
                "ballast": cursor.execute("SELECT count(*), bit_xor(h) FROM internal.ballast").fetchall(),
                "totals": store.totals(),
            }
    finally:
        store.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("undisturbed") / FILE
    store = filled(path)
    for number in range(10, 40):
        if number == 30:
            with closing(store.cursor()) as cursor:
                cursor.execute(
                    "DELETE FROM internal.packed_events WHERE (number - first_number) % 3 = 0"
                ).fetchall()
        commit(store, number)
    store.close()
    return told(path)


@pytest.mark.parametrize(
    ("how", "count"),
    [
        ("before_header", 0),
        ("write", 2),
        *(
            pytest.param(*point, marks=pytest.mark.slow)
            for point in (
                ("after_free_list_write", 0),
                ("before_truncate", 0),
                ("before_wal_finish", 0),
                ("write", 1),
                ("write", 3),
                ("write", 4),
            )
        ),
    ],
)
def test_killed_inside_a_checkpoint_nothing_committed_is_lost_or_doubled(
    tmp_path: Path, undisturbed: dict[str, Any], how: str, count: int
) -> None:
    path = tmp_path / FILE
    found = subprocess.run(
        [sys.executable, "-c", COMMITS_THEN_CHECKPOINT, str(path), how, str(count)],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert found.returncode == -signal.SIGKILL, found.stderr
    commits, wal_bytes = json.loads(found.stdout)
    assert commits == 40
    assert wal_bytes > 100_000  # there was something to checkpoint
    assert told(path) == undisturbed
    store = Store(path)  # and it goes on
    commit(store, 40)
    store.close()
    assert told(path)["totals"]["entries"] == 41
    assert sorted(one.name for one in tmp_path.iterdir()) == [FILE]

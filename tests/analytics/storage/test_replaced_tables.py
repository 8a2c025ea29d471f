"""The table `objectives` equals the settings after each start, and is not written without a difference."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from streamgauge.analytics.schema.objectives import DEFAULT, Objective
from streamgauge.analytics.schema.tables import OBJECTIVES
from streamgauge.analytics.storage.replaced_tables import replace_rows
from tests.analytics.stores import ask, new_store

FIRST = Objective("first", model="gpt-*", client="it's", ttft_ns=5, goodput=0.9)


def test_table_is_replaced_only_if_it_differs(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    try:

        def write(*objectives: Objective) -> int:
            replace_rows(store, OBJECTIVES, objectives)
            rows = ask(store, "FROM objectives ORDER BY priority")
            assert rows == [(n, *dataclasses.astuple(o)) for n, o in enumerate(objectives)]
            [(snapshot,)] = ask(store, "SELECT max(snapshot_id) FROM ducklake_snapshots('lake')")
            return int(snapshot)

        one = write(FIRST, DEFAULT)
        assert write(FIRST, DEFAULT) == one
        two = write(DEFAULT, FIRST)
        assert two > one
        assert write(DEFAULT) > two
    finally:
        store.close()

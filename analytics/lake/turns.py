"""Turns of the processes that share a lake, by PostgreSQL's advisory locks: who may commit beside others, who must be alone.

DuckLake commits that only append never conflict; one that deletes conflicts with whatever was appended to its tables
meanwhile, and one of the two has to be done again. Consumers append all the time, so a deletion would lose every time.
Therefore:
1. A commit takes a *shared* turn, a deletion (a claim, upkeep) an *exclusive* one, which waits for the commits under way and
   lets no new one begin.
2. Turns are courtesy, not safety: conflicts are found by DuckLake itself, turns or not. So nobody waits longer than
   `WAIT_S`; then it goes on without its turn.
3. A turn is a lock of one short PostgreSQL transaction: it ends with its session, and PostgreSQL ends the session of a
   process that was frozen within it (`idle_in_transaction_session_timeout`).
4. The *office* of upkeep is such a lock too, taken only when it is free: whoever holds it is the one elected.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import duckdb

from analytics.lake.place import Lake, attach_catalog
from analytics.storage.rows import first_row

log = logging.getLogger(__name__)

_CATALOG = "turns"
_KEY = 0x5367_4C6B  # "SgLk": our part of the lock space of a PostgreSQL database
_COMMITS, _OFFICE = 1, 2
WAIT_S = 5.0
FROZEN_S, OFFICE_FROZEN_S = 30, 1800
"""A holder that says nothing for this long has lost its turn; upkeep may work as long as that on one task."""


class Turns:
    """One process's turns. Each has a connection of its own; may be used by several threads, each with its own object."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
        """`connection` is one of the process's database, any. Raises OSError when PostgreSQL cannot be reached."""
        self._cursor = connection.cursor()
        there = first_row(
            self._cursor.execute("SELECT 1 FROM duckdb_databases() WHERE database_name = ?", [_CATALOG])
        )
        if there is None:
            attach_catalog(self._cursor, lake, _CATALOG)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others that share, while nobody has an exclusive turn."""
        with self._lock("pg_advisory_xact_lock_shared", WAIT_S):
            yield

    @contextlib.contextmanager
    def exclusive(self, wait_s: float = WAIT_S) -> Iterator[None]:
        """Alone."""
        with self._lock("pg_advisory_xact_lock", wait_s):
            yield

    @contextlib.contextmanager
    def office(self) -> Iterator[bool]:
        """True for the one process that holds the office now, for as long as it stays within; the others get False."""
        self._begin(OFFICE_FROZEN_S)
        try:
            row = first_row(
                self._cursor.execute(
                    f"FROM postgres_query('{_CATALOG}', 'SELECT pg_try_advisory_xact_lock({_KEY}, {_OFFICE}) AS mine')"
                )
            )
            yield bool(row and row[0])
        finally:
            self._end()

    def close(self) -> None:
        """Let go of the connection."""
        self._cursor.close()

    @contextlib.contextmanager
    def _lock(self, how: str, wait_s: float) -> Iterator[None]:
        try:
            self._begin(FROZEN_S)
            self._cursor.execute(
                f"CALL postgres_execute('{_CATALOG}', "
                f"'SET LOCAL lock_timeout = {int(wait_s * 1000)}; SELECT {how}({_KEY}, {_COMMITS})')"
            )
        except duckdb.Error as e:
            log.warning("no turn within %g s, going on without: %s", wait_s, str(e).splitlines()[-1][:200])
        try:
            yield
        finally:
            self._end()

    def _begin(self, frozen_s: int) -> None:
        self._cursor.execute("BEGIN TRANSACTION")
        self._cursor.execute(
            f"CALL postgres_execute('{_CATALOG}', 'SET LOCAL idle_in_transaction_session_timeout = {frozen_s * 1000}')"
        )

    def _end(self) -> None:
        # The session may have been ended for being idle: so has the turn.
        with contextlib.suppress(duckdb.Error):
            self._cursor.execute("ROLLBACK")

"""The newest responses with a session, to continue sessions after a restart (`streamgauge.analytics.measures.sessions`)."""

from __future__ import annotations

import duckdb

from streamgauge.analytics.storage.database import message
from streamgauge.analytics.storage.store import Store

DAYS = 1
MOST = 10_000


def recent_responses(store: Store) -> list[tuple[str, str, int | None]]:
    """(response id, session id, turn) of the last day, the newest last. Raises OSError."""
    cursor = store.cursor()
    try:
        found = cursor.execute(
            "SELECT response_id, session_id, turn FROM streams WHERE session_id IS NOT NULL AND response_id IS NOT NULL "
            f"AND started_at > now() - INTERVAL {DAYS} DAY ORDER BY started_at DESC LIMIT {MOST}"
        ).fetchall()
        return found[::-1]
    except duckdb.Error as e:
        raise OSError(f"cannot read the sessions of the last day: {message(e, store.location)}") from None
    finally:
        cursor.close()

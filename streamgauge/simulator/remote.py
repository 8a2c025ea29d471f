"""The ledger of a simulator in another process, fetched over HTTP as it grows."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from streamgauge.simulator.ledger import LedgerRow, read_lines


class RemoteLedger:
    """A copy of the ledger. Blocking: call `refresh` off the event loop."""

    def __init__(self, url: str, *, keep_times_of: int = 5_000) -> None:
        """`keep_times_of`: beyond this many rows the list of output times is not kept (nothing here needs it)."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._keep_times_of = keep_times_of
        self._rows: dict[int, LedgerRow] = {}
        self.dropped = 0
        """Rows that the simulator had dropped before they could be fetched."""

    def refresh(self, timeout_s: float = 20.0) -> None:
        """Fetch what is new, and what was under way. Raises OSError when the simulator does not answer."""
        under_way = [seq for seq, row in self._rows.items() if row.end_ns is None]
        after = min(under_way) - 1 if under_way else max(self._rows, default=-1)
        connection = http.client.HTTPConnection(*self._address, timeout=timeout_s)
        try:
            connection.request("GET", f"/simulator/ledger?after={after}")
            data = connection.getresponse().read()
        except http.client.HTTPException as e:
            raise OSError(f"the simulator's ledger cannot be read: {type(e).__name__}") from None
        finally:
            connection.close()
        for row in read_lines(data):
            if len(self._rows) > self._keep_times_of:
                row.outputs_ns = []
            self._rows[row.seq] = row
        if self._rows:
            self.dropped = max(self._rows) + 1 - len(self._rows)

    def rows(self) -> list[LedgerRow]:
        """All rows so far, in order."""
        return [self._rows[seq] for seq in sorted(self._rows)]

    @property
    def under_way(self) -> int:
        return sum(row.end_ns is None for row in self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

"""A copy of the ledger of a simulator in another process, fetched over HTTP."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from streamgauge.simulator.ledger import LedgerRow, decode_lines


class RemoteLedger:
    """A copy of the ledger. `refresh` blocks: do not call it on an event loop."""

    def __init__(self, url: str, *, keep_times_of: int = 5_000) -> None:
        """`keep_times_of`: number of rows whose output times are kept."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._keep_times_of = keep_times_of
        self._rows: dict[int, LedgerRow] = {}
        self.dropped = 0
        """Rows that the simulator evicted before they were fetched."""

    def refresh(self, timeout_s: float = 20.0) -> None:
        """Fetch new rows and rows that were open. Raises OSError when the simulator does not respond."""
        open_rows = [seq for seq, row in self._rows.items() if row.end_ns is None]
        after = min(open_rows) - 1 if open_rows else max(self._rows, default=-1)
        connection = http.client.HTTPConnection(*self._address, timeout=timeout_s)
        try:
            connection.request("GET", f"/simulator/ledger?after={after}")
            data = connection.getresponse().read()
        except http.client.HTTPException as e:
            raise OSError(f"cannot read the simulator's ledger: {type(e).__name__}") from None
        finally:
            connection.close()
        for row in decode_lines(data):
            if len(self._rows) > self._keep_times_of:
                row.outputs_ns = []
            self._rows[row.seq] = row
        if self._rows:
            self.dropped = max(self._rows) + 1 - len(self._rows)

    def rows(self) -> list[LedgerRow]:
        """All rows, in order of arrival."""
        return [self._rows[seq] for seq in sorted(self._rows)]

    @property
    def open_rows(self) -> int:
        return sum(row.end_ns is None for row in self._rows.values())

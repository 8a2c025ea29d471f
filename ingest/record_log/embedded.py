"""The log's home on one machine: SQLite files, written by each tap worker and read by other processes meanwhile.

What is kept, and when
- `append` returned, the process is killed (`kill -9`): every entry is there. The transaction is in the page cache.
- The machine loses power: entries of about the last `sync_s` seconds (1 by default) may be gone, plus the time until the
  append after them, for segments run with `synchronous=NORMAL` and the writer itself flushes the `-wal` at that pace.
  What is left is a prefix: SQLite's checksums end the `-wal` at the first page that did not reach the disk.
- Sealed segments (rolled, or closed by a clean stop) are flushed.
- An offset is never given twice, even for entries that the power took back after a reader had seen them.
- A damaged segment is set aside, what can be read of it is read, the rest is reported (`take_damage`).

When the cap is reached, the oldest unread segment is dropped, counted, and reported by `Lost` records.
`segments.py` has the layout, `cursors.py` what may be trimmed.
"""

from __future__ import annotations

from ingest.record_log.embedded_reader import EmbeddedReader
from ingest.record_log.embedded_writer import EmbeddedWriter
from ingest.record_log.segments import log_bytes

__all__ = ["EmbeddedReader", "EmbeddedWriter", "log_bytes"]

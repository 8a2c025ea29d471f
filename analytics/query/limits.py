"""Limits of queries that run in a child process. Pure values; both sides of the pipe use them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What queries may use. A caller may ask for less time and fewer rows, never for more."""

    memory_bytes: int = 1024 * MIB
    """Address space that a child may add to what it has after its start (measured: 1.5 GiB, most of it reserved only).
    DuckDB's own limit is half of it: tables, sorts and caches. The other half is for what DuckDB allocates without
    counting: strings, lists, states of aggregates such as `quantile_cont`."""
    cpu_s: int = 60
    """CPU time of one query: the longest default timeout, 30 s, on two cores."""
    timeout_s: float = 300.0
    """Longest timeout that a caller may ask for."""
    max_rows: int = 1_000_000
    max_answer_bytes: int = 128 * MIB
    """Arrow bytes of one answer. The child holds them twice for a moment: a quarter of `memory_bytes`."""
    concurrent: int = 2
    """Queries that run at once. In untrusted mode each has its own child, and one more child waits as a spare: three
    children of about 150 MiB resident when idle, and 3 GiB + idle memory in the worst case."""
    waiting: int = 32
    """Queries that wait for their turn. Further ones are refused at once."""

    @property
    def database_bytes(self) -> int:
        """DuckDB's memory limit."""
        return self.memory_bytes // 2


UNTRUSTED = Limits()
"""For statements of other people: the SQL page and `streamgauge serve`."""
TRUSTED = Limits(memory_bytes=2048 * MIB, cpu_s=600, concurrent=4)
"""For our own queries and the owner's `sql` command: one child runs four at once. `cpu_s` covers 300 s on two cores."""

"""Limits of queries in child processes."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one query. A caller can lower the limits of time and rows, but not raise them."""

    memory_bytes: int = 1024 * MIB
    """Address space that a child may add to its size after the start (1.5 GiB, most of it only reserved). DuckDB's own limit is
    half: tables, sorts and caches. The other half is for memory that DuckDB does not count: strings, lists, states of
    aggregates such as `quantile_cont`."""
    cpu_s: int = 60
    """CPU time of one query: the longest default timeout, 30 s, on two cores."""
    timeout_s: float = 300.0
    """Longest timeout that a caller may ask for."""
    max_rows: int = 1_000_000
    max_answer_bytes: int = 128 * MIB
    """Arrow bytes of one answer. The child briefly holds them twice, a quarter of `memory_bytes`."""
    concurrent: int = 2
    """Queries that run at once. Each untrusted query has a child of its own, and one more is a spare: three children of about
    150 MiB resident when idle, and 3 GiB + idle memory in the worst case."""
    waiting: int = 32
    """Queries that wait for a slot. Further ones are rejected at once."""

    @property
    def database_bytes(self) -> int:
        """DuckDB's memory limit."""
        return self.memory_bytes // 2


UNTRUSTED = Limits()
"""For untrusted statements: the SQL page and `streamgauge serve`."""
TRUSTED = Limits(memory_bytes=2048 * MIB, cpu_s=600, concurrent=4)
"""For the product's own queries and the `sql` command: one child runs four at once. `cpu_s` covers 300 s on two cores."""

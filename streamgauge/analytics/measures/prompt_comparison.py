"""The prompt of a request, and what it has in common with another one. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import attrgetter, itemgetter, ne
from typing import Any, NamedTuple

from streamgauge.analytics.reports.prefixes import Placed
from streamgauge.analytics.schema.stream_columns import StreamRow
from streamgauge.ingest.records import Segment

SETTINGS = ("model", "settings")


class Served(NamedTuple):
    """Columns of `streams`: where a request was served, and with which tokens."""

    request_model: str | None
    gateway: str | None
    provider: str | None
    server_instance: str | None
    inference_region: str | None
    input_tokens: int | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None


_of_row = itemgetter(*Served._fields)


def served_of(row: StreamRow | dict[str, Any]) -> Served:
    return Served(*_of_row(row))


@dataclass(slots=True, eq=False)
class Prompt:
    """The prompt of one request, without its text."""

    stream_id: str
    segments: list[Segment]
    encoded: bytes = b""
    """The segments as the tap recorded them. Empty if others were added."""
    encoded_ends: list[int] = field(default_factory=list)
    """Where each of them ends."""
    marks: list[str | None] = field(default_factory=list)
    """Of the segments."""
    started_ns: int = 0
    cached_ns: int = 0
    """When the server had read it: t0 + TTFT."""
    response_id: str | None = None
    output_bytes: int = 0
    is_warm_up: bool = False
    """It has no output."""
    left_out: int = 0
    incomplete: bool = False
    """The server keeps an earlier part that is unknown."""
    is_unexpected: bool = False
    """No earlier prompt of its session is kept."""
    differences: int = 0
    """Number of earlier prompts needed to read it, back to one that is stored whole."""
    sums: list[int] = field(default_factory=list)
    """Bytes by column of `SUM_COLUMNS`."""
    tools: list[Segment] = field(default_factory=list)
    tool_set: int | None = None
    tools_stored_ns: int = 0
    placed: Placed | None = None
    scope: tuple[str | None, ...] = ()
    """Of `placed`."""
    served: Served | None = None
    leaves_out_zero: bool = False
    """`served` has 0 cached tokens because the response has no number of them."""

    @property
    def message_count(self) -> int:
        return self.segments[-1].message + 1 if self.segments else 0

    def is_continued(self, shared: int) -> bool:
        """Whether a prompt with as many equal first segments is of the same conversation: it has half of the messages."""
        head = self.head_count
        return shared > head and 2 * (shared - head) >= len(self.segments) - head

    @property
    def head_count(self) -> int:
        """Segments before the messages."""
        return bisect_left(self.segments, 0, key=attrgetter("message"))

    @property
    def hashes(self) -> set[bytes]:
        """Segments that are not settings."""
        return {one.hash for one in self.segments if one.kind not in SETTINGS}


def equal_first(one: Sequence[Any], other: Sequence[Any], start: int = 0) -> int:
    """The number of equal first elements. The first `start` ones are known to be equal."""
    return next(_differing(one, other, start), min(len(one), len(other)))


def same_first(one: Sequence[Segment], other: Sequence[Segment], start: int = 0) -> int:
    """As `equal_first`, without regard to marks: the segments that a cache could read again."""
    differing = _differing(one, other, start)
    return next((at for at in differing if not same(one[at], other[at])), min(len(one), len(other)))


def _differing(one: Sequence[Any], other: Sequence[Any], start: int) -> Iterator[int]:
    """Places of elements that differ. The loop runs in C."""
    return compress(count(start), map(ne, one[start:], other[start:]))


def same(one: Segment, other: Segment) -> bool:
    """Whether two segments are the same part of a prompt, without regard to their marks."""
    return (one.hash, one.kind, one.name, one.message, one.role) == (
        other.hash, other.kind, other.name, other.message, other.role,
    )  # fmt: skip

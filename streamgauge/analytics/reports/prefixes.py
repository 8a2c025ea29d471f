"""Positions of segments of prompts in tokens, and the prefixes that a prompt shares with earlier ones. Pure.

A provider reports the tokens of a whole prompt. The tokens of its segments are estimated:
1. A prefix that an earlier prompt had has as many tokens as in the earlier one.
2. The rest of the reported tokens is divided among the other segments by their bytes times `PROMPT_WEIGHTS`.

So equal prefixes have equal tokens. If a prompt continues another one, the shared prefix has the tokens that the provider reported.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from streamgauge.analytics.schema.prompt_parts import PROMPT_WEIGHTS
from streamgauge.ingest.records import Segment

MAX_PREFIXES = 200_000
"""About 50 MB."""


_Use = list[int]
"""A prefix: its tokens, and the first and the last time at which a server had read it, in ns."""
_END, _FIRST, _LAST = range(3)


@dataclass(frozen=True, slots=True)
class Placed:
    """One prompt. `keys` and `ends` have an item for each segment."""

    keys: Sequence[int]
    """Each identifies the prefix that ends with the segment, within this process."""
    ends: Sequence[int]
    """Tokens of the prefix that ends with the segment. The last one is the tokens of the prompt."""
    seen: int
    """Tokens of the longest prefix that an earlier prompt had."""
    available: int
    """Of `seen`, those that a server had read within `kept_ns` before the prompt."""
    at_server: int | None
    """Of `available`, those that the same server had read. None: the server is unknown."""


class Prefixes:
    """Keeps prefixes of prompts. Not thread-safe."""

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        """`most`: maximum number of prefixes. The least recently used ones are evicted."""
        self._most = most
        self._young: dict[int, _Use] = {}
        self._old: dict[int, _Use] = {}

    def add(
        self,
        segments: Sequence[Segment],
        tokens: int,
        *,
        scope: Hashable = None,
        server: str | None = None,
        began_ns: int = 0,
        read_ns: int = 0,
        kept_ns: int = 2**63,
    ) -> Placed:
        """Compare a prompt of at least one segment with earlier ones, and keep its prefixes.

        `scope`: only prompts with an equal scope are compared. `began_ns`: start of the request. `read_ns`: when the server had read
        the prompt. `kept_ns`: how long the server keeps it after that.
        """
        keys = list(accumulate(segments, _key, initial=hash(scope)))[1:]
        uses = self._uses(keys)
        seen = len(uses)
        start = uses[-1][_END] if uses else 0
        weights = [*accumulate(one.size * PROMPT_WEIGHTS[one.kind] for one in segments[seen:])]
        per_weight = max(0, tokens - start) / weights[-1] if weights and weights[-1] else 0.0
        ends = [*(use[_END] for use in uses), *(start + round(weight * per_weight) for weight in weights)]
        placed = [min(end, tokens) for end in ends] if ends[-1] > tokens else [*ends]
        placed[-1] = tokens
        available, at_server = _length(uses, placed, began_ns, kept_ns), None
        if server is not None:
            of_server = [hash((server, key)) for key in keys]
            uses_there = self._uses(of_server)
            at_server = _length(uses_there, placed, began_ns, kept_ns)
            self._keep(of_server, uses_there, ends, read_ns)
        self._keep(keys, uses, ends, read_ns)
        return Placed(keys, placed, placed[seen - 1] if seen else 0, available, at_server)

    def _uses(self, keys: Sequence[int]) -> list[_Use]:
        """Uses of the leading keys that are known."""
        found, young, old = list[_Use](), self._young, self._old
        for key in keys:
            use = young.get(key) or old.get(key)
            if use is None:
                break
            found.append(use)
        return found

    def _keep(self, keys: Sequence[int], uses: list[_Use], ends: Sequence[int], read_ns: int) -> None:
        """Add a use of each key. `uses`: those of the leading keys that are known."""
        for use in uses:
            if read_ns > use[_LAST]:
                use[_LAST] = read_ns
            elif read_ns < use[_FIRST]:
                use[_FIRST] = read_ns
        uses += ([end, read_ns, read_ns] for end in ends[len(uses) :])
        self._young.update(zip(keys, uses, strict=True))
        if len(self._young) > self._most // 2:
            self._old, self._young = self._young, {}


def with_rest(
    segments: Sequence[Segment], left_out: int, request_bytes: int | None, stream_id: str
) -> Sequence[Segment]:
    """The segments. One segment that no other prompt has replaces those that are missing at the end."""
    if not left_out:
        return segments
    size = max(left_out, (request_bytes or 0) - sum(one.size for one in segments))
    return [*segments, Segment("other", None, segments[-1].message, size, stream_id.encode())]


def _key(before: int, one: Segment) -> int:
    return hash((before, one.hash, one.kind, one.message, one.role))


def _length(uses: Sequence[_Use], ends: Sequence[int], began_ns: int, kept_ns: int) -> int:
    """Tokens of the longest of these prefixes that a server had read and still keeps."""
    for use, end in zip(reversed(uses), reversed(ends[: len(uses)]), strict=True):
        if use[_FIRST] <= began_ns <= use[_LAST] + kept_ns:
            return end
    return 0

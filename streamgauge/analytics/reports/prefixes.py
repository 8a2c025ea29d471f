"""Positions of segments of prompts in tokens, and the prefixes that a prompt shares with earlier ones. Pure.

A provider reports the tokens of a whole prompt. The tokens of its segments are estimated:
1. A prefix that an earlier prompt had has as many tokens as in the earlier one.
2. The rest of the reported tokens is divided among the other segments by their bytes times `PROMPT_WEIGHTS`.

So equal prefixes have equal tokens. If a prompt continues another one, the shared prefix has the tokens that the provider reported.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from streamgauge.analytics.schema.prompt_sizes import PROMPT_WEIGHTS
from streamgauge.ingest.records import Segment

MAX_PREFIXES = 200_000
"""About 50 MB."""


_Use = list[Any]
"""A prefix: its tokens, when a server had first read it, in ns, and the last request with it: when it began, in ns, and the number of its
prefixes. Those with which it was the last request share that list, so it is changed once if the prompt is continued."""
_END, _FIRST, _LAST = range(3)
_end, _first = itemgetter(_END), itemgetter(_FIRST)
_NEVER = 2**63


class Placed(NamedTuple):
    """One prompt. `keys` and `ends` have an item for each segment."""

    keys: list[int]
    """Each identifies the prefix that ends with the segment, within this process."""
    ends: Sequence[int]
    """Tokens of the prefix that ends with the segment. The last one is the tokens of the prompt."""
    seen: int
    """Tokens of the longest prefix that a server had read before."""
    available: int
    """Of `seen`, those of the longest prefix whose last request began within `kept_ns` before the prompt."""
    at_server: int | None
    """Of `available`, those that the same server had read. None: the server is unknown."""
    uses: list[_Use]
    """Of each segment, for prompts that continue this one."""
    use_ends: list[int]
    """Their tokens."""
    generation: int
    """Of `Prefixes`, in which the keys were added."""


class Prefixes:
    """Keeps prefixes of prompts. Not thread-safe."""

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        """`most`: maximum number of prefixes. The least recently used ones are evicted."""
        self._most = most
        self._young: dict[int, _Use] = {}
        self._old: dict[int, _Use] = {}
        self._generation = 0

    def add(
        self,
        segments: Sequence[Segment],
        tokens: int,
        *,
        scope: Hashable = None,
        server: str | None = None,
        began_ns: int = 0,
        read_ns: int = 0,
        kept_ns: int = _NEVER,
        base: Placed | None = None,
        shared: int = 0,
    ) -> Placed:
        """Compare a prompt of at least one segment with earlier ones, and keep its prefixes.

        `scope`: only prompts with an equal scope are compared. `began_ns`: start of the request. `read_ns`: when the server had read
        the prompt. `kept_ns`: how long the server keeps it after the start. `base`: an earlier prompt with the same scope, whose first
        `shared` segments are equal.
        """
        keys, uses = (base.keys[:shared], base.uses[:shared]) if base is not None else ([], [])
        keys += accumulate(segments[len(keys) :], _key, initial=keys.pop() if keys else hash(scope))
        if len(keys) > len(segments):  # that of the scope
            del keys[0]
        self._add_uses(uses, keys)
        known, start = len(uses), uses[-1][_END] if uses else 0
        ends = base.use_ends[:shared] if base is not None else []
        ends += map(_end, uses[len(ends) :])
        weights = [*accumulate(one.size * PROMPT_WEIGHTS[one.kind] for one in segments[known:])]
        per_weight = max(0, tokens - start) / weights[-1] if weights and weights[-1] else 0.0
        ends += (start + round(weight * per_weight) for weight in weights)
        placed = [min(end, tokens) for end in ends] if ends[-1] > tokens else [*ends]
        placed[-1] = tokens
        seen, available = (_length(uses, placed, began_ns, most_ns) for most_ns in (_NEVER, kept_ns))
        at_server = None
        if server is not None:
            of_server, uses_there = [hash((server, key)) for key in keys], list[_Use]()
            self._add_uses(uses_there, of_server)
            at_server = _length(uses_there, placed, began_ns, kept_ns)
            self._keep(of_server, uses_there, ends, began_ns, read_ns)
        generation = self._generation
        is_young = base is not None and base.generation == generation
        self._keep(keys, uses, ends, began_ns, read_ns, shared if is_young else 0)
        return Placed(keys, placed, seen, available, at_server, uses, ends, generation)

    def _add_uses(self, uses: list[_Use], keys: Sequence[int]) -> None:
        """Add the uses of the next keys that are known."""
        young, old = self._young, self._old
        for key in keys[len(uses) :]:
            use = young.get(key) or old.get(key)
            if use is None:
                break
            uses.append(use)

    def _keep(
        self,
        keys: Sequence[int],
        uses: list[_Use],
        ends: Sequence[int],
        began_ns: int,
        read_ns: int,
        young: int = 0,
    ) -> None:
        """Add a use of each key. `uses`: those of the leading keys that are known. The first `young` ones are in the present generation."""
        # A use of a prefix is one of all shorter ones, so these were read earlier, and used later.
        if uses and read_ns < uses[-1][_FIRST]:
            for use in uses:
                use[_FIRST] = min(use[_FIRST], read_ns)
        last = uses[0][_LAST] if uses else [_NEVER, 0]
        if last[0] <= began_ns and last[1] == len(uses) and last is uses[-1][_LAST]:
            last[0] = began_ns
        else:
            last = [began_ns, 0]
            for use in uses[bisect_right(uses, -began_ns, key=_unused_since) :]:
                use[_LAST] = last
        last[1] = len(ends)
        uses += ([end, read_ns, last] for end in ends[len(uses) :])
        self._young.update(zip(keys[young:], uses[young:], strict=True))
        if len(self._young) > self._most // 2:
            self._old, self._young = self._young, {}
            self._generation += 1


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
    read = _count(uses, began_ns, _first)
    count = _count(uses[:read], kept_ns - began_ns, _unused_since)
    return ends[count - 1] if count else 0


def _count(uses: Sequence[_Use], most: int, key: Callable[[_Use], int]) -> int:
    """The number of leading uses with at most this value. Most often it is all."""
    return len(uses) if not uses or key(uses[-1]) <= most else bisect_right(uses, most, key=key)


def _unused_since(use: _Use) -> int:
    began_ns: int = use[_LAST][0]
    return -began_ns

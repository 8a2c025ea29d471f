"""Align the output of two streams of one request by cumulative characters. Pure code.

Gateways merge and split chunks, so events are not compared one by one: an outer event is paired with the inner event that completed
the same number of characters of the same channel. A channel is one kind of output (text, reasoning, tool arguments …) of one choice.
Output without characters (tool names, audio data) is a channel of its own, counted by events.

- A channel is aligned if both streams have equally many characters of it. Channels that one stream joins and the other separates
  are aligned as one, if their sum is equal.
- If the outer stream did not complete, a channel is aligned as far as both streams have it.
- A channel is not aligned if an outer event precedes its inner event: then the gateway changed the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, islice, repeat
from operator import sub
from typing import NamedTuple

import polars as pl

from streamgauge.analytics.dialects.events import OUTPUT_KINDS

MAX_CHANNELS = 100
"""Further kinds of events, choices and channels of a stream are not aligned: each costs a pass over its events."""

_Key = tuple[int, str, bool]
"""(choice, kind, whether its events have characters)"""


class Channel(NamedTuple):
    """The output events of one channel, as equally long lists."""

    seqs: list[int]
    times_ns: list[int]
    """Since t0 of the outer stream."""
    ends: list[int]
    """Cumulative size after each event, in characters."""

    @property
    def size(self) -> int:
        return self.ends[-1]


class AlignedChannel(NamedTuple):
    """One channel in both streams."""

    outer: Channel
    inner: Channel
    inner_of_outer: list[int]
    """For each outer event, the index of the inner event that completed the same characters. Shorter than `outer` if the inner
    stream has fewer characters."""
    outer_of_inner: list[int]
    """The reverse: for each inner event, the outer event that delivered its last character."""
    delays_ns: list[int]
    """For each outer event in `inner_of_outer`: its time minus the time of that inner event."""


def align(
    outer: pl.DataFrame, inner: pl.DataFrame, *, inner_start_ns: int, complete: bool, clock_error_ns: int
) -> list[AlignedChannel]:
    """The channels that both streams have. `complete`: the outer stream has all that the gateway sent."""
    found = []
    pairs = _pairs(_channels(outer, 0), _channels(inner, inner_start_ns), complete=complete)
    for outer_channel, inner_channel in pairs:
        channel = _aligned(outer_channel, inner_channel)
        if min(channel.delays_ns, default=-1) >= -clock_error_ns:
            found.append(channel)
    return found


def _channels(events: pl.DataFrame, start_ns: int) -> dict[_Key, Channel]:
    """Without a Python step per event, because a stream has thousands."""
    seqs, at_ns, kinds, chars = (events[name].to_list() for name in ("seq", "at_ns", "kind", "chars"))
    # Not by `fill_null`, which alone takes half a millisecond.
    choices = [choice or 0 for choice in events["choice"].to_list()]
    keys = list(zip(choices, kinds, map(bool, chars), strict=True))
    found: dict[_Key, Channel] = {}
    for key in islice(dict.fromkeys(keys), MAX_CHANNELS):
        if key[1] not in OUTPUT_KINDS:
            continue
        # One pass in C per channel in place of a loop over the events.
        selected = list(map(key.__eq__, keys))
        sizes = compress(chars, selected) if key[2] else repeat(1, selected.count(True))
        found[key] = Channel(
            list(compress(seqs, selected)),
            [at + start_ns for at in compress(at_ns, selected)],
            list(accumulate(sizes)),
        )
    return found


def _pairs(
    outer: dict[_Key, Channel], inner: dict[_Key, Channel], *, complete: bool
) -> Iterator[tuple[Channel, Channel]]:
    equal = {key for key in outer.keys() & inner.keys() if outer[key].size == inner[key].size}
    for key in equal:
        yield outer[key], inner[key]
    for group in sorted({(choice, has_chars) for choice, _, has_chars in outer.keys() - equal}):
        outer_rest = _of_group(outer, group, equal)
        inner_rest = _of_group(inner, group, equal)
        if not inner_rest:
            continue
        outer_joined, inner_joined = _joined(list(outer_rest.values())), _joined(list(inner_rest.values()))
        if outer_joined.size == inner_joined.size:
            yield outer_joined, inner_joined
        elif not complete:
            for key in outer_rest.keys() & inner_rest.keys():
                yield outer[key], inner[key]


def _of_group(
    channels: dict[_Key, Channel], group: tuple[int, bool], without: set[_Key]
) -> dict[_Key, Channel]:
    return {key: c for key, c in channels.items() if (key[0], key[2]) == group and key not in without}


def _joined(channels: Sequence[Channel]) -> Channel:
    """The events of several channels in order, as one."""
    if len(channels) == 1:
        return channels[0]
    events = []
    for seqs, times_ns, ends in channels:
        events += [
            (seq, at_ns, end - start)
            for seq, at_ns, end, start in zip(seqs, times_ns, ends, [0, *ends[:-1]], strict=True)
        ]
    events.sort()
    return Channel([e[0] for e in events], [e[1] for e in events], list(accumulate(e[2] for e in events)))


def _aligned(outer: Channel, inner: Channel) -> AlignedChannel:
    if outer.ends == inner.ends:  # the gateway passed every chunk on as it was
        inner_of_outer = outer_of_inner = list(range(len(outer.ends)))
    else:
        common = min(outer.size, inner.size)
        inner_of_outer = [bisect_left(inner.ends, end) for end in outer.ends if end <= common]
        outer_of_inner = [bisect_left(outer.ends, end) for end in inner.ends if end <= common]
    completed_ns = map(inner.times_ns.__getitem__, inner_of_outer)
    return AlignedChannel(
        outer, inner, inner_of_outer, outer_of_inner, list(map(sub, outer.times_ns, completed_ns))
    )

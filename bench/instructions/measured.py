"""All cases by name, and their counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bench.instructions import commands, in_memory, live

COMMANDS = [commands.HELP, commands.SQL]
CASES = [*live.LIVE, *in_memory.CASES, *COMMANDS]
QUICK = [
    *(name for name in in_memory.CASES if name.startswith(in_memory.DECODE)),
    in_memory.MEASURE + "openai_chat",
    commands.HELP,
]
"""Cases in memory that take a minute together. `make test` runs them."""


def measured(names: Collection[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of these cases, and the components of a short request (empty if it is not one of them).

    A live case has a second figure, of the loop thread. Raises NotCounted.
    """

    def chosen(cases: Iterable[str]) -> list[str]:
        return [name for name in cases if name in names]

    figures: dict[str, float] = {}
    components: dict[str, float] = {}
    if of_tap := chosen(live.LIVE):
        for name, counts in live.counted(chosen(live.CASES)).items():
            if name in of_tap:
                figures[name + live.OF_LOOP], figures[name] = counts.pop(live.LOOP), counts.pop(live.ALL)
            if name == live.SHORT:
                components = {part: round(count) for part, count in counts.items()}
    # A case costs up to 3 % more or less after others in its process, so the quick ones have the same process in each run. The page has
    # one of its own, because it starts threads.
    quick, page = chosen(name for name in in_memory.CASES if name in QUICK), chosen([in_memory.OVERVIEW])
    rest = [name for name in chosen(in_memory.CASES) if name not in (*quick, *page)]
    for group in (quick, rest, page):
        figures |= in_memory.counted(group) if group else {}
    figures |= {name: commands.counted(name) for name in chosen(COMMANDS)}
    return {name: round(value) for name, value in figures.items()}, components

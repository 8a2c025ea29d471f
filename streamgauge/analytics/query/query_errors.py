"""Errors of queries. Each message is one line: what failed, why, and what to do."""

from __future__ import annotations

from pathlib import Path

from streamgauge.analytics.storage.location import StoreLocation, lost_catalog

READ_ONLY = "cannot run the statement: the store is read-only. Write a SELECT."


OTHER_VIEWS = "The views of the store are from another version of Streamgauge. Analytics of this version upgrades them when it starts."


class QueryError(Exception):
    """The query has no result."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        """`position`: index of the character of the statement that the message is about."""
        super().__init__(message)
        self.position = position


class StoreUnavailable(QueryError):
    """The store does not exist yet, or cannot be attached or read."""


class QueryRejected(QueryError):
    """The statement is invalid or not allowed, its answer is too large, or it needs too much memory."""


class AnswerTooLarge(QueryRejected):
    """The answer is larger than the way to the caller allows."""


class QueryOutOfMemory(QueryRejected):
    """The query reached the memory limit. The database that ran it may be unusable."""


class QueryTimeout(QueryError):
    """The query did not finish before its deadline."""


_KINDS: dict[str, type[QueryError]] = {
    kind.__name__: kind
    for kind in (StoreUnavailable, QueryRejected, AnswerTooLarge, QueryOutOfMemory, QueryTimeout)
}


MAX_MESSAGE_CHARS = 2000
"""A message can quote a value of the statement."""


def to_wire(error: QueryError, *hidden: str | None) -> dict[str, str | int | None]:
    """The error's kind, message and position for another process. Paths in `hidden` are removed from the message."""
    text = str(error)  # DuckDB's messages about files name them
    for path in hidden:
        text = text.replace(path, "…") if path else text
    return {
        "error": type(error).__name__,
        "message": text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "…",
        "position": error.position,
    }


def of_kind(name: object, message: object, position: object = None) -> QueryError:
    """The inverse of `to_wire`. An unknown kind is QueryRejected."""
    # The process may have been taken over by hostile SQL, so nothing of its error is trusted to have the right type.
    kind = _KINDS.get(str(name), QueryRejected)
    return kind(" ".join(str(message).split()), position=position if isinstance(position, int) else None)


def too_slow(timeout_s: float) -> QueryTimeout:
    """The error of a query that was stopped at its deadline."""
    return QueryTimeout(
        f"query stopped after {timeout_s:g} s: it reached its time limit. "
        "Narrow the time range, select fewer columns or aggregate first."
    )


def too_much_memory(limit_bytes: int | None) -> QueryOutOfMemory:
    """The error of a query that reached the memory limit. None: DuckDB's own limit."""
    limit = f"more than {limit_bytes // 2**20} MiB of memory" if limit_bytes else "too much memory"
    return QueryOutOfMemory(
        f"query stopped: it needed {limit}. Aggregate fewer rows or groups, or narrow the time range."
    )


def no_tables(location: StoreLocation) -> StoreUnavailable:
    """The error for a store that does not exist yet, or whose catalog is missing."""
    why, remedy = (
        f"the store {location.label} has no tables yet",
        "Start analytics: streamgauge up, or after capture: streamgauge analyze",
    )
    if location.is_catalog_lost:
        why, remedy = lost_catalog(location)
    elif location.catalog is not None and not location.catalog.parent.exists():
        why = f"the folder {location.catalog.parent} does not exist"
        others = sorted(str(path.parent) for path in Path().glob(f"*/{location.catalog.name}"))
        example = f", such as --data {others[0]}," if others else ","
        remedy = f"Pass the data folder of analytics with --data{example} or start analytics: streamgauge up"
    return StoreUnavailable(f"cannot query: {why}. {remedy}")


def not_one_statement(count: int) -> QueryRejected:
    """The error of a text that is not exactly one statement."""
    return QueryRejected(
        f"cannot run {count} statements: a query is exactly one SELECT. Send them one by one."
    )


def not_convertible(error: Exception | str) -> QueryRejected:
    """The error of an answer with a type that Arrow or polars does not have."""
    return QueryRejected(
        f"cannot convert the answer: {' '.join(str(error).split())}. Cast the column to VARCHAR."
    )

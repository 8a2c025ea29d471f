"""Queries of commands on the store: answered by the running analytics, else by a process of their own.

A process of its own needs the extra `analytics` and takes half a second longer. It also serves commands that query several stores,
and answers above `query_socket.MAX_RENDERED_BYTES`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from streamgauge.analytics.extras import extra_of, missing_package
from streamgauge.analytics.query.errors import AnswerTooLarge
from streamgauge.analytics.query.query_socket import NotListening, ask
from streamgauge.analytics.storage.location import locate, without_password
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.settings import Settings

if TYPE_CHECKING:
    from streamgauge.analytics.query.query_pool import QueryPool

MAX_ROWS = 1_000_000
TIMEOUT_S = 20.0


class StoreClient:
    """Queries on the store of the settings, or on several stores together. Use it in a `with` statement."""

    def __init__(self, stores: Sequence[Settings]) -> None:
        self._stores = stores
        self._pool: QueryPool | None = None
        first = stores[0]
        running = read_ready_file(first.data / "run" / "analyze.json") or {}
        self._asks_analytics = len(stores) == 1 and running.get("store") == without_password(first.store)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of one SELECT, with times as text. Raises QueryError, and click.ClickException as `rendered`."""
        found: list[dict[str, Any]] = json.loads(
            self.rendered(sql, "json", max_rows=MAX_ROWS, timeout_s=TIMEOUT_S)
        )
        return found

    def rendered(self, sql: str, form: str, *, max_rows: int, timeout_s: float) -> bytes:
        """The rows of one SELECT, as `streamgauge.analytics.query.render` writes them.

        Raises QueryError, and click.ClickException if analytics does not answer and the extra `analytics` is missing.
        """
        if self._asks_analytics:
            try:
                return ask(self._stores[0].data, sql, form, max_rows=max_rows, timeout_s=timeout_s)
            except NotListening:
                self._asks_analytics = False
            except AnswerTooLarge as too_large:
                try:
                    return self._by_own_process(sql, form, max_rows, timeout_s)
                except click.ClickException:
                    raise too_large from None
        return self._by_own_process(sql, form, max_rows, timeout_s)

    def _by_own_process(self, sql: str, form: str, max_rows: int, timeout_s: float) -> bytes:
        try:
            from streamgauge.analytics.query.query_pool import QueryPool
            from streamgauge.analytics.query.render import render
        except ModuleNotFoundError as e:
            if extra_of(e.name) is None:
                raise
            places = " and ".join(str(settings.data) for settings in self._stores)
            raise click.ClickException(
                f"cannot query {places}: analytics does not answer, and {missing_package(e.name)}"
            ) from None
        if self._pool is None:
            location, *others = (locate(settings.store, settings.data) for settings in self._stores)
            self._pool = QueryPool(location, untrusted=False, others=others)
        return render(self._pool.query(sql, max_rows=max_rows, timeout_s=timeout_s), form)

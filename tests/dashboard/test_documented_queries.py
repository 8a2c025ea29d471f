"""The documented queries have the same answers on the SQL page, through the SQL server and by `streamgauge sql`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.serve import SERVE_LIMITS
from streamgauge.analytics.storage.location import locate
from tests.analytics.query.test_serve import Client, serving
from tests.hostile_sql.ordinary import COOKBOOK
from tests.tables import tables


@pytest.fixture(scope="module")
def server(streams_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(locate("sqlite", streams_data), tmp_path_factory.mktemp("served"), SERVE_LIMITS) as client:
        yield client


def test_documented_queries_have_equal_answers_everywhere(streams_data: Path, server: Client) -> None:
    with QueryPool(locate("sqlite", streams_data), untrusted=True) as page:
        for sql in COOKBOOK:
            counted = f"SELECT count(*) AS n FROM ({sql.strip().rstrip(';')})"
            expected = tables(streams_data).query(counted).item()
            assert expected > 0, sql
            assert page.query(sql).height == expected, sql
            assert server.count(sql) == expected, sql


def test_an_attached_client_reads_every_table_and_view(streams_data: Path, server: Client) -> None:
    names = tables(streams_data).query("SHOW TABLES")["name"].to_list()
    assert len(names) > 10
    with server.connection.cursor() as cursor:
        cursor.execute(f"ATTACH '{server.endpoint.quack}' AS remote (TOKEN '{server.endpoint.token}')")
        try:
            for name in names:
                expected = tables(streams_data).query(f"SELECT count(*) FROM {name}").item()
                assert cursor.execute(f"SELECT count(*) FROM remote.{name}").fetchone() == (expected,), name
        finally:
            cursor.execute("DETACH remote")
